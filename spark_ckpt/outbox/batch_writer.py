"""The writers of one batch of `format("outbox")`: tasks stage rows, then the driver commits and publishes.

The process that commits has no session, and the plan of the batch has run when it is called. So sinks publish by
themselves, and their rows are columns of the query, chosen by name.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import BooleanType, StructField, StructType

from spark_ckpt.connector import SinkRows
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import StagedFileRecord
from spark_ckpt.errors import CkptError, ConfigInvalid, EpochDamaged
from spark_ckpt.outbox.advice import of_outbox
from spark_ckpt.outbox.events import OutboxEvents, metrics_listeners
from spark_ckpt.outbox.running import OutboxRun, OutboxSettings, prepared
from spark_ckpt.outbox.staging import Report, reported, write_staged
from spark_ckpt.tasks.staging import SinkStage, running_batch
from spark_ckpt.tasks.worker_process import prepare_worker

_ARGUMENTS = ("restore=", "accept_query=", "accept_new_sink=", "accept_moved=")


@dataclass(frozen=True)
class ChosenColumns:
    """Columns of the query that a sink gets: its own name of each, and its place in a row of the query.

    `where`: place of the column that says if the sink gets the row; None if it gets all. A null is no.
    """

    columns: tuple[tuple[str, int], ...]
    where: int | None

    def rows(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the sink's rows of a batch."""
        arrays = [batch.column(place) for _, place in self.columns]
        chosen = pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in self.columns])
        return chosen if self.where is None else chosen.filter(batch.column(self.where))

    def schema(self, query: StructType) -> StructType:
        """Return the schema of the sink's rows."""
        fields = [(name, query.fields[place]) for name, place in self.columns]
        return StructType([StructField(name, each.dataType, each.nullable, each.metadata) for name, each in fields])


def chosen_columns(sink: str, rows: SinkRows, query: StructType) -> ChosenColumns:
    """Return the columns that a sink gets of the query's rows.

    Raises `ConfigInvalid` for an expression of SQL: only a session can evaluate it.
    """
    wanted = [*((_unquoted(name), name) for name in rows.columns), *rows.named.items()]
    wanted = wanted or [(name, name) for name in query.names]
    columns = tuple((name, _place(sink, column, query)) for name, column in wanted)
    if rows.where is None:
        return ChosenColumns(columns, None)
    where = _place(sink, rows.where, query)
    if not isinstance(query.fields[where].dataType, BooleanType):
        raise ConfigInvalid(
            f"sink '{sink}' gets the rows where {rows.where}, which is a {query.fields[where].dataType.simpleString()}",
            hint='compute a boolean column in the query, e.g. .withColumn("big", "n > 10"), and give where="big"',
        )
    return ChosenColumns(columns, where)


def _place(sink: str, column: str, query: StructType) -> int:
    if _unquoted(column) not in query.names:
        raise ConfigInvalid(
            f"sink '{sink}' gets {column!r}, which is no column of the query: format(\"outbox\") chooses columns by name",
            hint="compute the column in the query, before writeStream; its columns are " + ", ".join(query.names),
        )
    return query.names.index(_unquoted(column))


def _unquoted(name: str) -> str:
    return name[1:-1].replace("``", "`") if len(name) > 2 and name[0] == name[-1] == "`" else name


class NoSession:
    """Stands in for the session that the driver's Python processes of a data source do not have."""

    def __init__(self, sink: str) -> None:
        self._sink = sink

    def __getattr__(self, name: str) -> object:
        """Raise `ConfigInvalid`."""
        raise ConfigInvalid(
            f'{self._sink} needs Spark to publish, and format("outbox") publishes without a session',
            hint="take sinks that publish by themselves, as KafkaSink and DeltaSink with its default engine do; or start the "
            "query with Outbox.start(writer)",
        )


def no_session(sink: str) -> SparkSession:
    """Return a session whose first use by a sink is refused."""
    return cast("SparkSession", NoSession(sink))


@dataclass(frozen=True)
class StagedByTask(WriterCommitMessage):
    """Staged files of one task. `known`: newest incarnation of the log before the batch was staged."""

    files: Sequence[Report]
    known: int


@dataclass(frozen=True)
class StagingWriter(DataSourceStreamArrowWriter):
    """Writer of the tasks. Pickled: it has what tasks need, and no settings of sinks."""

    stages: Sequence[SinkStage]
    columns: Sequence[ChosenColumns]
    known: int

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stage the rows of one task."""
        batches = ([each.rows(batch) for each in self.columns] for batch in iterator)
        return StagedByTask(write_staged(self.stages, running_batch(), batches), self.known)


def staging_writer(settings: OutboxSettings, schema: StructType) -> StagingWriter:
    """Check the sinks and return the writer of the tasks of one batch.

    The files get the newest incarnation of the log as their number, although it is not the one that commits them: that
    one may begin later. No incarnation up to it takes them for garbage. `OutboxProtocol` refuses them if another driver
    began in between.
    """
    # PySpark collects garbage after each call of this process, too: half of a batch's time (measured).
    prepare_worker()
    store = settings.opened()
    # It is read before a task can stage a file, so that the protocol can see if another driver began afterwards.
    known = store.log.state().incarnation
    columns = {name: chosen_columns(name, rows, schema) for name, rows in settings.sinks.items()}
    stages = [
        prepared(store, name, rows, columns[name].schema(schema), no_session(f"sink '{name}'")).stage(name, known)
        for name, rows in settings.sinks.items()
    ]
    return StagingWriter(stages, list(columns.values()), known)


@dataclass(frozen=True)
class MessageBatch:
    """A micro-batch whose plan has run: the messages of its tasks."""

    number: int
    query: StructType
    messages: Sequence[StagedByTask]

    @property
    def spark(self) -> SparkSession:
        """Return no session."""
        return no_session("a sink of the outbox")

    @property
    def known(self) -> int | None:
        """Newest incarnation of the log before the batch was staged; None if it had no task."""
        # The least: the files of any task may be older than another driver's begin.
        return min((message.known for message in self.messages), default=None)

    def schema(self, sink: str, rows: SinkRows) -> StructType:
        """Return the schema of a sink's rows."""
        return chosen_columns(sink, rows, self.query).schema(self.query)

    def stage(
        self, sinks: Mapping[str, SinkRows], stages: Sequence[SinkStage], incarnation: int
    ) -> tuple[dict[str, list[StagedFileRecord]], int]:
        """Return the files that the tasks have staged, and the incarnation that was known then."""
        reports = [report for message in self.messages for report in message.files]
        return reported(sinks, reports), incarnation if self.known is None else self.known

    def discard(self) -> None:
        """Do nothing: no manifest names the files, so that retention deletes them."""


_runs: dict[str, tuple[str, OutboxRun]] = {}
"""The runs that this process hosts, by the store of their outbox, each with its name. Spark calls it for every batch."""


class CommittingWriter(DataSourceStreamArrowWriter):
    """Writer of the commit, in a Python process of the driver."""

    def __init__(self, settings: OutboxSettings, schema: StructType) -> None:
        self._settings = settings
        self._schema = schema

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Raise: no task gets this writer."""
        raise NotImplementedError("tasks write with StagingWriter")

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the batch to the log and publish it. Every error reaches Spark, which then does not commit the batch."""
        prepare_worker()
        batch = MessageBatch(batchId, self._schema, [_staged(message) for message in messages])
        try:
            self._run(batch).call(batch)
        except BaseException as error:
            self._close(error)  # a failed call ends its protocol: the next one needs another run
            if isinstance(error, CkptError):
                error.hint = hint_of_format(error.hint, self._settings.log_state())
            raise

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing. Spark calls it after a failed commit, too, and the log may name the files."""

    def _run(self, batch: MessageBatch) -> OutboxRun:
        """Return the run of this query: that of the batch before, if no other process has continued it since."""
        store, name = self._settings.store, self._settings.run
        before = _runs.get(store)
        # Spark may end an idle process and host the query in another one, and later come back to this one, whose
        # knowledge is old then.
        if before is not None and before[0] == name and before[1].continues(batch.known):
            return before[1]
        self._close()  # of another start, or with old knowledge: its publishers would stay open
        _runs[store] = name, OutboxRun(self._settings, self._events())
        return _runs[store][1]

    def _events(self) -> OutboxEvents:
        settings = self._settings
        return OutboxEvents(settings.name, metrics_listeners(settings.metrics, settings.name), settings.lineage)

    def _close(self, error: BaseException | None = None) -> None:
        before = _runs.pop(self._settings.store, None)
        if before is not None:
            before[1].close(error)


def _staged(message: WriterCommitMessage | None) -> StagedByTask:
    if not isinstance(message, StagedByTask):
        # Spark has none of a task that failed, and never commits such a batch.
        raise EpochDamaged(f"a task reported {type(message).__name__}, and its rows would be missing")
    return message


def hint_of_format(hint: str, log_state: LogState | None = None) -> str:
    """Return the hint of an outbox's error with the options of the format for its arguments. For `log_state` see `of_outbox`."""
    hint = of_outbox(hint, log_state)
    named = [each.removesuffix("=") for each in _ARGUMENTS if each in hint]
    if not named:
        return hint
    return f'{hint}; with format("outbox") give it as an option: ' + ", ".join(
        f'.option("{each}", ...)' for each in named
    )
