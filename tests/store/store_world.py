"""A store under test, with its expected content: an oracle that shares no code with the library."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from spark_ckpt.epochs.records import (
    EdgeCut,
    Holder,
    Manifest,
    OperatorSnapshot,
    SinkAck,
    StagedFileRecord,
    StagedOutput,
    StateFile,
)
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.store.location import Location
from spark_ckpt.store.store import Store

JOB, OPERATOR, SINK, EDGE = "job", "totals", "out", "loop"
ELSEWHERE = Holder(host="another-host", boot_id="b", pid=1, pid_start=1, name="test")
"""A holder that nothing on this host can prove dead."""

Changes = Mapping[str, int | None]
"""New value per key; None deletes the key."""


class Clock:
    """Wall time, set by the test."""

    def __init__(self, ms: int = 1_700_000_000_000) -> None:
        self.ms = ms

    def __call__(self) -> int:
        return self.ms


def state_rows(changes: Changes, epoch: int, group: int) -> pa.Table:
    keys = sorted(changes, key=key_hash)
    return pa.table(
        {
            "k": pa.array(keys, pa.string()),
            "v": pa.array([changes[key] for key in keys], pa.int64()),
            "ckpt_key_group": pa.array([group] * len(keys), pa.int32()),
            "ckpt_key_hash": pa.array([key_hash(key) for key in keys], pa.int64()),
            "ckpt_epoch": pa.array([epoch] * len(keys), pa.int64()),
            "ckpt_op": pa.array(["delete" if changes[key] is None else "put" for key in keys], pa.string()),
            "ckpt_timeout_ms": pa.array([None] * len(keys), pa.int64()),
        }
    )


def key_hash(key: str) -> int:
    return int.from_bytes(key.encode()[:6].ljust(6, b"\0"), "big")


@dataclass
class Line:
    """State of one incarnation between epochs."""

    incarnation: int
    base: int
    chain: tuple[StateFile, ...]
    state: dict[str, int]
    owed: dict[int, None] = field(default_factory=dict)


class World:
    """Drives a store as the runtime does; `expected` has the state of every epoch."""

    def __init__(self, uri: str | Path, now_ms: Clock | None = None, options: Mapping[str, str] | None = None) -> None:
        self.clock = now_ms or Clock()
        self.store = Store.open(str(uri), JOB, options, self.clock)
        self.expected: dict[int, dict[str, int]] = {0: {}}
        self.chains: dict[int, tuple[StateFile, ...]] = {0: ()}
        self.line = Line(0, 0, (), {})
        self.last = 0

    @property
    def holder(self) -> Holder:
        """Return the holder of new incarnations."""
        return ELSEWHERE

    def acks(self, epoch: int) -> tuple[SinkAck, ...]:
        return (SinkAck(sink=SINK, epoch=epoch),) if epoch else ()

    def begin(
        self,
        restore: str | int = "latest",
        takeover: bool = True,
        lease_ms: int = 30_000,
        taken_back: Mapping[str, int] | None = None,
    ) -> RecoveryPoint:
        point = self.store.log.begin_incarnation(ELSEWHERE, restore, lease_ms, takeover, taken_back=taken_back or {})
        base = point.manifest.epoch
        self.line = Line(point.incarnation, base, self.chains[base], dict(self.expected[base]))
        self.last = point.last
        return point

    def snapshot(self, changes: Changes, full: bool = False, epoch: int | None = None) -> None:
        """Write a state file, as a task does."""
        number = self.last + 1 if epoch is None else epoch
        new = {key: value for key, value in {**self.line.state, **changes}.items() if value is not None}
        rows = state_rows(new if full else changes, number, 0)
        path = f"i{self.line.incarnation}-e{number}-g0-{uuid.uuid4().hex}.parquet"
        size, sha256 = self.store.state(OPERATOR).location.write_table(path, rows)
        file = StateFile(
            path=path,
            size_bytes=size,
            ranges=((0, rows.num_rows, 0, size, sha256),),
            epoch=number,
            incarnation=self.line.incarnation,
            kind="full" if full else "changes",
            sha256=sha256,
        )
        self.line.chain = (file,) if full else (*self.line.chain, file)
        self.line.state = new

    def staged(self, texts: list[str]) -> StagedFileRecord:
        return self._written(SINK, self.store.staged(SINK).location, texts)

    def in_flight(self, texts: list[str]) -> EdgeCut:
        """Return the rows in flight of an edge that got one row per committed epoch."""
        files = (self._written(EDGE, self.store.edge(EDGE).location, texts),)
        positions = {"consumed": self.last, "produced": self.last + len(texts)}
        return EdgeCut(edge=EDGE, row_schema="value string", files=files, **positions)

    def _written(self, name: str, location: Location, texts: list[str]) -> StagedFileRecord:
        path = f"ckpt-{name}-i{self.line.incarnation}-b0-t0-0-{uuid.uuid4().hex}.parquet"
        rows = pa.table({"value": pa.array(texts, pa.string())})
        size, sha256 = location.write_table(path, rows)
        stats = json.dumps({"numRecords": len(texts)})
        return StagedFileRecord(
            path=path,
            size_bytes=size,
            rows=len(texts),
            lane=0,
            batch=0,
            task=0,
            part=0,
            stats=stats,
            sha256=sha256,
        )

    def manifest(self, acks: tuple[SinkAck, ...] = (), stage: bool = True) -> Manifest:
        epoch = self.last + 1
        files = (self.staged([f"row of {epoch}"]),) if stage else ()
        return Manifest(
            job=JOB,
            epoch=epoch,
            incarnation=self.line.incarnation,
            attempt=uuid.uuid4().hex,
            base=self.line.base,
            previous=self.last,
            created_ms=self.clock(),
            operators={OPERATOR: snapshot_of(self.line.chain)},
            outputs={SINK: StagedOutput(sink=SINK, files=files, rows=len(files))},
            rows_before=self.store.log.manifest(self.line.base).rows_so_far if self.line.base else {},
            edges={EDGE: self.in_flight([f"in flight at {epoch}"])} if stage else {},
            acks=acks,
        )

    def deferred_epoch(self, changes: Changes) -> Manifest:
        """Commit an epoch whose rows are deferred to a later publish."""
        self.snapshot(changes, full=True)
        whole = self.manifest()
        manifest = whole.model_copy(update={"held": whole.outputs, "outputs": {}})
        self.commit(manifest)
        return manifest

    def commit(self, manifest: Manifest) -> None:
        """Commit an epoch, then expect its state."""
        self.store.log.commit_epoch(manifest)
        self.expect(manifest)

    def expect(self, manifest: Manifest) -> None:
        self.expected[manifest.epoch] = dict(self.line.state)
        self.chains[manifest.epoch] = self.line.chain
        self.line.base = self.last = manifest.epoch

    def epoch(self, changes: Changes, full: bool = False, materialize: bool = True, acked: int = 0) -> Manifest:
        self.snapshot(changes, full)
        manifest = self.manifest(self.acks(acked))
        self.commit(manifest)
        if materialize:
            self.store.materialize(manifest)
        return manifest

    def state_at(self, epoch: int) -> dict[str, int]:
        return as_dict(self.store.state(OPERATOR).read(epoch))


def two_epochs(folder: Path, keys: Sequence[str]) -> World:
    """Create two epochs: all keys, then some new values and some deletions; then end the driver."""
    world = World(folder)
    world.begin()
    world.epoch(dict.fromkeys(keys, 1), full=True)
    world.epoch({**dict.fromkeys(keys[:20], 2), **dict.fromkeys(keys[20:30])}, acked=1)
    world.store.log.release(world.line.incarnation)
    return world


def opened(world: World) -> Store:
    """Open the world's store as another process does."""
    return Store.open(world.store.location.uri, JOB, now_ms=world.clock)


def snapshot_of(chain: tuple[StateFile, ...]) -> OperatorSnapshot:
    return OperatorSnapshot(
        operator=OPERATOR, key_groups=1, key_schema="k STRING", state_schema="v BIGINT", files=chain
    )


def as_dict(rows: pa.Table) -> dict[str, int]:
    if not rows.num_rows:
        return {}
    return dict(zip(rows.column("k").to_pylist(), rows.column("v").to_pylist(), strict=True))


def rewrite(root: Path, change: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Rewrite the log's files with valid checksums: only seals and digests can find this damage."""
    epochs = Location(str(root / "epochs"))
    for info in epochs.list():
        if info.path.endswith(".parquet") and "/" not in info.path:
            table = epochs.read_table(info.path)
            rows = [change(row) for row in table.to_pylist()]
            epochs.write_table(info.path, pa.Table.from_pylist(rows, schema=table.schema))


def flip_in_body(root: Path, kind: str, epoch: int | None = None) -> Path:
    """Flip a bit in the body of a row of this kind. Return its file."""
    for path in sorted((root / "epochs").glob("*.parquet")):
        with pq.ParquetFile(path) as file:
            row = file.read(columns=["kind", "epoch"]).to_pylist()[0]
            if row["kind"] == kind and epoch in (None, row["epoch"]):
                group = file.metadata.row_group(0)
                columns = [group.column(at) for at in range(group.num_columns)]
                body = next(each for each in columns if each.path_in_schema == "body")
                content = bytearray(path.read_bytes())
                content[body.data_page_offset + body.total_compressed_size - 1] ^= 1
                path.write_bytes(content)
                return path
    raise AssertionError(f"no row of kind {kind} has a file of its own")
