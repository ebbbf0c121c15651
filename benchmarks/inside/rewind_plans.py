"""Duration of `spark-ckpt rewind plan`, from the start of the command to its end, over folders of realistic size.

Twenty queries in three pipelines, two of them declarative: each query reads the Delta table of the one before it. Each checkpoint
has a hundred batches. Half of the queries have a state of 200 partitions, alternately HDFS-backed and RocksDB with changelogs,
with a snapshot every tenth version and the checksum files that a local file system gets. Logs of tables have some hundred
versions and a checkpoint every tenth; their oldest entries have been cleaned up.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import uuid
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

QUERIES, STATEFUL, PARTITIONS = 20, 10, 200
RETAINED, VERSIONS, SNAPSHOT_EVERY = 100, 400, 10
FIRST = VERSIONS - RETAINED
T0_MS, BATCH_MS = 1_700_000_000_000, 60_000
SST = "000001-7b1c8a52-9c64-4f0a-8f3e-2b1d5b0f6c11.sst"
CONF = {f"spark.sql.streaming.setting{number}": "org.apache.spark.sql.something" for number in range(16)}


def written(root: Path, partitions: int = PARTITIONS) -> tuple[list[str], str]:
    """(folders to name, folder with the tables)"""
    places = [*_flows(root / "lake", 7), *_flows(root / "mart", 7), *_plain(root / "checkpoints", 6)]
    before: str | None = None
    for number, place in enumerate(places):
        query, table = str(uuid.uuid4()), str(uuid.uuid4())
        _write_logs(place, query, before)
        if number % 2 == 0:
            _write_state(place / "state" / "0", partitions, rocksdb=number % 4 == 0)
        _write_table(root / "warehouse" / f"t{number:02}", table, query)
        before = table
    return [str(root / "lake"), str(root / "mart"), *map(str, places[14:])], str(root / "warehouse")


def _flows(root: Path, count: int) -> list[Path]:
    tables = root / "_checkpoints" / "spark_catalog" / "default"
    return [tables / f"{root.name}{number}" / f"flow{number}" / "0" for number in range(count)]


def _plain(root: Path, count: int) -> list[Path]:
    return [root / f"plain{number}" for number in range(count)]


def _write_logs(folder: Path, query: str, table: str | None) -> None:
    for name in ("offsets", "commits"):
        (folder / name).mkdir(parents=True)
    (folder / "metadata").write_text(json.dumps({"id": query}))
    for batch in range(FIRST, VERSIONS):
        at_ms = T0_MS + batch * BATCH_MS
        metadata = json.dumps({"batchWatermarkMs": 0, "batchTimestampMs": at_ms, "conf": CONF})
        offset = str(batch) if table is None else _delta_offset(table, batch + 1)
        (folder / "offsets" / str(batch)).write_text(f"v1\n{metadata}\n{offset}")
        (folder / "offsets" / f".{batch}.crc").touch()
        commit = folder / "commits" / str(batch)
        commit.write_text('v1\n{"nextBatchWatermarkMs":0}')
        (folder / "commits" / f".{batch}.crc").touch()
        os.utime(commit, ((at_ms + 1000) / 1000,) * 2)


def _delta_offset(table: str, version: int) -> str:
    where = {"reservoirId": table, "reservoirVersion": version, "index": -1, "isStartingVersion": False}
    return json.dumps({"sourceVersion": 1, **where})


def _write_state(folder: Path, partitions: int, *, rocksdb: bool) -> None:
    (folder / "_metadata").mkdir(parents=True)
    (folder / "_metadata" / "metadata").write_text("v1\n{}")
    snapshot = _snapshot() if rocksdb else b"snapshot"
    for partition in range(partitions):
        store = folder / str(partition)
        store.mkdir()
        for name in _state_names(rocksdb=rocksdb):
            _touch(store / name)
            _touch(store / f".{name}.crc")
        for version in range(FIRST, VERSIONS + 1, SNAPSHOT_EVERY):
            (store / f"{version}.{'zip' if rocksdb else 'snapshot'}").write_bytes(snapshot)
        if rocksdb:
            (store / "SSTs").mkdir()
            _touch(store / "SSTs" / SST)


def _state_names(*, rocksdb: bool) -> Iterator[str]:
    change, snapshot = ("changelog", "zip") if rocksdb else ("delta", "snapshot")
    yield from (f"{version}.{change}" for version in range(FIRST, VERSIONS + 1))
    yield from (f"{version}.{snapshot}" for version in range(FIRST, VERSIONS + 1, SNAPSHOT_EVERY))


def _snapshot() -> bytes:
    with tempfile.TemporaryFile() as file:
        with zipfile.ZipFile(file, "w") as made:
            listed = {
                "sstFiles": [{"localFileName": "000001.sst", "dfsSstFileName": SST, "sizeBytes": 1}],
                "numKeys": 1,
            }
            made.writestr("metadata", f"v1\n{json.dumps(listed)}")
        file.seek(0)
        return file.read()


def _touch(path: Path) -> None:
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o644))


def _write_table(root: Path, table: str, query: str) -> None:
    """Write the log without its first quarter; a checkpoint precedes the rest."""
    log, oldest = root / "_delta_log", VERSIONS // 4
    log.mkdir(parents=True)
    for version in range(oldest, VERSIONS):
        info = {
            "timestamp": T0_MS + version * BATCH_MS + 500,
            "operation": "STREAMING UPDATE",
            "operationMetrics": CONF,
        }
        actions = [
            {"commitInfo": info},
            {"txn": {"appId": query, "version": version, "lastUpdated": info["timestamp"]}},
        ]
        actions += [
            {
                "add": {
                    "path": f"part-{version}-{number}.parquet",
                    "size": 1,
                    "dataChange": True,
                    "stats": json.dumps(CONF),
                }
            }
            for number in range(4)
        ]
        (log / f"{version:020d}.json").write_text("".join(json.dumps(each) + "\n" for each in actions))
        (log / f"{version:020d}.crc").touch()
    for version in range(oldest, VERSIONS, 10):
        _write_checkpoint(log / f"{version:020d}.checkpoint.parquet", table, query, version)


def _write_checkpoint(path: Path, table: str, query: str, version: int) -> None:
    rows = 4 * version
    added = [{"path": f"part-{each}.parquet", "size": 1} for each in range(rows)]
    column = pa.array([None, None, *added])
    txn = pa.array([{"appId": query, "version": version}, None, *[None] * rows])
    metadata = pa.array([None, {"id": table}, *[None] * rows])
    pq.write_table(pa.table({"txn": txn, "metaData": metadata, "add": column}), path)


def measured(arguments: Sequence[str], rounds: int) -> list[float]:
    """Seconds of each run of the command, its start included. The first run, which warms the disk's cache, is left out."""
    command = [sys.executable, "-m", "spark_ckpt", "rewind", "plan", *arguments, "--json"]
    found = []
    for _ in range(rounds + 1):
        start = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        found.append(time.perf_counter() - start)
    return found[1:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--partitions", type=int, default=PARTITIONS)
    parser.add_argument("--into", type=Path, help="keep the folders here, or use the existing ones")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = chosen.into or Path(temporary)
        folders, tables = _kept(root) if (root / "warehouse").is_dir() else written(root, chosen.partitions)
        for case, to in (("all go back", f"lake0/flow0@{VERSIONS - 50}"), ("one goes back", f"plain5@{VERSIONS - 50}")):
            times = measured([*folders, "--table", tables, "--to", to], chosen.rounds)
            values = {"queries": QUERIES, "plan_s": statistics.median(times), "slowest_s": max(times)}
            print(json.dumps({"measure": "rewind_plan", "workload": case, "values": values}))


def _kept(root: Path) -> tuple[list[str], str]:
    plain = sorted((root / "checkpoints").iterdir())
    return [str(root / "lake"), str(root / "mart"), *map(str, plain)], str(root / "warehouse")


if __name__ == "__main__":
    main()
