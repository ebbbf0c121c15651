"""A job: sources, streams, keyed operators, sinks, and a store; `start` runs it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import partial
from itertools import chain, count
from typing import TYPE_CHECKING, NoReturn, Unpack

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from checkpoint_protocols.ids import Epoch
from spark_ckpt.api.elsewhere import not_on_job
from spark_ckpt.api.feedback import Feedback
from spark_ckpt.api.grouped import CoGroupedStreams, GroupedStream
from spark_ckpt.api.stages import check_stages, confirmed_in, join_stages, opened_stages
from spark_ckpt.api.stream import Stream
from spark_ckpt.config import JobConfig, JobSettings, checked_duration_ms
from spark_ckpt.connector import KnowsColumns, Sink, Source
from spark_ckpt.coordination.stage_process import Between
from spark_ckpt.driver.index_keeper import check_index
from spark_ckpt.driver.job_plan import JobPlan, check_graph, planned
from spark_ckpt.driver.query.warm_up import check_workers, warm_up
from spark_ckpt.driver.run import Run
from spark_ckpt.driver.stages_run import StagesRun, StartStage, checked_starts
from spark_ckpt.epochs.identity import Confirmed
from spark_ckpt.epochs.names import valid_name
from spark_ckpt.epochs.partial_recovery import of_stage
from spark_ckpt.errors import ConfigInvalid, GraphInvalid, SinkInvalid, SourceInvalid
from spark_ckpt.events.listener import RunListener
from spark_ckpt.observability.companions import companions_of, listeners_of, page_of
from spark_ckpt.plan.graph import EdgeBinding, EdgeNode, Node, SinkBinding, SourceNode, struct_of
from spark_ckpt.plan.graph_text import graph_text
from spark_ckpt.plan.stages import StageGraph, StageInput, chosen_stages, cut, loops_over_stages, parses
from spark_ckpt.program_edges.sink import EdgeSink
from spark_ckpt.program_edges.source import EdgeSource
from spark_ckpt.spark_internals.jvm import activate
from spark_ckpt.spark_internals.plans import streaming_template
from spark_ckpt.spark_internals.settings import unfit_setting
from spark_ckpt.spark_versions import require_spark_of_jobs
from spark_ckpt.store.schemes import store_location
from spark_ckpt.store.store import Store
from spark_ckpt.tasks.rejects import REJECTED, REJECTED_SCHEMA
from spark_ckpt.tasks.rows import check_stageable

LATEST = "latest"
_SOURCES = "give a source object, for example FilesSource(path, format, schema), DeltaSource(table) or KafkaSource(...)"
_SINKS = "give a sink object, for example DeltaSink(table) or KafkaSink(...)"


class Job:
    """Describes one streaming job. `store` is a folder or an object-store URL that belongs to this job alone.

    Every setting (`interval="5 seconds"`, `key_groups=16`, ...; see `spark_ckpt.config.JobConfig`) may also be given as
    a `spark.ckpt.*` conf key.

    `protocol`: the protocol with the programs that edges join to this one. With "independent" each program takes its own
    epochs, and `spark-ckpt line` finds their consistent cuts. With "index" cuts have names that all programs share,
    `line-N`, a new one every `line_interval`. Inside a job epochs are cut by barriers. With "unaligned" and "aligned" the
    sinks of all stages of the program (`start_stages`) publish a line once every stage serves it; "aligned" lines have
    nothing in flight.

    Raises:

    - `ConfigInvalid` for unknown or invalid settings, and for a session setting that a job cannot run with.
    - `GraphInvalid` for an unknown protocol.
    """

    def __init__(
        self,
        spark: SparkSession,
        name: str,
        store: str,
        storage_options: dict[str, str] | None = None,
        protocol: str = Between.INDEPENDENT,
        **settings: Unpack[JobSettings],
    ) -> None:
        require_spark_of_jobs("ckpt.Job")
        self.spark = spark
        self.name = valid_name("job", name)
        self.store = store
        store_location(store)  # raises here for a bad place, and not at the start
        self._storage_options = dict(storage_options or {})
        # the session's conf overrides the application's
        self._config = JobConfig.of(settings, dict(spark.sparkContext.getConf().getAll()) | _session_conf(spark))
        self._sources: dict[str, SourceNode] = {}
        self._bindings: dict[str, SinkBinding] = {}
        self._operators: set[str] = set()
        self._edges: dict[str, EdgeBinding | None] = {}
        self._stage_inputs: list[StageInput] = []
        self._rejects: Sink | None = None
        self._listeners: list[RunListener] = []
        if (setting := unfit_setting(spark)) is not None:
            raise ConfigInvalid(
                f"the session has {setting}=true: Spark wants a name for each source of a query, and a job names its own",
                hint=f'spark.conf.set("{setting}", "false") before the job; start other queries with it from spark.newSession()',
                setting=setting,
            )
        # early: Python workers start while the program describes its job
        warm_up(spark)
        # "barrier" is the protocol inside of a job.
        known = [*Between, "barrier"]
        if protocol not in known:
            raise GraphInvalid(f"protocol '{protocol}' does not run on Spark", hint=f"protocols: {', '.join(Between)}")
        self._between = Between.INDEPENDENT if protocol == "barrier" else Between(protocol)

    @property
    def config(self) -> JobConfig:
        """The effective settings."""
        return self._config

    if not TYPE_CHECKING:  # type checkers see the defined attributes only

        def __getattr__(self, name: str) -> NoReturn:
            raise not_on_job(name, type(self))

    def source(self, name: str, source: Source) -> Stream:
        """Add a named input. The name identifies its cursor in the store. The source is checked immediately.

        Raises `GraphInvalid` for a second source of the same name, `SourceInvalid` for an object that is no source.
        """
        valid_name("source", name)
        if name in self._sources:
            raise GraphInvalid(f"there are two sources named '{name}'", hint="give each source a name of its own")
        if isinstance(source, type) or not isinstance(source, Source):
            raise SourceInvalid(_no_connector(source, Source), source=name, hint=_SOURCES)
        if self._between.indexed and isinstance(source, EdgeSource):
            source.wait_for_index_of(self.store, self._storage_options)
        source.check(self.spark)
        schema = self._schema(source)
        node = self._sources[name] = SourceNode(name, source, schema)
        return Stream(self, node, streaming_template(self.spark, schema))

    def feedback(self, name: str, schema: StructType | str) -> Feedback:
        """Open a loop: the rows that its `close(stream)` accepts come out of it, one micro-batch later.

        The rows in the loop at a barrier are part of the epoch, so a restart continues with them. `name` identifies the
        loop in the store.
        """
        return Feedback(self, EdgeNode(self._edge_name(name), struct_of(schema).toNullable(), feedback=True))

    def cogroup(self, inputs: Mapping[str, GroupedStream]) -> CoGroupedStreams:
        """Combine several streams in one operator, which gets each stream's rows by name and has one state per key.

        Example: `job.cogroup({"orders": orders.groupBy("id"), "payments": payments.groupBy("order_id")})`. The keys'
        types agree, column by column. In state and output they have the names of the first input. Raises
        `GraphInvalid`.
        """
        return CoGroupedStreams(inputs)

    def rejectsTo(self, sink: Sink) -> None:
        """Write records that cannot be parsed to a side table, exactly once: columns reason, position, record."""
        # the sink is bound in `plan`, so that the call order of rejectsTo and to() does not matter
        self._rejects = _checked_sink(sink)
        if isinstance(sink, EdgeSink):
            sink.named(REJECTED)

    def addListener(self, listener: RunListener) -> None:
        """Add a listener that receives the job's epochs while it runs."""
        self._listeners.append(listener)

    def explain(self) -> None:
        """Print the graph: the rows of every sink, down to the sources."""
        print(graph_text(self.name, list(self._bindings.values()), self._closed_edges()))

    def start(
        self,
        restore: str | int | Epoch = LATEST,
        availableNow: bool = False,
        accept_new_sink: str | Sequence[str] = (),
        accept_new_source: str | Sequence[str] = (),
        accept_moved: str | Sequence[str] = (),
        accept_dropped_operator: str | Sequence[str] = (),
        accept_dropped_source: str | Sequence[str] = (),
        accept_lost_rows: str | Sequence[str] = (),
        standby: bool | None = None,
        ui: bool | str | None = None,
    ) -> Run:
        """Start the job from its newest epoch, an epoch number, or a savepoint's name.

        A new store begins at the sources' starts.

        - `availableNow`: drain the rows that the sources hold now, end with a committed and published epoch, and stop.
        - `accept_new_sink`, `accept_new_source`, `accept_moved`: names of sinks and sources whose endpoint changed:
          another table, topic or folder than before. Without them the start raises `IdentityChanged`. A new sink gets
          all later rows. A new source is read from its start. A moved endpoint is the same one at another path.
        - `accept_dropped_operator`: names of operators that have state in the epoch and are no longer in the job. The
          job continues without their state; without the name the start is refused likewise.
        - `accept_dropped_source`: names of sources that the epoch has read and that are no longer in the job.
        - `accept_lost_rows`: names of sources that no longer have rows which the job has not read. The job keeps its
          state, and each of them continues at its first row behind the lost ones; otherwise the start raises `RowsLost`.
        - `standby` (default: the setting of this name): if another driver runs the job, wait warm for its end and take
          over. The run is returned immediately.
        - `ui` (default: the setting of this name): the driver serves the job's page, with `True` at `127.0.0.1:4141`,
          or at an address.

        Checks everything first and raises `GraphInvalid`, `SourceInvalid`, `SinkInvalid`, `StoreInUse`, `EpochNotFound`
        and others.
        """
        dropped = accept_dropped_operator, accept_dropped_source
        confirmed = self._confirmed(accept_new_sink, accept_new_source, accept_moved, *dropped, accept_lost_rows)
        stands_by = self._config.standby if standby is None else standby
        if stands_by:
            self._check_standby(restore, availableNow)
        plan = replace(self.plan(restore, confirmed), config=self._config.with_page(ui))
        return self._ready(plan, restore, availableNow, stands_by)(())

    def start_stages(
        self,
        stages: str | Sequence[str] = (),
        restore: str | int | Epoch = LATEST,
        availableNow: bool = False,
        accept_new_sink: str | Sequence[str] = (),
        accept_new_source: str | Sequence[str] = (),
        accept_moved: str | Sequence[str] = (),
        accept_dropped_operator: str | Sequence[str] = (),
        accept_dropped_source: str | Sequence[str] = (),
        accept_lost_rows: str | Sequence[str] = (),
        ui: bool | str | None = None,
    ) -> StagesRun:
        """Start stages of the program: those of `stages`, or of the setting of this name, or all of them.

        `through(..., stage=...)` ends a stage. Each is a query with epochs and failures of its own, and has its store
        in the folder `store`: `store/main`, `store/model`. Start the same program with other stages on another machine,
        in any order. The parameters are those of `start`; `restore` is for one stage alone
        (`spark-ckpt restore STORE --to LINE` restores all of them). `availableNow` drains one stage after the other.
        The page of `ui` shows all stages of the program.

        Raises, besides the errors of `start`, `GraphInvalid` for an unknown stage, `StoreInUse` for a stage that
        another process runs.
        """
        dropped = accept_dropped_operator, accept_dropped_source
        confirmed = self._confirmed(accept_new_sink, accept_new_source, accept_moved, *dropped, accept_lost_rows)
        graphs = self._stage_graphs()
        # a feedback may feed itself through other stages, which the graph of one stage does not show
        loops = loops_over_stages(list(self._bindings.values()), self._closed_edges(), self._stage_inputs)
        chosen = chosen_stages(graphs, ([stages] if isinstance(stages, str) else stages) or self._config.stages)
        check_stages(chosen, graphs, self._between, restore != LATEST, availableNow)
        # also those of stages that other processes run: a stage reads the stores of its senders
        stores = opened_stages(self.name, self.store, self._storage_options, graphs, chosen)

        def ready(graph: StageGraph) -> StartStage:
            # before the plan, whose checks ask each input about its sender
            join_stages(graph, stores, self._between.indexed)
            # a handle of its own: those in `stores` serve the page and the watch over all stages
            own = confirmed_in(graph.name, graphs, chosen, confirmed)
            plan = self._planned(graph.bindings, graph.edges, stores[graph.name].reopened, restore, own, loops)
            plan = replace(plan, stage_stores=tuple(stores.values()))
            return self._ready(plan, restore, availableNow, self._config.standby)

        starts = checked_starts({name: partial(ready, graph) for name, graph in chosen.items()}, availableNow)
        companions = [page_of(self.name, list(stores.values()), at)] if (at := self._config.with_page(ui).ui) else []
        return StagesRun.start(self.name, stores, starts, availableNow, companions)

    def _ready(self, plan: JobPlan, restore: str | int | Epoch, available_now: bool, stands_by: bool) -> StartStage:
        """Return the start of a checked plan."""
        if available_now:
            # a source without an end would never drain
            plan.check_ends()

        def start(further: Sequence[RunListener]) -> Run:
            listeners = [*self._listeners, *further, *listeners_of(plan)]
            return Run.start(plan, restore, available_now, listeners, companions_of, stands_by)

        return start

    def plan(self, restore: str | int | Epoch = LATEST, confirmed: Confirmed | None = None) -> JobPlan:
        """Return everything that a run needs, checked against workers, sources, sinks and store."""
        if self._stage_inputs:
            raise GraphInvalid(
                f"job '{self.name}' has stages: {', '.join(self._stage_graphs())}",
                hint="job.start_stages() runs all of them in this process; one is started by "
                + of_stage((confirmed or Confirmed()).call(restore), "NAME"),
            )
        if self._between.decides_lines:
            raise GraphInvalid(
                f"protocol=\"{self._between}\" is for the stages of one program, and job '{self.name}' has none",
                hint="leave protocol out; or end a stage: stream.through('NAME', stage='NAME')",
            )
        bindings = self._with_rejects(list(self._bindings.values()))
        open_store = partial(Store.open, self.store, self.name, self._storage_options)
        return self._planned(bindings, self._closed_edges(), open_store, restore, confirmed)

    def _planned(
        self,
        bindings: Sequence[SinkBinding],
        edges: Sequence[EdgeBinding],
        open_store: Callable[[], Store],
        restore: str | int | Epoch,
        confirmed: Confirmed | None,
        over_stages: AbstractSet[str] = frozenset(),
    ) -> JobPlan:
        # Workers first: with broken ones a source in Python fails its check, and the error would name the source.
        check_workers(self.spark)
        check_graph(bindings, edges, over_stages)
        for binding in bindings:
            binding.sink.check(self.spark, binding.schema)
        store = open_store()  # after the checks, since it creates a missing store
        plan = planned(self.spark, store.job, self._config, store, bindings, edges, restore, confirmed)
        plan = replace(plan, between=self._between)
        if plan.between.indexed:
            check_index(plan)
        return plan

    def _with_rejects(self, bindings: list[SinkBinding]) -> list[SinkBinding]:
        if self._rejects is not None and bindings:
            # any node: rows are diverted to this sink wherever they are parsed, and no stream ends in it
            return [*bindings, SinkBinding(REJECTED, self._rejects, bindings[0].node, REJECTED_SCHEMA)]
        return bindings

    def _stage_graphs(self) -> dict[str, StageGraph]:
        """Return the stages of the program, senders first. Raises `GraphInvalid`."""
        if not self._stage_inputs:
            raise GraphInvalid(
                f"job '{self.name}' has no stages",
                hint="job.start() runs it; stream.through('NAME', stage='NAME') ends a stage and begins another",
            )
        graphs = cut(list(self._bindings.values()), self._closed_edges(), self._stage_inputs)
        if self._rejects is None:
            return graphs
        parsing = [name for name, graph in graphs.items() if parses(graph)]
        if len(parsing) > 1:
            raise GraphInvalid(
                f"stages {', '.join(parsing)} parse records, and rejectsTo is one table",
                hint="parse all records in one stage",
            )
        # where records are parsed; if nowhere, any stage may have the empty table
        name = next(iter(parsing), next(iter(graphs)))
        with_rejects = replace(graphs[name], bindings=tuple(self._with_rejects(list(graphs[name].bindings))))
        return {**graphs, name: with_rejects}

    def _schema(self, source: Source) -> StructType:
        # Spark looks for the name of a new Python source in the active session, and refuses one that another job's session has.
        activate(self.spark)
        try:
            if isinstance(source, KnowsColumns):
                return source.columns(self.spark)
            return source.read(self.spark, source.start(self.spark)).schema
        except (PySparkException, Py4JError):
            # The workers run sources in Python: if they are at fault, this raises first.
            check_workers(self.spark)
            raise

    def _check_standby(self, restore: str | int | Epoch, available_now: bool) -> None:
        """Refuse settings that conflict with a standby, which continues from the other driver's end."""
        wrong = {"restore": restore != LATEST, "availableNow": available_now, "takeover": self._config.takeover}
        for name in (name for name, given in wrong.items() if given):
            raise ConfigInvalid(f"a standby takes no {name}", hint="start without standby=True, or leave it out")

    # -- for streams ----------------------------------------------------------------------------------------------------

    def _confirmed(self, *given: str | Sequence[str]) -> Confirmed:
        """Return the confirmations of a start and of the settings. `given`: names for each field of `Confirmed`, in order."""
        config = self._config
        settings = (
            config.accept_new_sink,
            config.accept_new_source,
            config.accept_moved,
            config.accept_dropped_operator,
            config.accept_dropped_source,
            config.accept_lost_rows,
        )
        return Confirmed(*(_names(names) | set(more) for names, more in zip(given, settings, strict=True)))

    def _bind(self, sink: Sink, node: Node, schema: StructType, name: str | None, publish_every: object = None) -> None:
        _checked_sink(sink)
        # an edge has a name of its own, by which readers find it
        known = sink.named(name) if isinstance(sink, EdgeSink) else name or sink.describe().get("kind", "sink")
        chosen = valid_name("sink", known)
        if chosen == REJECTED:
            raise GraphInvalid(f"'{REJECTED}' is the name of the side output", hint="give the sink another name")
        if chosen in self._bindings:
            raise GraphInvalid(
                f"there are two sinks named '{chosen}'",
                hint=f'the name identifies a sink in the store: to(sink, name="{_proposed_name(sink, self._bindings)}")',
            )
        every_ms = (
            checked_duration_ms(f"publish_every of sink '{chosen}'", publish_every)
            if publish_every is not None
            else None
        )
        self._bindings[chosen] = SinkBinding(chosen, sink, node, schema, every_ms)

    def _bind_stage(self, name: str, stage: str, node: Node, schema: StructType) -> SourceNode:
        """End a stage at `node`: its rows go into edge `name`. Return the source that stage `stage` reads."""
        valid_name("stage", stage)
        if name in self._sources or name in self._edges:
            raise GraphInvalid(f"'{name}' names a source or an edge already", hint="give the edge a name of its own")
        self._bind(EdgeSink(name), node, schema, None)
        # The sending stage, whose store this is, is known at the start.
        source = self._sources[name] = SourceNode(name, EdgeSource(name, self.store), schema.toNullable())
        self._stage_inputs.append(StageInput(stage, source))
        return source

    def _edge_name(self, name: str) -> str:
        if name in self._edges:
            raise GraphInvalid(
                f"there are two edges named '{name}'", hint="give each feedback and edge a name of its own"
            )
        # open until `_bind_edge`; a start refuses open edges
        self._edges[valid_name("edge", name)] = None
        return name

    def _bind_edge(self, edge: EdgeNode, node: Node) -> None:
        check_stageable(edge.schema, f"edge '{edge.name}'")
        self._edges[edge.name] = EdgeBinding(edge, node)

    def _closed_edges(self) -> list[EdgeBinding]:
        open_ones = [name for name, binding in self._edges.items() if binding is None]
        if open_ones:
            raise GraphInvalid(f"nothing goes into feedback '{open_ones[0]}'", hint="close it: feedback.close(stream)")
        return [binding for binding in self._edges.values() if binding]

    def _operator_name(self, name: str, keys: Sequence[str] = ()) -> str:
        if name in self._operators:
            proposed = _free_name("-by-".join([name, *keys[:1]]), self._operators)
            raise GraphInvalid(
                f"there are two operators named '{name}'",
                hint=f'the name identifies an operator\'s state in the store: name="{proposed}"',
            )
        self._operators.add(valid_name("operator", name))
        return name


def _names(given: str | Sequence[str]) -> frozenset[str]:
    return frozenset([given] if isinstance(given, str) else given)


def _checked_sink(sink: Sink) -> Sink:
    if isinstance(sink, type) or not isinstance(sink, Sink):
        raise SinkInvalid(_no_connector(sink, Sink), hint=_SINKS)
    return sink


def _proposed_name(sink: Sink, taken: Collection[str]) -> str:
    """Return a name for a second sink of a kind: the last part of its table, or its topic."""
    described = sink.describe()
    place = next((described[part] for part in ("table", "path", "topic") if described.get(part)), "")
    return _free_name(place.rstrip("/").rpartition("/")[2] or described.get("kind", "sink"), taken)


def _free_name(wanted: str, taken: Collection[str]) -> str:
    plain = re.sub(r"[^A-Za-z0-9._-]+", "-", wanted).strip("-._") or "second"
    return next(name for name in chain([plain], (f"{plain}-{number}" for number in count(2))) if name not in taken)


def _no_connector(given: object, protocol: type) -> str:
    """Return the reason that an object is no connector: it is something else, or it lacks methods."""
    what = protocol.__name__.lower()
    methods = [name for name, value in vars(protocol).items() if callable(value) and not name.startswith("_")]
    missing = [name for name in methods if not hasattr(given, name)]
    if isinstance(given, type) or missing == methods:
        return f"{given!r} is no {what}"
    return f"{type(given).__name__} is no {what}: it has no {', '.join(missing)}"


def _session_conf(spark: SparkSession) -> dict[str, str]:
    everything = spark.conf.getAll
    return {key: value for key, value in everything.items() if value is not None}
