"""A function gets every row of every epoch; a repeated call has the same number and equal rows. A whole result is published once
per epoch, even if the driver dies between staging and the publish.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType
from runtime_kit import Bench, drain

import spark_ckpt as ckpt
from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.api.foreach_batch import ForeachBatchSink
from spark_ckpt.connector import EpochOutput, SinkContext, StagedFile

pytestmark = pytest.mark.spark
CHILD = Path(__file__).with_name("foreach_batch_child.py")
Call = tuple[int, Sequence[Sequence[object]]]


def judge(calls: Iterable[Call], rows: Iterable[Sequence[object]]) -> Counter[int]:
    """Calls by epoch. An epoch has the same rows in every call, and each input row is in one epoch."""
    seen: dict[int, Sequence[Sequence[object]]] = {}
    times: Counter[int] = Counter()
    for epoch, found in calls:
        assert seen.setdefault(epoch, found) == found, f"a repeated call for epoch {epoch} has other rows"
        times[epoch] += 1
    assert Counter(tuple(row) for found in seen.values() for row in found) == Counter(map(tuple, rows))
    return times


@pytest.mark.parametrize(
    ("calls", "verdict"),
    [
        ([(1, [["a", 1]]), (1, [["a", 2]])], "other rows"),
        ([(1, [["a", 1]]), (2, [["a", 1]])], "Counter"),
        ([(1, [])], "Counter"),
    ],
    ids=["other rows", "another number", "a lost row"],
)
def test_the_verdict_catches(calls: list[Call], verdict: str) -> None:
    with pytest.raises(AssertionError, match=verdict):
        judge(calls, [["a", 1]])


def test_a_function_that_fails_is_called_again_with_the_same_rows(bench: Bench) -> None:
    calls: list[Call] = []

    def once(frame: DataFrame, epoch: int) -> None:
        calls.append((epoch, sorted([row.k, row.v] for row in frame.collect())))
        if len(calls) == 2:
            raise RuntimeError("the service is away")

    def job() -> ckpt.Job:
        job = bench.job()
        job.source("in", bench.source()).filter("v < 5").foreachBatch(once)
        return job

    bench.put(("a", 1), ("b", 2))
    drain(job())
    bench.put(("a", 3), ("c", 4), ("c", 5))
    drain(job())
    drain(job())
    times = judge(calls, [("a", 1), ("b", 2), ("a", 3), ("c", 4)])
    assert sorted(times.values()) == [1, 2]


def test_a_function_of_other_arguments_is_refused(bench: Bench) -> None:
    with pytest.raises(ckpt.CkptError, match="a DataFrame and the epoch's number"):
        bench.job().source("in", bench.source()).foreachBatch(lambda frame: None)


def test_a_sorted_whole_result_keeps_its_order(bench: Bench) -> None:
    """Tasks of a sort leave its rows in consecutive files. Spark reads the largest file of a frame first."""
    seen: list[int] = []
    sink = ForeachBatchSink(lambda frame, _: seen.extend(row.v for row in frame.collect()))
    sink.stage(StructType().add("v", "long"))
    files = [staged(bench.folder, task, range(10**task, 10 ** (task + 1))) for task in range(4)]
    context = SinkContext("job", "out", "store", Incarnation(1))
    output = EpochOutput(Epoch(1), Incarnation(1), Epoch(0), str(bench.folder), {}, files, replaces=True)
    sink.publisher(bench.spark, context).publish(output)
    assert seen == list(range(1, 10**4))


def staged(folder: Path, task: int, values: Iterable[int]) -> StagedFile:
    path = folder / f"{task}.parquet"
    pq.write_table(pa.table({"v": pa.array(values, pa.int64())}), path, write_page_checksum=True)
    content, rows = path.read_bytes(), pq.read_metadata(path).num_rows
    digest = hashlib.sha256(content).hexdigest()
    return StagedFile(path.name, len(content), rows, 0, 0, task, 0, sha256=digest)


DEATHS = (
    {"SPARK_CKPT_FAILPOINT": "EPOCH_COMMITTING:kill"},
    {"SPARK_CKPT_FAILPOINT": "PUBLISH_COMMITTED:kill"},
    {"DIES_IN_FUNCTION": "yes"},
)
"""Staged and uncommitted; one sink published, before its acknowledgement; at the end of a call."""


@pytest.mark.long  # in the gate: the next test, where it fails instead
def test_after_a_kill_the_function_is_called_again_and_each_epoch_has_one_whole_result(bench: Bench) -> None:
    given: list[Sequence[object]] = []
    for number, death in enumerate([*DEATHS, {}]):
        for rows in ([("a", number), ("b", 1)], [("a", 10 + number), (f"k{number}", 1)]):
            bench.put(*rows)
            given += rows
        assert run_child(bench.folder, death) == (-signal.SIGKILL if death else 0)
    calls = [
        (call["epoch"], call["rows"]) for call in map(json.loads, (bench.folder / "calls").read_text().splitlines())
    ]
    assert max(judge(calls, given).values()) > 1
    wanted: Counter[object] = Counter()
    for key, value in given:
        wanted[key] += value
    assert dict(bench.values("whole")) == dict(wanted)
    published = [
        re.findall(r"epoch=(\d+)", str(each.get("userMetadata")))
        for each in DeltaTable(bench.folder / "whole").history()
    ]
    epochs = Counter(epoch for found in published for epoch in found)
    assert set(epochs.values()) == {1}


def run_child(folder: Path, armed: Mapping[str, str]) -> int:
    with (folder / "log").open("ab") as log:
        command = [sys.executable, str(CHILD), str(folder)]
        return subprocess.run(
            command, env=os.environ | armed, stdout=log, stderr=log, timeout=400, check=False
        ).returncode
