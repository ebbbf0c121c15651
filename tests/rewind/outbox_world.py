"""A plain query with an outbox, without a JVM: the shipped outbox over a real store and a real Delta table.

The query counts: batch N adds N to a sum, its state, so a wrong batch changes every later one. Its checkpoint has the
files that Spark writes. `alerts` stands for a topic: its rows are appended in one step with their marker.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql.types import LongType, StructField, StructType
from spark_ckpt_delta import DeltaSink

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import EpochOutput, PublishedEpoch, PublishReceipt, SinkContext, SinkRows, StagePlan
from spark_ckpt.epochs.records import StagedFileRecord
from spark_ckpt.errors import Fenced
from spark_ckpt.outbox.rule import NO_CHANGES, Accepted
from spark_ckpt.outbox.running import OutboxRun, OutboxSettings
from spark_ckpt.spark_internals.query_logs import FENCE
from spark_ckpt.store.location import Location
from spark_ckpt.store.store import Store
from spark_ckpt.tasks.staging import SinkStage, StageWriter
from spark_rewind.applying import ApplySettings
from spark_rewind.outbox_logs import BATCH
from spark_rewind.plan import RewindPlan
from spark_rewind.planning import RewindRequest, plan_rewind
from spark_rewind.records import RewindRecord

Row = tuple[int, int]
"""Batch and sum."""
NAME = "orders"
_SCHEMA = StructType([StructField("batch", LongType()), StructField("total", LongType())])
_BEGAN_MS = 1_700_000_000_000


class Refused(Exception):
    """The query does not start, as its log has a fence."""


class Topic:
    """Rows in the order of their publish, in one file with the marker."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def content(self) -> dict[str, object]:
        return json.loads(self.path.read_text()) if self.path.exists() else {"rows": [], "epoch": 0, "incarnation": 0}

    def rows(self) -> list[Row]:
        return [tuple(row) for row in self.content()["rows"]]

    def append(self, rows: list[Row], epoch: int, incarnation: int) -> None:
        part = self.path.with_suffix(".part")
        part.write_text(json.dumps({"rows": [*self.rows(), *rows], "epoch": epoch, "incarnation": incarnation}))
        part.replace(self.path)


@dataclass
class TopicSink:
    """The sink of a topic."""

    topic: Topic

    def check(self, spark: object, schema: StructType) -> None:
        pass

    def stage(self, schema: StructType) -> StagePlan:
        return StagePlan(schema=pa.schema([(name, pa.int64()) for name in schema.names]))

    def publisher(self, spark: object, context: SinkContext) -> TopicPublisher:
        return TopicPublisher(self.topic, context.incarnation)

    def newest_published(self, context: SinkContext) -> PublishedEpoch | None:
        found = self.topic.content()
        return PublishedEpoch(Epoch(found["epoch"]), Incarnation(found["incarnation"]), lambda decision: True)

    def identity(self, spark: object) -> Mapping[str, str]:
        return {"kind": "kafka", "cluster": "c", f"topic {self.topic.path.stem}": "t"}

    def describe(self) -> Mapping[str, str]:
        return {"kind": "topic"}


@dataclass
class TopicPublisher:
    """Appends the rows of an epoch, once."""

    topic: Topic
    incarnation: int

    def publish(self, output: EpochOutput) -> PublishReceipt:
        found = self.topic.content()
        if found["incarnation"] > self.incarnation:
            raise Fenced("another publisher")
        if found["epoch"] >= output.epoch:
            return PublishReceipt(output.epoch, 0, replayed=True)
        place = Location(output.root)
        rows = [row for file in output.files for row in rows_of(place.read_table(file.path))]
        self.topic.append(rows, output.epoch, self.incarnation)
        return PublishReceipt(output.epoch, len(rows), replayed=False)

    def close(self) -> None:
        pass


def rows_of(table: pa.Table) -> list[Row]:
    return list(zip(table.column("batch").to_pylist(), table.column("total").to_pylist(), strict=True))


@dataclass
class Rows:
    """The batch that Spark passes to the outbox."""

    number: int
    rows: list[Row]
    spark: object = None

    def schema(self, name: str, rows: SinkRows) -> StructType:
        return _SCHEMA

    def stage(
        self, sinks: Mapping[str, SinkRows], stages: Sequence[SinkStage], incarnation: int
    ) -> tuple[Mapping[str, Sequence[StagedFileRecord]], int]:
        found = {}
        table = pa.table({"batch": [row[0] for row in self.rows], "total": [row[1] for row in self.rows]})
        for stage in stages:
            with StageWriter(stage, self.number) as writer:
                writer.write(table)
                found[stage.sink] = [StagedFileRecord(**asdict(file)) for file in writer.close()]
        return found, incarnation

    def discard(self) -> None:
        pass


class World:
    """Folders of the query, its outbox, table and topic. `keep_epochs`: of the outbox."""

    def __init__(self, root: Path, keep_epochs: int = 100) -> None:
        self.root, self.keep_epochs = root, keep_epochs
        self.checkpoint, self.store, self.pins = root / "checkpoints" / "q", str(root / "store"), root / "pins"
        self.topic, self.gold = Topic(root / "alerts.json"), root / "gold"
        self.began = 0

    def settings(self, accepted: Accepted = NO_CHANGES) -> OutboxSettings:
        sinks = {"gold": SinkRows(DeltaSink(str(self.gold))), "alerts": SinkRows(TopicSink(self.topic))}
        return OutboxSettings(
            self.store,
            NAME,
            str(self.checkpoint),
            sinks,
            keep_epochs=self.keep_epochs,
            retain_every=2,
            ack_wait_ms=0,
            accepted=accepted,
        )

    # -- the query -----------------------------------------------------------------------------------------------------

    def run(self, batches: int, *, wrong: int = 0, dies: bool = False, accepted: Accepted = NO_CHANGES) -> None:
        """Run some batches and end the program. `wrong` is added to each. `dies`: before the commit of the last batch."""
        driver = OutboxRun(self.settings(accepted))
        try:
            for count in range(batches):
                number, planned = self.next()
                if not planned:
                    self.plan(number)
                total = self.total(number - 1) + number + wrong
                driver.call(Rows(number, [(number, total)] if number % 3 != 2 else []))
                self.write("state/0/0", f"{number + 1}.delta", json.dumps(total))
                if not (dies and count == batches - 1):
                    self.write("commits", str(number), 'v1\n{"nextBatchWatermarkMs":0}')
        finally:
            driver.close()

    def next(self) -> tuple[int, bool]:
        """Return the next batch, and True if its offsets are written. Raises `Refused` for a fence."""
        if not (self.checkpoint / "metadata").exists():
            for name in ("offsets", "commits", "state/0/0"):
                (self.checkpoint / name).mkdir(parents=True)
            (self.checkpoint / "metadata").write_text(json.dumps({"id": "query-1"}))
        offsets, commits = (self.newest(name) for name in ("offsets", "commits"))
        if offsets >= 0 and (self.checkpoint / "offsets" / str(offsets)).read_text().startswith(FENCE):
            raise Refused(offsets)
        return (offsets + 1, False) if offsets == commits else (offsets, True)

    def newest(self, log: str) -> int:
        return max((int(path.name) for path in (self.checkpoint / log).glob("[0-9]*")), default=-1)

    def plan(self, number: int) -> None:
        self.began += 1000
        metadata = {"batchWatermarkMs": 0, "batchTimestampMs": _BEGAN_MS + self.began, "conf": {}}
        self.write("offsets", str(number), "\n".join(["v1", json.dumps(metadata), *self.ends(number)]))

    def ends(self, number: int) -> list[str]:
        return [json.dumps({"logOffset": number})]

    def total(self, number: int) -> int:
        return json.loads((self.checkpoint / "state/0/0" / f"{number + 1}.delta").read_text()) if number >= 0 else 0

    def write(self, folder: str, name: str, text: str) -> None:
        """Write a new file: Spark never changes one."""
        path = self.checkpoint / folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{name}.part")
        part.write_text(text)
        at_s = (_BEGAN_MS + self.began) / 1000
        os.utime(part, (at_s, at_s))
        part.replace(path)

    # -- the content -----------------------------------------------------------------------------------------------------

    def table(self) -> Counter[Row]:
        return Counter(rows_of(DeltaTable(str(self.gold)).to_pyarrow_table()))

    def log(self):
        return Store.open(self.store, NAME, kind="outbox").log

    # -- the operator ----------------------------------------------------------------------------------------------------

    def request(self, to: str, **more: object) -> RewindRequest:
        return RewindRequest([str(self.checkpoint)], to, **{"outboxes": [self.store], **more})

    def planned(self, to: str, **more: object) -> RewindPlan:
        return plan_rewind(self.request(to, **more), _BEGAN_MS)


def wanted(batches: int) -> Counter[Row]:
    """Rows of a run without wrong batches."""
    return Counter((n, n * (n + 1) // 2) for n in range(batches) if n % 3 != 2)


def listed(record: RewindRecord) -> Counter[Row]:
    """Rows that the record lists as published."""
    found: list[Row] = []
    for outbox in record.outboxes:
        for folder in outbox.rows.values():
            for path in sorted(Path(folder).glob("*.parquet")):
                table = pq.read_table(path)
                assert table.column(BATCH).to_pylist() == table.column("batch").to_pylist()
                found += rows_of(table)
    return Counter(found)


def settings(now_ms: int = _BEGAN_MS) -> ApplySettings:
    return ApplySettings(lambda: None, now_ms, "spark-ckpt/test")
