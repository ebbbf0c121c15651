"""Work after a publish cannot fail it: deleting files of dead drivers, reading a new table's id, a close."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import Any, cast

import pytest
from pyspark.sql.types import LongType, StructType

from spark_ckpt.connector import EpochOutput, PublishReceipt, SinkContext, SinkRows, StagePlan
from spark_ckpt.errors import SinkInvalid, StoreUnreachable
from spark_ckpt.outbox.batch_writer import MessageBatch
from spark_ckpt.outbox.rule import BatchVerdict
from spark_ckpt.outbox.running import OutboxRun, OutboxSettings, prepared
from spark_ckpt.store.store import Store


class Untidy:
    """A sink and its publisher, whose folder refuses deletions."""

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
    """A sink whose first publish creates its table, and whose catalog is then unreachable once."""

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


class Broken(Untidy):
    """A sink whose identity fails with a plain error as soon as another sink publishes."""

    def __init__(self, publishes: Event) -> None:
        super().__init__()
        self.publishes = publishes

    def identity(self, spark: Any) -> Mapping[str, str]:
        if self.published:
            self.publishes.wait()
            raise RuntimeError("a bug of the sink")
        return {"kind": "broken", "id": ""}


class Slow(Untidy):
    """A sink that publishes for longer than the other one."""

    def __init__(self) -> None:
        super().__init__()
        self.publishes, self.closed = Event(), Event()
        self.closed_within_a_publish = False

    def publish(self, output: EpochOutput) -> PublishReceipt:
        self.publishes.set()
        self.closed_within_a_publish = self.closed.wait(0.2)
        return super().publish(output)

    def close(self) -> None:
        self.closed.set()


def called(folder: Path, sink: Untidy, batches: int = 2, **others: Untidy) -> list[BatchVerdict]:
    """Call an outbox for batches without rows."""
    checkpoint = folder / "checkpoint"
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text(json.dumps({"id": "3c9c2f2e-8a3a-4f6a-9f0e-0a2f3d7a5b11"}))
    for number in range(batches):
        (checkpoint / f"offsets/{number}").write_text(f"v1\n{{}}\n{number}")
    sinks = {name: SinkRows(each) for name, each in {"gold": sink, **others}.items()}
    settings = OutboxSettings(str(folder / "store"), "orders", str(checkpoint), sinks)
    run = OutboxRun(settings)
    try:
        return [run.call(MessageBatch(number, StructType().add("id", LongType()), [])) for number in range(batches)]
    finally:
        run.close()


def test_files_of_dead_drivers_that_cannot_be_deleted_do_not_end_a_query(tmp_path: Path) -> None:
    sink = Untidy()

    assert called(tmp_path, sink) == [BatchVerdict.NEW] * 2
    assert (sink.published, sink.tried) == ([1, 2], 1)


def test_an_unreadable_id_after_a_publish_does_not_end_a_query(tmp_path: Path) -> None:
    sink = Created()

    assert called(tmp_path, sink, 3) == [BatchVerdict.NEW] * 3
    assert (sink.published, sink.asked) == ([1, 2, 3], 2)


def test_a_run_closes_no_publisher_that_still_publishes(tmp_path: Path) -> None:
    slow = Slow()

    with pytest.raises(RuntimeError, match="a bug of the sink"):
        called(tmp_path, Broken(slow.publishes), 1, later=slow)

    assert slow.published == [1]
    assert not slow.closed_within_a_publish


def test_a_batch_makes_no_folder_where_its_store_was_moved_away(tmp_path: Path) -> None:
    """`mv` would put the store into it."""
    store, schema = Store.open(str(tmp_path / "store"), "orders", kind="outbox"), StructType().add("id", LongType())
    stage = prepared(store, "gold", SinkRows(Untidy()), schema, cast(Any, None)).stage("gold", 1)
    (tmp_path / "store").rename(tmp_path / "away")
    with pytest.raises(StoreUnreachable):
        stage.location.open_output("rows.parquet")
    assert not (tmp_path / "store").exists()
