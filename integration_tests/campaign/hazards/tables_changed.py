"""Another user changes the sink's table, or the source's topic or table, while the job runs."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink, DeltaSource
from spark_ckpt_kafka import KafkaSink, KafkaSource

import spark_ckpt as ckpt
from integration_tests.campaign.hazards import ways
from integration_tests.campaign.hazards.site import (
    FileJob,
    Site,
    delete_topic,
    drained,
    ended,
    happens,
    make_topic,
    new_job,
    produce,
    records,
    table_rows,
    wait_for,
)
from integration_tests.campaign.hazards.trials import Drawn
from integration_tests.campaign.hazards.verdicts import Rows, Scene, Way
from spark_ckpt.errors import CkptError

FOREIGN = (100, "q")
POSITIVE, THERE = "id >= 0", "id IS NOT NULL"
SEEN_S = 40.0
"""Seconds to wait for the rows after the change; then the trial stops the job in order."""


@dataclass(frozen=True)
class Change:
    """A change of a table (id long, v string). `replaces`: it deletes the present rows and leaves one of its own. `allows`: a
    condition on all later rows."""

    name: str
    make: Callable[[Site, str], None]
    replaces: bool = False
    own: tuple[object, object] = FOREIGN
    allows: str = "true"

    def allowed(self, rows: Sequence[tuple[object, object]]) -> Sequence[tuple[object, object]]:
        """The rows that meet the condition."""
        meets = {
            "true": lambda _: True,
            POSITIVE: lambda id_: id_ is not None and id_ >= 0,
            THERE: lambda id_: id_ is not None,
        }
        return [row for row in rows if meets[self.allows](row[0])]


def _overwrite(columns: dict[str, pa.Array], **more: Any) -> Callable[[Site, str], None]:
    return lambda site, table: write_deltalake(
        table, pa.table(columns), mode="overwrite", schema_mode="overwrite", **more
    )


def _not_null(site: Site, table: str) -> None:
    schema = pa.schema([pa.field("id", pa.int64(), nullable=False), pa.field("v", pa.string())])
    write_deltalake(table, pa.table([[100], ["q"]], schema=schema), mode="overwrite", schema_mode="overwrite")


def _sql(*statements: str) -> Callable[[Site, str], None]:
    """Statements of delta-spark; `{}` is the table."""

    def make(site: Site, table: str) -> None:
        for statement in statements:
            site.spark.sql(statement.format(f"delta.`{table}`"))

    return make


def _property(name: str, value: str) -> Callable[[Site, str], None]:
    return lambda site, table: DeltaTable(table).alter.set_table_properties({name: value})


def _added(site: Site, table: str) -> None:
    more = pa.table({"id": pa.array([100], pa.int64()), "v": ["q"], "more": ["m"]})
    write_deltalake(table, more, mode="append", schema_mode="merge")


def _recreated(site: Site, table: str) -> None:
    shutil.rmtree(table)
    write_deltalake(table, pa.table({"id": pa.array([100], pa.int64()), "v": ["q"]}))
    site.forget_tables()


DROPPED, RECREATED = "column dropped by delta-spark", "table dropped and re-created"
ONE = pa.array([100], pa.int64())
MAPPED = (
    "ALTER TABLE {} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name',"
    " 'delta.minReaderVersion' = '2', 'delta.minWriterVersion' = '5')"
)
MORE = "ALTER TABLE {} ADD COLUMNS (more string)"
NEEDED = "ALTER TABLE {} ADD CONSTRAINT m CHECK (more IS NOT NULL OR id < 100)"
BACK = (
    r"as (it|the table) was|change .{0,60}back|undo|restore the table|alter the table|bring .{0,60}back"
    r"|take (it|that|the feature) off|(take|drop|remove|unset) .{0,80}(constraint|property|column)|DROP CONSTRAINT"
)
"""Words of advice to undo the table's change."""
CHANGES = [
    Change("CHECK added", lambda site, table: DeltaTable(table).alter.add_constraint({"positive": "id >= 0"}), allows=POSITIVE),
    Change("CHECK added by delta-spark", _sql("ALTER TABLE {} ADD CONSTRAINT positive CHECK (id >= 0)"), allows=POSITIVE),
    Change("type of a column, by overwrite", _overwrite({"id": ONE, "v": pa.array([1.5])}), True, (100, 1.5)),
    Change("column renamed, by overwrite", _overwrite({"id": ONE, "w": pa.array(["q"])}), True),
    Change("column dropped, by overwrite", _overwrite({"id": ONE}), True, (100, None)),
    Change("partitioning, by overwrite", _overwrite({"id": ONE, "v": pa.array(["q"])}, partition_by=["v"]), True),
    Change("NOT NULL, by overwrite", _not_null, True, allows=THERE),
    Change("column renamed by delta-spark", _sql(MAPPED, "ALTER TABLE {} RENAME COLUMN v TO w")),
    Change(DROPPED, _sql(MAPPED, "ALTER TABLE {} DROP COLUMN v")),
    Change("column added", _added),
    Change("column added by delta-spark", _sql(MORE)),
    Change("column added, required later", _sql(MORE, NEEDED), allows=THERE),
    Change("transaction retention set", _property("delta.setTransactionRetentionDuration", "interval 1 hours")),
    Change("append-only set", _property("delta.appendOnly", "true")),
    Change("log retention set", _property("delta.logRetentionDuration", "interval 1 days")),
    Change("deletion vectors on", _sql("ALTER TABLE {} SET TBLPROPERTIES ('delta.enableDeletionVectors' = 'true')")),
    Change("change data feed on", _sql("ALTER TABLE {} SET TBLPROPERTIES ('delta.enableChangeDataFeed' = 'true')")),
    Change("clustering set", _sql("ALTER TABLE {} CLUSTER BY (id)")),
    Change(RECREATED, _recreated, True),
]  # fmt: skip


class TableChanged(Scene):
    """An epoch is published; the sink's table changes; more rows come. `(-5, ...)` and `(None, ...)` violate new constraints."""

    def __init__(self, site: Site, folder: Path, draw: random.Random, change: Change) -> None:
        self._engine = draw.choice(("deltalake", "deltalake", "spark"))
        self.kind = change.name
        self._site, self._change = site, change
        self._undone = self._accepted = self._changed = False
        first = draw.randint(1, 4)
        self._first = [(n, f"one-{n}") for n in range(first)]
        self._more = draw.sample([(-5, "two"), (None, "three"), (7, None), (8, "four")], draw.randint(1, 4))
        self._fits = False
        self._table = folder / "table"
        self._new_table = folder / "another"
        self._where = self._table
        self._version = 0
        self._job = FileJob(site, folder, "id long, v string", self._describe)

    def _describe(self, rows: ckpt.Stream) -> None:
        if self._fits:
            rows = rows.filter(self._change.allows)
        keys = {"keys": ["id"]} if self._engine == "spark" else {}
        rows.to(DeltaSink(str(self._where), engine=self._engine, **keys), name="out", publish_every="0 seconds")

    def act(self) -> None:
        run = self._job.start()
        try:
            self._write(self._first)
            wait_for(lambda: self.visible() == Counter(self._first) or not run.isActive, "the first epoch")
            self._version = DeltaTable(str(self._table)).version()
            self._change.make(self._site, str(self._table))
            self._changed = True
            self._write(self._more)
            happens(lambda: self.visible() == self.wanted() or not run.isActive, SEEN_S)
            ended(run)
        finally:
            with suppress(Exception):
                run.stop(30)

    def _write(self, rows: Sequence[tuple[object, object]]) -> None:
        self._job.write([{"id": id_, "v": v} for id_, v in rows])

    def wanted(self) -> Rows:
        first, more = Counter(self._first), Counter(self._more)
        elsewhere = self._accepted and not self._change.replaces  # the new table has no constraint
        if self._undone or elsewhere or not self._changed:
            return first + more
        more = Counter(self._change.allowed(self._more))
        if self._change.replaces:
            return Counter([self._change.own]) + more + (first if self._accepted else Counter())
        if self.kind == DROPPED:
            first = Counter((id_, None) for id_, _ in self._first)
        return first + (Counter([FOREIGN]) if self._change.make is _added else Counter()) + more

    def required(self) -> Rows:
        """The job writes its unpublished epochs to a new table."""
        if self._accepted:
            return Counter(self._more)
        allowed = set(self._change.allowed(self._more))
        all_fit = self._fits or self._undone or len(allowed) == len(self._more)
        return self.wanted() if all_fit else self.wanted() + Counter(row for row in self._more if row not in allowed)

    def visible(self) -> Rows:
        """A renamed column is the same column."""
        rows = _read(self._site, self._where, ("id", "v", "w"))
        return Counter((id_, w if v is None else v) for id_, v, w in rows)

    def ways(self) -> Sequence[Way]:
        accept = ways.accept(self._job, "accept_new_sink", self._accept)
        if self.kind == RECREATED:
            again = ways.start_again(self._job.drain, r"the start names the other ways", "start again")
            removed = ways.accept(self._job, "accept_new_sink", self._removed)
            # A start that leaves the folder in place does not follow advice to remove it first.
            removed = replace(removed, name="remove the folder", says=f"remove the folder.*?{accept.says}")
            accept = replace(accept, says=f"^(?!.*remove the folder).*?{accept.says}")
            return [removed, accept, ways.restore(self._job), again]
        return [
            *(ways.filtered(self._job, self._fit) if self._change.allows != "true" else ()),
            ways.start_again(self._job.drain, BACK, "change the table back", self._undo),
            accept,
            ways.start_again(self._job.drain, r"another table", "another table", self._elsewhere),
            ways.next_start(self._job.drain),
        ]

    def _fit(self) -> None:
        self._fits = True

    def _undo(self) -> None:
        self._undone = True
        self._site.spark.sql(f"RESTORE TABLE delta.`{self._table}` TO VERSION AS OF {self._version}")
        self._site.forget_tables()

    def _accept(self) -> None:
        """A sink is accepted as another one only if it differs."""
        if self.kind != RECREATED:
            self._where = self._new_table
        self._accepted = True

    def _removed(self) -> None:
        """Remove a folder whose log a statement wrote to during its removal."""
        shutil.rmtree(self._table)
        self._site.forget_tables()
        self._accept()

    def _elsewhere(self) -> None:
        self._where = self._new_table
        self._accepted = True


def _read(site: Site, table: Path, columns: Sequence[str]) -> list[tuple[object, ...]]:
    """Read by deltalake; by delta-spark if columns are mapped, which deltalake ignores, or if it lacks a table feature."""
    if not any((table / "_delta_log").glob("*.json")):
        return []
    try:
        if DeltaTable(str(table)).metadata().configuration.get("delta.columnMapping.mode", "none") == "none":
            return table_rows(table, columns)
    except Exception as error:
        if "reader" not in str(error).lower() and "unsupported" not in str(error).lower():
            raise
    site.forget_tables()
    frame = site.spark.read.format("delta").load(str(table))
    return [tuple(row.asDict().get(name) for name in columns) for row in frame.collect()]


# -- sources --------------------------------------------------------------------------------------------------------------


class SourceRecreated(Scene):
    """The source's topic or table is deleted and re-created while the job runs; the new one has more, as many, or fewer rows."""

    def __init__(self, site: Site, folder: Path, draw: random.Random, source: str) -> None:
        size = draw.choice(("more", "as many", "fewer"))
        self.kind = f"source {source} deleted and re-created, {size} rows"
        self._site, self._source, self._folder = site, source, folder
        self._old = [f"old-{n}" for n in range(draw.randint(3, 10))]
        count = {"more": 3 * len(self._old), "as many": len(self._old), "fewer": len(self._old) - 1}[size]
        self._new = [f"new-{n}" for n in range(count)]
        self._topic = site.name("source")
        self._began = False

    def _job(self) -> ckpt.Job:
        job = new_job(self._site, self._folder / "store")
        if self._source == "topic":
            rows = job.source("s", KafkaSource(self._site.servers, self._topic))
            rows = rows.select(F.col("value").cast("string").alias("v"))
        else:
            rows = job.source("s", DeltaSource(str(self._folder / "source")))
        rows.to(DeltaSink(str(self._folder / "out")), name="out", publish_every="0 seconds")
        return job

    def _fill(self, values: Sequence[str]) -> None:
        if self._source == "topic":
            make_topic(self._site.servers, self._topic)
            produce(self._site.servers, self._topic, [{"value": value.encode()} for value in values])
        else:
            write_deltalake(str(self._folder / "source"), pa.table({"v": values}))

    def _remove(self) -> None:
        if self._source == "topic":
            delete_topic(self._site.servers, self._topic)
        else:
            shutil.rmtree(self._folder / "source")

    def act(self) -> None:
        self._fill(self._old)
        run = self._job().start()
        try:
            wait_for(lambda: self.visible() == self._counted(self._old) or not run.isActive, "the old rows")
            self._remove()
            self._began = True
            self._fill(self._new)
            happens(lambda: self.visible() == self.wanted() or not run.isActive, 15)
            ended(run)
        finally:
            with suppress(Exception):
                run.stop(30)
        drained(self._job())

    def wanted(self) -> Rows:
        return self._counted(self._old) + (self._counted(self._new) if self._began else Counter())

    def visible(self) -> Rows:
        return Counter(table_rows(self._folder / "out", ("v",)))

    def _counted(self, values: Sequence[str]) -> Rows:
        return Counter((value,) for value in values)

    def ways(self) -> Sequence[Way]:
        def accepted(error: CkptError, found: Any) -> None:
            drained(self._job(), accept_new_source="s")

        def once_more(error: CkptError, found: Any) -> None:
            drained(self._job())

        return [
            Way("start(accept_new_source=)", r"accept_new_source", accepted),
            Way("start again", r"start the job again|the next start", once_more),
        ]


class SinkTopicChanged(Scene):
    """The sink's topic is deleted and re-created, or gets partitions, while the job runs."""

    def __init__(self, site: Site, folder: Path, draw: random.Random, change: str) -> None:
        self.kind = f"sink topic {change}"
        self._site, self._change = site, change
        self._topic = site.name("sink")
        self._first = [(f"k{n}", f"one-{n}") for n in range(draw.randint(1, 5))]
        self._more = [(f"k{n}", f"two-{n}") for n in range(draw.randint(1, 5))]
        self._gone = False
        self._job = FileJob(site, folder, "key string, value string", self._describe)

    def _describe(self, rows: ckpt.Stream) -> None:
        rows.to(KafkaSink(self._site.servers, self._topic), name="out")

    def act(self) -> None:
        make_topic(self._site.servers, self._topic)
        run = self._job.start()
        try:
            self._job.write([{"key": k, "value": v} for k, v in self._first])
            wait_for(lambda: self.visible() == Counter(self._first) or not run.isActive, "the first epoch")
            self._do()
            self._job.write([{"key": k, "value": v} for k, v in self._more])
            happens(lambda: self.visible() == self.wanted() or not run.isActive, SEEN_S)
            ended(run)
        finally:
            with suppress(Exception):
                run.stop(30)

    def _do(self) -> None:
        from confluent_kafka.admin import NewPartitions

        from integration_tests.campaign.hazards.site import admin

        if self._change == "deleted and re-created":
            delete_topic(self._site.servers, self._topic)
            self._gone = True
            make_topic(self._site.servers, self._topic)
        else:
            client = admin(self._site.servers)  # a client that is garbage-collected ends its pending requests
            for future in client.create_partitions([NewPartitions(self._topic, 3)]).values():
                future.result(30)

    def wanted(self) -> Rows:
        return Counter(self._more) if self._gone else Counter(self._first) + Counter(self._more)

    def tolerated(self) -> Rows:
        return Counter(self._first) + Counter(self._more)

    def visible(self) -> Rows:
        return Counter(
            (each.key().decode(), each.value().decode()) for each in records(self._site.servers, self._topic)
        )

    def ways(self) -> Sequence[Way]:
        return [
            ways.accept(self._job, "accept_new_sink"),
            ways.restore(self._job),
            ways.repair(self._job, self._site.servers, self._topic),
            ways.next_start(self._job.drain),
        ]


def _table_changed(site: Site, folder: Path, draw: random.Random, change: Change) -> Scene:
    return TableChanged(site, folder, draw, change)


def _source(site: Site, folder: Path, draw: random.Random, source: str) -> Scene:
    return SourceRecreated(site, folder, draw, source)


def _sink_topic(site: Site, folder: Path, draw: random.Random, change: str) -> Scene:
    return SinkTopicChanged(site, folder, draw, change)


SCENES: Sequence[Drawn] = [
    *(partial(_table_changed, change=change) for change in CHANGES),
    *(partial(_source, source=source) for source in ("topic", "table", "topic")),
    *(partial(_sink_topic, change=change) for change in ("deleted and re-created", "given more partitions")),
]
