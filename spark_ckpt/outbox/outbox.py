"""`Outbox`: exactly-once output, to several sinks, from a query that exists already."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import replace
from textwrap import indent
from typing import TYPE_CHECKING, NoReturn

from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException

from spark_ckpt.config import DurationText, checked_duration_ms
from spark_ckpt.connector import Sink, SinkRows
from spark_ckpt.connector_parts.arguments import checks_arguments
from spark_ckpt.epochs.identity import Confirmed
from spark_ckpt.epochs.names import valid_name
from spark_ckpt.errors import BatchUnexpected, CkptError, ConfigInvalid, QueryForeign, SinkInvalid
from spark_ckpt.outbox.advice import of_outbox
from spark_ckpt.outbox.checkpoint import checkpoint_location
from spark_ckpt.outbox.events import OutboxEvents, check_lineage, check_metrics, metrics_listeners
from spark_ckpt.outbox.rule import NO_CHANGES, Accepted, owners
from spark_ckpt.outbox.running import OutboxRun, OutboxSettings
from spark_ckpt.outbox.staging import FrameBatch, checked_schema
from spark_ckpt.place import local_path
from spark_ckpt.program_edges.sink import EdgeSink
from spark_ckpt.spark_internals.batch_action import Interrupted, leave_interruptions_out_of_the_log
from spark_ckpt.spark_internals.writers import checkpoint_of, dataframe_of, function_of, output_mode_of, runs_remotely
from spark_ckpt.store.schemes import store_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from spark_ckpt.epochs.log_state import LogState
    from spark_ckpt.events.listener import RunListener
    from spark_ckpt.spark_internals.writers import Writer
    from spark_ckpt.store.store import Store


_ELSEWHERE = {
    "checkpointLocation": "write checkpoint=",
    "sink": 'write sinks={"gold": DeltaSink(table)}',
    "interval": 'the query\'s trigger decides: out.start(df.writeStream.trigger(processingTime="5 seconds"))',
}


@checks_arguments(_ELSEWHERE)
class Outbox:
    """Output of one plain streaming query: every row exactly once in each of its sinks.

    ```python
    out = ckpt.Outbox("stores/orders", name="orders", checkpoint="checkpoints/orders", sinks={"gold": DeltaSink("gold")})
    query = out.start(df.writeStream)
    ```

    Each micro-batch runs as one action. Tasks stage the rows of every sink; one commit in the outbox's store decides;
    then every sink publishes. After a crash Spark runs the batch again: the outbox runs its plan, discards its rows and
    publishes what was decided.

    - `store`: a folder or object-store URL that belongs to this outbox alone.
    - `checkpoint`: the query's checkpoint; an existing one is continued. `format("outbox")` takes the writer's own.
    - `sinks`: by name, a sink or the sink's `rows(...)`: columns and a filter in SQL.
    - `storage_options`: for store and checkpoint in an object store, as deltalake takes them.
    - `keep_epochs`: batches that the outbox keeps, so that the query can be rewound. Spark's default is 100.
    - `overlap`: publish a batch while Spark runs the next one. Batches take less time; a batch is public after Spark has
      committed it, and `close` waits for the last one. Not through Spark Connect.
    - `metrics`: places for metrics: "prometheus", "prometheus://HOST:PORT", "otel", or several of them.
    - `lineage`: namespace of the outbox in OpenLineage events, which the client's own settings direct.
    - `publish_timeout`: time for all attempts of one publish, e.g. "2 minutes". After it the query ends; the batch is
      decided, and the next start publishes it.

    One driver at a time: a second one that starts wins, and the query of the first ends with `CKPT_FENCED`.
    Source: two-phase commit and replay, seed 001.
    """

    def __init__(
        self,
        store: str,
        *,
        name: str,
        checkpoint: str | None = None,
        sinks: Mapping[str, Sink | SinkRows],
        storage_options: Mapping[str, str] | None = None,
        keep_epochs: int = 100,
        publish_timeout: DurationText = "2 minutes",
        overlap: bool = False,
        metrics: str | Collection[str] = (),
        lineage: str | None = None,
    ) -> None:
        if not sinks:
            raise ConfigInvalid("an outbox needs a sink", hint='Outbox(..., sinks={"gold": DeltaSink(table)})')
        if keep_epochs < 2:
            raise ConfigInvalid(f"keep_epochs is at least 2, not {keep_epochs}")
        options = dict(storage_options or {})
        self._settings = OutboxSettings(
            store=store_location(store, options).uri,
            name=valid_name("outbox", name),
            checkpoint="" if checkpoint is None else _absolute(checkpoint, options),
            sinks={valid_name("sink", sink): _rows(sink, rows) for sink, rows in sinks.items()},
            storage_options=options,
            keep_epochs=keep_epochs,
            publish_timeout_ms=checked_duration_ms("publish_timeout", publish_timeout),
            overlap=overlap,
            metrics=check_metrics(_targets(metrics)),
            lineage=check_lineage(lineage),
        )
        self._listeners: list[RunListener] = []
        self._function: BatchFunction | None = None

    def explain(self) -> None:
        """Print the outbox: its store, the query's checkpoint, and the rows and place of each sink."""
        settings = self._settings
        checkpoint = settings.checkpoint or "the query's own"
        print(f"outbox {settings.name}\n  store       {settings.store}\n  checkpoint  {checkpoint}")
        for name, rows in settings.sinks.items():
            print(f"  sink {name}\n{indent(_described(rows), '    ')}")

    def addListener(self, listener: RunListener) -> None:
        """Add a listener that receives the outbox's epochs and batches. A Connect client has no listeners: use metrics."""
        self._listeners.append(listener)

    def start(
        self,
        writer: Writer,
        *,
        restore: int | None = None,
        accept_query: str = "",
        accept_new_sink: str | Collection[str] = (),
        accept_moved: str | Collection[str] = (),
    ) -> StreamingQuery:
        """Start the query of `writer` and return it. Sets its checkpoint and its function; triggers stay as they are.

        The other parameters confirm changes, by the names that an error gives:

        - `restore`: epoch to continue from, after the query was rewound by hand.
        - `accept_query`: id of a query that continues the outbox of another one.
        - `accept_new_sink`: sinks that are other tables or topics now. `accept_moved`: the same ones at another path.

        Raises `ConfigInvalid` for output mode "complete" or a writer that has another function or checkpoint,
        `SinkInvalid` for rows that the query cannot compute or that a sink does not take, `QueryForeign`,
        `StoreForeign`. Errors of a batch end the query; `exception()` has the newest one.
        """
        self._refuse_unfit(writer)
        # An outbox for the format takes the writer's checkpoint and has none of its own: this raises for it.
        checkpoint_location(self._settings.checkpoint, {})
        _refuse_others(writer, self._settings)
        settings = self.confirmed(restore, accept_query, accept_new_sink, accept_moved)
        # A Connect client may not see the store; the server's process compares at the first batch.
        remote = runs_remotely()
        with suppress(CkptError):  # of the run before; what it left unpublished follows
            self.close()
        store: Store | None = None
        if remote:
            self._refuse_remote()
        else:
            store = settings.opened()
            _refuse_foreign(settings, store.log.state())
        frame = dataframe_of(writer)
        if frame is not None:
            _check_rows(settings, frame, asks_sinks=not remote)  # a Connect client may not reach their systems
        function = self._function = BatchFunction(settings, store)
        if not remote:
            # Metrics are served from the start, so that a port in use is an error of this call.
            function.listeners = [*self._listeners, *metrics_listeners(settings.metrics, settings.name)]
            if frame is not None:
                function.recover(frame)  # before the query starts: its first call begins an incarnation, too
            leave_interruptions_out_of_the_log()
        query = _started(writer.option("checkpointLocation", settings.checkpoint).foreachBatch(function))
        if not remote:
            function.query = query
        return query

    def _refuse_unfit(self, writer: Writer) -> None:
        if not hasattr(writer, "foreachBatch"):
            raise ConfigInvalid(
                f"start takes a query's writer, not {type(writer).__name__}", hint="out.start(frame.writeStream)"
            )
        # A second start would close the publishers of the running query, and fence it.
        self._refuse_running("; a query of its own needs an outbox of its own")
        if output_mode_of(writer) == "complete":
            refuse_complete()

    def _refuse_running(self, further: str = "") -> None:
        query = None if self._function is None else self._function.query
        if query is not None and query.isActive:
            raise ConfigInvalid(
                f"the query of outbox '{self._settings.name}' is running",
                hint=f"stop it first: query.stop(){further}",
            )

    def _refuse_remote(self) -> None:
        """Raise `ConfigInvalid` for what needs the process of the query's driver."""
        if self._listeners:
            raise ConfigInvalid("a listener does not reach a Connect server", hint="use Outbox(..., metrics=...)")
        if self._settings.overlap:
            # A server ends the function's process with the query, and the last publish with it.
            raise ConfigInvalid(
                "overlap needs a classic session", hint="take overlap=True out, or start without Connect"
            )

    def confirmed(
        self,
        restore: int | str | None,
        accept_query: str,
        accept_new_sink: str | Collection[str],
        accept_moved: str | Collection[str],
        checkpoint: str | None = None,
    ) -> OutboxSettings:
        """Return the settings of one start. For parameters see `start`; `checkpoint` replaces the outbox's own."""
        confirmed = Confirmed(new_sinks=_names(accept_new_sink), moved=_names(accept_moved))
        settings = replace(self._settings, accepted=Accepted(accept_query, _epoch(restore)), confirmed=confirmed)
        if checkpoint is None:
            return settings
        return replace(settings, checkpoint=_absolute(checkpoint, dict(settings.storage_options)))

    def exception(self) -> CkptError | None:
        """Return the typed error that ended the query; None without one, and in a Connect client."""
        return self._function.error if self._function is not None else None

    def close(self) -> None:
        """End the publishers of a query that has ended. Another `start` and the program's end do it, too.

        With `overlap` it waits for the last publish. Raises its error, and `ConfigInvalid` while the query runs.
        """
        self._refuse_running()
        if self._function is not None:
            self._function.close()


class BatchFunction:
    """The function of `foreachBatch`. Only its settings are pickled: each process opens the store by itself.

    - `store`: the open store; None to open it at the first batch.
    - `listeners`: None to make those of the settings at the first batch.
    - `query`: the running query, if this process has it.
    - `error`: ended the query.
    """

    def __init__(self, settings: OutboxSettings, store: Store | None = None) -> None:
        self._settings = settings
        self._store = store
        self._run: OutboxRun | None = None
        self.listeners: list[RunListener] | None = None
        self.query: StreamingQuery | None = None
        self.error: CkptError | None = None

    def __call__(self, frame: DataFrame, number: int) -> None:
        """Handle one micro-batch. Every error reaches Spark, which then does not commit the batch.

        Raises `Interrupted` in place of the errors that a stop of the query causes.
        """
        if self._run is None:
            # After an error the store is opened again: it may be another one by then.
            store, self._store = self._store, None
            self._run = OutboxRun(self._settings, self._events(), store)
        try:
            self._run.call(FrameBatch(frame, number))
        except BaseException as error:
            if isinstance(error, CkptError):
                self.error = error
                self._advise(error)
            elif isinstance(error, Exception) and self._is_stopped():
                # A stop cancels the batch's tasks, which is no failure: the next start runs the batch again.
                with suppress(CkptError):  # of the last publish; `error` has it
                    self.close()
                raise Interrupted from None
            self.close(error)
            raise

    def _is_stopped(self) -> bool:
        """Return true if the query that runs the batch was stopped; false if this process does not have the query."""
        try:
            return self.query is not None and not self.query.isActive
        except Py4JError:  # the JVM has ended
            return False

    def recover(self, frame: DataFrame) -> None:
        """Publish the epoch of a batch that Spark committed and a dead driver did not publish. `frame`: of the query."""
        # Changes are for the first incarnation of a run. This one would use them up before the first batch is judged.
        if self._settings.accepted != NO_CHANGES or self._settings.confirmed != Confirmed():
            return
        run = OutboxRun(self._settings, self._events(), self._store)
        try:
            run.recover(FrameBatch(frame, -1))  # no batch: the sinks get session and schema from it
        except BaseException as error:
            if isinstance(error, CkptError):
                self.error = error
                self._advise(error)
            run.close(error)
            raise
        run.close()

    def close(self, error: BaseException | None = None) -> None:
        """End the run. `error` has ended the query. Without one, raises the error of a publish under way."""
        run, self._run = self._run, None
        if run is None:
            return
        try:
            # An error of the query is the cause: that of its last publish would hide it.
            if error is None:
                run.finish()
        except CkptError as failed:
            self.error = error = failed
            raise
        finally:
            run.close(error)

    def _advise(self, error: CkptError) -> None:
        """Put an error's advice in terms of the outbox."""
        error.hint = of_outbox(error.hint, self._settings.log_state())
        if isinstance(error, QueryForeign | BatchUnexpected):
            error.context.setdefault("checkpoint", self._settings.checkpoint)

    def _events(self) -> OutboxEvents:
        settings = self._settings
        if self.listeners is None:
            self.listeners = metrics_listeners(settings.metrics, settings.name)
        return OutboxEvents(settings.name, self.listeners, settings.lineage, lambda: self.query)

    def __getstate__(self) -> OutboxSettings:
        return self._settings

    def __setstate__(self, settings: OutboxSettings) -> None:
        # A Connect server ends this process with the query: nothing may wait there.
        self.__init__(replace(settings, ack_wait_ms=0))  # type: ignore[misc]


def _described(rows: SinkRows) -> str:
    columns = [*rows.columns, *(f"{expression} AS {name}" for name, expression in rows.named.items())] or [
        "every column"
    ]
    place = ", ".join(f"{key} {value}" for key, value in rows.sink.describe().items())
    where = [] if rows.where is None else [f"where  {rows.where}"]
    return "\n".join([f"rows   {', '.join(columns)}", *where, f"to     {place}"])


def _rows(name: str, sink: Sink | SinkRows) -> SinkRows:
    rows = sink if isinstance(sink, SinkRows) else SinkRows(sink)
    if isinstance(rows.sink, EdgeSink):
        raise ConfigInvalid(
            f"'{name}' is an edge, which is between jobs", hint="write to a table or a topic, or make it a job"
        )
    if not isinstance(rows.sink, Sink):
        raise ConfigInvalid(f"'{name}' is no sink", hint="give a sink object, e.g. DeltaSink(table) or KafkaSink(...)")
    return rows


def _absolute(checkpoint: str, options: dict[str, str]) -> str:
    # Absolute: Spark's processes may run in another folder.
    location = checkpoint_location(checkpoint, options)
    return location.uri if local_path(checkpoint) is not None else checkpoint


def _epoch(restore: int | str | None) -> int | None:
    """Return the number of an epoch, which an option or a command line has as a text. Raises `ConfigInvalid`."""
    if isinstance(restore, str) and restore.isascii() and restore.isdigit():
        return int(restore)
    if isinstance(restore, str | bool):
        raise ConfigInvalid(
            f"restore is the number of an epoch, not {restore!r}", hint="`spark-ckpt list STORE` has the numbers"
        )
    return restore


def _targets(metrics: str | Collection[str]) -> tuple[str, ...]:
    each = metrics.split(",") if isinstance(metrics, str) else metrics
    return tuple(target.strip() for target in each if target.strip())


def _names(names: str | Collection[str]) -> frozenset[str]:
    return frozenset((names,) if isinstance(names, str) else names)


_UPDATE = 'outputMode("update"), with a sink that merges by key: DeltaSink(..., engine="spark", keys=[...])'


def refuse_complete(*, by_format: bool = False) -> NoReturn:
    """Raise the error of a query in output mode complete. `by_format`: it writes with `format("outbox")`."""
    raise ConfigInvalid(
        "in output mode complete every batch has the whole result, and a sink would get all of it again",
        # Spark refuses update for a data source in Python, and the format has no session for that sink.
        hint=f"start the query with Outbox.start(writer), and use {_UPDATE}" if by_format else f"use {_UPDATE}",
    )


def _refuse_others(writer: Writer, settings: OutboxSettings) -> None:
    """Raise `ConfigInvalid` for a writer with a function or a checkpoint that the outbox would replace."""
    if (function := function_of(writer)) is not None:
        raise ConfigInvalid(
            f"the writer has a function: {function}; an outbox takes its place",
            hint="give out.start a writer without one: out.start(df.writeStream); what the function did is the work of sinks",
        )
    given = checkpoint_of(writer)
    if given is not None and _absolute(given, dict(settings.storage_options)) != settings.checkpoint:
        raise ConfigInvalid(
            f"the writer has the checkpoint {given}, and the outbox another one",
            checkpoint=settings.checkpoint,
            hint="name the query's checkpoint once: Outbox(..., checkpoint=...), and no option checkpointLocation",
        )


def _check_rows(settings: OutboxSettings, frame: DataFrame, asks_sinks: bool) -> None:
    """Raise `SinkInvalid` for SQL that does not fit the query's columns. `asks_sinks`: sinks compare their schema, too."""
    for name, rows in settings.sinks.items():
        try:
            schema = checked_schema(frame, rows)
        except AnalysisException as error:
            raise SinkInvalid(
                f"the rows of sink '{name}' cannot be computed: {str(error).splitlines()[0]}",
                sink=name,
                hint=f"correct .rows(...) of this sink; the query has the columns {', '.join(frame.columns)}",
            ) from error
        if asks_sinks:
            rows.sink.check(frame.sparkSession, schema)


_ENDED = ("stopped SparkContext", "RpcEnv has been stopped")
"""Spark's texts for a session that has ended; the second one if the session ran a query with state before."""


def _started(writer: Writer) -> StreamingQuery:
    try:
        return writer.start()
    except Py4JError as error:
        if not any(text in str(error) for text in _ENDED):
            raise
        raise ConfigInvalid(
            "the session of this query has ended",
            hint="make the session and the DataFrame again, and give out.start its writeStream",
        ) from error


def _refuse_foreign(settings: OutboxSettings, log_state: LogState) -> None:
    """Raise `QueryForeign` before the query starts, if its checkpoint belongs to another query."""
    query, known = settings.checkpoint_files().query(), owners(log_state)
    # A named epoch is judged with the first batch: the query may have had the outbox before.
    confirmed = settings.accepted.query == query or settings.accepted.restore is not None
    if query is None or not known or query in known or confirmed:
        return
    raise QueryForeign(
        f"outbox '{settings.name}' belongs to query {known[0]}, and the checkpoint is of query {query}",
        checkpoint=settings.checkpoint,
        hint="give the query's own checkpoint; if this query is to continue the outbox, start it with "
        f"accept_query='{query}': rows of input that the other query has read come again if this one reads it, too",
    )
