"""What follows a publish is no part of it: deleting what dead drivers staged, asking for a new table's id."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql.types import LongType, StructType

from spark_ckpt.connector import EpochOutput, PublishReceipt, SinkContext, SinkRows, StagePlan
from spark_ckpt.errors import SinkInvalid
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


class Created(Untidy):
    """A sink whose first publish creates its table, and whose catalog is then away once."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = 0

    def identity(self, spark: Any) -> Mapping[str, str]:
        if not self.published:
            return {"kind": "created", "id": ""}
        self.asked += 1
        if self.asked == 1:
            raise SinkInvalid("the catalog does not answer")
        return {"kind": "created", "id": "7"}


def called(folder: Path, sink: Untidy, batches: int = 2) -> list[BatchVerdict]:
    """Call an outbox for batches without rows."""
    checkpoint = folder / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": "3c9c2f2e-8a3a-4f6a-9f0e-0a2f3d7a5b11"}))
    for number in range(batches):
        (checkpoint / f"offsets/{number}").write_text(f"v1\n{{}}\n{number}")
    settings = OutboxSettings(str(folder / "store"), "orders", str(checkpoint), {"gold": SinkRows(sink)})
    run = OutboxRun(settings)
    try:
        return [run.call(MessageBatch(number, StructType().add("id", LongType()), [])) for number in range(batches)]
    finally:
        run.close()


def test_files_of_dead_drivers_that_cannot_be_deleted_do_not_end_a_query(tmp_path: Path) -> None:
    sink = Untidy()

    assert called(tmp_path, sink) == [BatchVerdict.NEW] * 2
    assert (sink.published, sink.tried) == ([1, 2], 1)


def test_an_id_that_is_not_known_behind_a_publish_does_not_end_a_query(tmp_path: Path) -> None:
    sink = Created()

    assert called(tmp_path, sink, 3) == [BatchVerdict.NEW] * 3
    assert (sink.published, sink.asked) == ([1, 2, 3], 2)
