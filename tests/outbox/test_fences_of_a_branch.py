"""A branch fences the publishers of its diverged epochs, so that a paused driver cannot publish them afterwards."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.types import LongType, StructType

from spark_ckpt.connector import EpochOutput, PublishReceipt, SinkContext, SinkRows, StagePlan
from spark_ckpt.errors import PublishFailed
from spark_ckpt.outbox.batch_writer import MessageBatch
from spark_ckpt.outbox.rule import Accepted, BatchVerdict
from spark_ckpt.outbox.running import OutboxRun, OutboxSettings

Call = tuple[str, int, int]


class Recorded:
    """A publisher that records its calls with incarnation and epoch. It refuses epoch 2."""

    def __init__(self, calls: list[Call], incarnation: int) -> None:
        self.calls, self.incarnation = calls, incarnation

    def publish(self, output: EpochOutput) -> PublishReceipt:
        if output.epoch == 2:
            raise PublishFailed("no answer")
        self.calls.append(("publish", self.incarnation, output.epoch))
        return PublishReceipt(output.epoch, 0, replayed=False)

    def fence(self) -> None:
        self.calls.append(("fence", self.incarnation, 0))

    def close(self) -> None:
        pass


class Recording:
    def __init__(self) -> None:
        self.calls: list[Call] = []

    def check(self, spark: Any, schema: Any) -> None:
        pass

    def stage(self, schema: Any) -> StagePlan:
        return StagePlan()

    def publisher(self, spark: Any, context: SinkContext) -> Recorded:
        return Recorded(self.calls, context.incarnation)

    def describe(self) -> Mapping[str, str]:
        return {"kind": "recording"}


def batch(number: int) -> MessageBatch:
    return MessageBatch(number, StructType().add("id", LongType()), [])


def test_a_branch_fences_its_sinks_before_its_first_publish(tmp_path: Path) -> None:
    sink, checkpoint = Recording(), tmp_path / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": "3c9c2f2e-8a3a-4f6a-9f0e-0a2f3d7a5b11"}))
    for number in range(2):
        (checkpoint / f"offsets/{number}").write_text(f"v1\n{{}}\n{number}")
    where = (str(tmp_path / "store"), "orders", str(checkpoint), {"gold": SinkRows(sink)})
    paused = OutboxRun(OutboxSettings(*where, publish_timeout_ms=0))
    paused.call(batch(0))
    with pytest.raises(PublishFailed):
        paused.call(batch(1))
    assert sink.calls == [("publish", 1, 1)]

    (checkpoint / "offsets/1").write_text("v1\n{}\nof another life")
    run = OutboxRun(OutboxSettings(*where, accepted=Accepted(restore=1)))
    assert run.call(batch(1)) is BatchVerdict.REWOUND
    assert sink.calls[1:] == [("fence", 2, 0), ("publish", 2, 3)]
    run.close()
    paused.close()
