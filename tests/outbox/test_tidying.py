"""Deleting what dead drivers staged is no part of a publish."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, StructType

from spark_ckpt.connector import EpochOutput, PublishReceipt, SinkContext, SinkRows, StagePlan
from spark_ckpt.outbox.batch_writer import MessageBatch
from spark_ckpt.outbox.rule import BatchVerdict
from spark_ckpt.outbox.running import OutboxRun, OutboxSettings


class Untidy:
    """A sink and its publisher, whose folder lets nothing be deleted."""

    def __init__(self) -> None:
        self.published: list[int] = []
        self.tried = 0

    def check(self, spark: Any, schema: Any) -> None:
        pass

    def stage(self, schema: Any) -> StagePlan:
        return StagePlan()

    def publisher(self, spark: Any, context: SinkContext) -> Untidy:
        return self

    def describe(self) -> Mapping[str, str]:
        return {"kind": "untidy"}

    def publish(self, output: EpochOutput) -> PublishReceipt:
        self.published.append(output.epoch)
        return PublishReceipt(output.epoch, 0, replayed=False)

    def tidy(self) -> int:
        self.tried += 1
        raise PermissionError("the folder is read-only")

    def close(self) -> None:
        pass


def test_files_of_dead_drivers_that_cannot_be_deleted_do_not_end_a_query(tmp_path: Path) -> None:
    checkpoint, sink = tmp_path / "checkpoint", Untidy()
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": "3c9c2f2e-8a3a-4f6a-9f0e-0a2f3d7a5b11"}))
    for number in (0, 1):
        (checkpoint / f"offsets/{number}").write_text(f"v1\n{{}}\n{number}")
    settings = OutboxSettings(str(tmp_path / "store"), "orders", str(checkpoint), {"gold": SinkRows(sink)})
    run = OutboxRun(settings)
    try:
        verdicts = [run.call(MessageBatch(number, StructType().add("id", LongType()), [])) for number in (0, 1)]
    finally:
        run.close()

    assert verdicts == [BatchVerdict.NEW] * 2
    assert (sink.published, sink.tried) == ([1, 2], 1)
