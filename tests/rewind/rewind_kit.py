"""Checkpoints and tables for tests: those that Spark 4.2 made, and written ones in the same formats."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
import zipfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from spark_rewind.declared import Declared
from spark_rewind.plan import QueryPlan, RewindPlan, TablePlan
from spark_rewind.planning import RewindRequest, plan_rewind

MADE_BY_SPARK = Path(__file__).parent / "made_by_spark_4_2.zip"
NOW_MS = 1_800_000_000_000
T0_MS = 1_700_000_000_000
BATCH_MS = 10_000
"""Batch N of a written query begins at T0 + N times this interval, and is committed half an interval later."""


def unpacked(folder: Path) -> Path:
    """Folders `ckpt` and `tables` of Spark 4.2.0 and Delta 4.4.0; only a path in the texts was shortened."""
    with zipfile.ZipFile(MADE_BY_SPARK) as made:
        made.extractall(folder)
    return folder


def began(batch: int, after_ms: int = 0) -> int:
    return T0_MS + batch * BATCH_MS + after_ms


class WrittenQuery:
    """A checkpoint, batch by batch."""

    def __init__(self, folder: Path, query: str = "") -> None:
        self.folder = folder
        self.query = query or str(uuid.uuid5(uuid.NAMESPACE_URL, str(folder)))
        self.batches = 0
        for name in ("offsets", "commits"):
            (folder / name).mkdir(parents=True)
        (folder / "metadata").write_text(json.dumps({"id": self.query}))

    def batch(self, *ends: object, commit: bool = True, state: bool = False, at_ms: int | None = None) -> int:
        """One batch, with the offsets of its sources as JSON values; None for a source that has not been read."""
        number = self.batches
        at_ms = began(number) if at_ms is None else at_ms
        self.batches += 1
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": at_ms, "conf": {"spark.sql.shuffle.partitions": "1"}}
        lines = ["-" if each is None else json.dumps(each) for each in ends]
        (self.folder / "offsets" / str(number)).write_text("\n".join(["v1", json.dumps(metadata), *lines]))
        if state:
            partition = self.folder / "state" / "0" / "0"
            partition.mkdir(parents=True, exist_ok=True)
            (partition / f"{number + 1}.delta").write_bytes(b"changes")
        if commit:
            self.commit(number, at_ms + BATCH_MS // 2)
        return number

    def commit(self, number: int, at_ms: int) -> None:
        path = self.folder / "commits" / str(number)
        path.write_text('v1\n{"nextBatchWatermarkMs":0}')
        os.utime(path, (at_ms / 1000, at_ms / 1000))


class WrittenTable:
    """A Delta table's log, version by version, and its data files."""

    def __init__(self, root: Path, table: str = "") -> None:
        self.root = root
        self.id = table or str(uuid.uuid5(uuid.NAMESPACE_OID, str(root)))
        self.versions = 0
        (root / "_delta_log").mkdir(parents=True)

    def version(
        self, *writers: tuple[str, int], removed: Sequence[str] = (), at_ms: int = T0_MS, changes: bool = True
    ) -> int:
        """One version with one file; `writers`: its transactions; `changes`: false for an OPTIMIZE."""
        number = self.versions
        self.versions += 1
        (self.root / f"part-{number}.parquet").write_bytes(b"rows")
        actions: list[Mapping[str, object]] = [{"commitInfo": {"timestamp": at_ms, "operation": "STREAMING UPDATE"}}]
        if number == 0:
            actions.append({"metaData": {"id": self.id, "schemaString": "{}", "partitionColumns": []}})
        actions += [{"txn": {"appId": app, "version": batch}} for app, batch in writers]
        actions.append({"add": {"path": f"part-{number}.parquet", "size": 4, "dataChange": changes}})
        actions += [{"remove": {"path": path, "dataChange": changes}} for path in removed]
        text = "".join(json.dumps(each) + "\n" for each in actions)
        (self.root / "_delta_log" / f"{number:020d}.json").write_text(text)
        return number

    def at(self, version: int, index: int = -1, snapshot: bool = False) -> dict[str, object]:
        """A Delta source's offset in this table."""
        where = {"reservoirId": self.id, "reservoirVersion": version, "index": index}
        return {"sourceVersion": 1, **where, "isStartingVersion": snapshot}


def planned(
    folders: Sequence[Path],
    to: str,
    tables: Sequence[Path] = (),
    declared: Mapping[str, object] | None = None,
    broker=None,
) -> RewindPlan:
    """A plan, as the command makes it."""
    known = Declared.model_validate(declared or {})
    request = RewindRequest([str(each) for each in folders], to, [str(each) for each in tables], known, broker)
    return plan_rewind(request, NOW_MS)


def query_of(plan: RewindPlan, name: str) -> QueryPlan:
    return next(each for each in plan.queries if each.name == name)


def table_of(plan: RewindPlan, root: Path) -> TablePlan:
    return next(each for each in plan.tables if each.path == str(root))


def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of files and folders, in the order in which they become durable."""
    found: list[str] = []

    def sync(descriptor: int, done: Callable[[int], None] = os.fsync) -> None:
        found.append(str(Path(f"/proc/self/fd/{descriptor}").readlink()))
        done(descriptor)

    monkeypatch.setattr(os, "fsync", sync)
    return found


def content_of(folder: Path) -> str:
    """A digest of everything in a folder, names and bytes and times."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        digest.update(f"{path.relative_to(folder)} {path.lstat().st_mtime_ns} {path.lstat().st_mode}".encode())
        if path.is_file() and os.access(path, os.R_OK):
            digest.update(path.read_bytes())
    return digest.hexdigest()
