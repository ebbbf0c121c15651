"""Stores of programs that read each other's edges, without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from spark_ckpt.epochs.records import Holder, Manifest, Position, SinkAck, StagedFileRecord, StagedOutput
from spark_ckpt.store.store import Store
from tests.store.store_world import rewrite

ELSEWHERE = Holder(host="another-host", boot_id="b", pid=1, pid_start=1, name="test")


class ProgramKit:
    """Program `name` with the edge `out`. `reads`: programs whose edges it reads."""

    def __init__(self, folder: Path, name: str, *reads: ProgramKit) -> None:
        self.name = name
        self.store = Store.open(str(folder / name), name)
        self.reads = list(reads)
        self.positions: dict[str, Position] = {}
        self.begin("latest")

    def begin(self, restore: str | int) -> None:
        point = self.store.log.begin_incarnation(ELSEWHERE, restore, takeover=True)
        self.base = point.manifest.epoch
        cursors = point.manifest.cursors
        self.positions = {name: Position.model_validate(cursors.get(name, {})) for name in self.sources()}

    def sources(self) -> Mapping[str, ProgramKit]:
        return {each.name: each for each in self.reads}

    def read(self, sender: ProgramKit) -> None:
        """Read all committed epochs of the sender."""
        state = sender.store.log.state()
        epoch = sender.store.log.manifest(state.latest).rows_so_far.get("out", 0) if state.latest else 0
        if epoch:
            self.positions[sender.name] = Position(epoch=epoch, attempt=state.by_id[epoch].attempt, files=1, of=1)

    def commit(self, rows: bool = True, index: int = 0, created_ms: int | None = None) -> int:
        """Commit an epoch, with or without a file of rows for the edge."""
        state = self.store.log.state()
        path = f"ckpt-out-{uuid.uuid4().hex}.parquet"
        local = self.store.staged("out").location.local
        assert local is not None
        local.mkdir(parents=True, exist_ok=True)
        (local / path).write_bytes(b"x")
        file = StagedFileRecord(path=path, size_bytes=1, rows=1, lane=0, batch=0, task=0, part=0)
        output = {"out": StagedOutput(sink="out", files=(file,) if rows else (), rows=int(rows))}
        identities = {
            name: {"kind": "edge", "edge": "out", "store id": each.store.id, "path": each.store.location.uri}
            for name, each in self.sources().items()
        }
        manifest = Manifest(
            job=self.name,
            epoch=state.last + 1,
            incarnation=state.incarnation,
            attempt=uuid.uuid4().hex,
            base=self.base,
            previous=state.last,
            created_ms=created_ms if created_ms is not None else 1_700_000_000_000 + state.last,
            outputs=output if rows else {},
            acks=(SinkAck(sink="out", epoch=self.base),) if self.base else (),
            cursors={name: position.model_dump() for name, position in self.positions.items()},
            source_identities=identities,
            rows_before=self.store.log.manifest(self.base).rows_so_far if self.base else {},
        )
        self.store.log.commit_epoch(manifest, index)
        self.base = manifest.epoch
        return manifest.epoch

    def forget(self, *kept: int) -> None:
        """Keep these epochs only."""
        self.store.log.shorten(lambda state: set(kept))

    def damage(self, epoch: int) -> None:
        """Damage the manifest of an epoch."""
        local = self.store.location.local
        assert local is not None
        rewrite(
            local,
            lambda row: row | {"body": row["body"].replace("a", "b")} if row["epoch"] == epoch else row,
        )

    def stop(self) -> None:
        self.store.log.release(self.store.log.state().incarnation, "stopped")
