"""A job, checked and resolved for a run; the same for all its incarnations."""

from __future__ import annotations

import logging
import shlex
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from pathlib import Path

from pyspark.sql import SparkSession

from spark_ckpt.config import JobConfig
from spark_ckpt.connector import CostlyCommits, Cursor, KnowsColumns, MayNeverEnd, SendsEarly, StagePlan
from spark_ckpt.coordination.job_shape import EdgeShape, JobShape, Limits, OperatorShape, SinkPlace
from spark_ckpt.coordination.manifests import SPARK_OPERATORS
from spark_ckpt.coordination.stage_process import Between
from spark_ckpt.coordination.standby import renewal_ms
from spark_ckpt.driver.query.inputs import check_inputs, remember_in, skip_lost, with_source
from spark_ckpt.driver.query.state_check import check_in_flight, check_spark_state, check_state
from spark_ckpt.endpoints import identities
from spark_ckpt.epochs.identity import Confirmed, Found, Standing, free_of
from spark_ckpt.epochs.parts import differing
from spark_ckpt.epochs.records import GraphNode, Manifest, OperatorSnapshot
from spark_ckpt.epochs.restore import LATEST, RestoreTarget, unpublished_rows
from spark_ckpt.epochs.ways_back import choice_unseen, whole_manifests
from spark_ckpt.errors import ConfigInvalid, GraphInvalid, RowsLost
from spark_ckpt.plan.graph import (
    EdgeBinding,
    EdgeNode,
    Mark,
    Node,
    OperatorNode,
    SinkBinding,
    SourceNode,
    check_complete,
    check_edges,
    complete_node,
    ddl,
    ends_of,
    graph_nodes,
    marks_of,
    operators_of,
    sources_of,
    spark_nodes_of,
)
from spark_ckpt.program_edges.sink import EdgeSink
from spark_ckpt.store.location import Location
from spark_ckpt.store.store import Store
from spark_ckpt.tasks.rejects import REJECTED
from spark_ckpt.tasks.rows import arrow_schema
from spark_ckpt.tasks.shuffle_keys import usual_key_groups
from spark_ckpt.tasks.staging import SinkStage

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One job, ready to run."""

    spark: SparkSession
    job: str
    config: JobConfig
    store: Store
    bindings: Sequence[SinkBinding]
    sources: Sequence[SourceNode]
    operators: Sequence[OperatorNode]
    parallelism: int
    stage_plans: Mapping[str, StagePlan]
    """Staging of each sink's rows, requested once: the sink may open or create its table for it."""
    found: Found = field(default_factory=Found)
    """Endpoints: the tables, topics and folders that the job's names refer to in this run."""
    confirmed: Confirmed = field(default_factory=Confirmed)
    edges: Sequence[EdgeBinding] = ()
    between: Between = Between.INDEPENDENT
    """The protocol with other programs, or stages."""
    stage_stores: Sequence[Store] = ()
    """Stores of all stages of the program, whose common decision sinks wait for; empty without stages."""

    @property
    def marks(self) -> list[Mark]:
        """Event times of the operators' inputs."""
        return marks_of(*self.operators)

    @property
    def spark_mode(self) -> str | None:
        """Output mode of Spark's own stateful operators; None for a job without them."""
        return next((node.output_mode for node in spark_nodes_of(*self.ends)), None)

    @property
    def ends(self) -> tuple[Node, ...]:
        """Streams that continue to no other sink or edge."""
        return _ends(self.bindings, self.edges)

    @property
    def graph(self) -> tuple[GraphNode, ...]:
        """Sources, operators, edges and sinks as names and arrows."""
        return graph_nodes(self.sources, self.operators, self.edges, self.bindings)

    @property
    def shuffle_partitions(self) -> int:
        """Number of tasks of each operator."""
        # Each task of an operator costs a batch about 0.1 s, so there are no more than run at a time.
        return self.config.shuffle_partitions or self.parallelism

    @property
    def cache(self) -> Path:
        """Folder for local levels of state, on every host."""
        # By the id of the store, since several jobs of a host may have one name.
        return (self.config.local_dir or Path(tempfile.gettempdir())) / f"spark-ckpt-{self.store.id}"

    def key_groups(self, base: Manifest) -> dict[str, int]:
        """Return each operator's number of key groups, which its first epoch fixed.

        Raises `ConfigInvalid` if the settings differ from it.
        """
        return {operator.name: self._key_groups(base.operators.get(operator.name)) for operator in self.operators}

    def _key_groups(self, snapshot: OperatorSnapshot | None) -> int:
        wanted = self.config.key_groups
        if snapshot is None:
            return wanted or usual_key_groups(self.parallelism)
        # A key's group is its hash modulo this number. With another one the keys would look for their state in other groups'
        # files.
        if wanted is not None and wanted != snapshot.key_groups:
            raise ConfigInvalid(
                f"operator '{snapshot.operator}' has {snapshot.key_groups} key groups in the store, the setting says {wanted}",
                hint=f"drop the setting, or repartition the state: spark-ckpt rescale {self.store.location.uri}"
                f" {snapshot.operator} --key-groups {wanted}",
            )
        return snapshot.key_groups

    def checkpoint(self, incarnation: int) -> Location:
        """Return the location of Spark's checkpoint for one incarnation.

        It is disposable, on a file system that driver and executors share.
        """
        # A fresh one for each: the offsets of an earlier incarnation may be of no epoch.
        return self.run_folder().child(str(incarnation), "stage")

    def run_folder(self) -> Location:
        """Return a folder for disposable files, on a file system that driver and executors share. Raises
        `ConfigInvalid`.
        """
        if self.config.run_dir is not None:
            # By the id of the store: jobs and stages may share the path, and each counts its incarnations from 1.
            return Location(self.config.run_dir).child(self.store.id)
        if self.store.location.local is not None:
            return self.store.location.child("runs")
        # Driver and tasks are on this host then, so any folder of it is shared.
        if str(self.spark.sparkContext.master).startswith("local["):
            return Location(str(self.cache.with_name(f"{self.cache.name}-runs")))
        raise ConfigInvalid(
            "a store in an object store needs a folder for Spark's own checkpoint on a cluster",
            hint='set run_dir="..." (spark.ckpt.run.dir) to a path that driver and executors share; its content is disposable',
        )

    def stages(self, incarnation: int) -> dict[Node, list[SinkStage]]:
        """Return the staging of all sinks and edges, by the stream that they receive; without the side output."""
        found: dict[Node, list[SinkStage]] = {}
        for binding in self.bindings:
            if binding.name != REJECTED:
                found.setdefault(binding.node, []).append(self._stage(binding, incarnation))
        for edge in self.edges:
            found.setdefault(edge.node, []).append(self._segments(edge.edge, incarnation))
        return found

    def rejected_stage(self, incarnation: int) -> SinkStage | None:
        """Return the staging of rejected records; None if the job discards them."""
        return next((self._stage(binding, incarnation) for binding in self.bindings if binding.name == REJECTED), None)

    def _stage(self, binding: SinkBinding, incarnation: int) -> SinkStage:
        plan = self.stage_plans[binding.name]
        staged = self.store.staged(binding.name).location
        location = staged if plan.root is None else Location(plan.root, plan.storage_options)
        return SinkStage(binding.name, plan, location, incarnation)

    def _segments(self, edge: EdgeNode, incarnation: int) -> SinkStage:
        plan = StagePlan(schema=arrow_schema(edge.schema), dictionary=False)
        return SinkStage(edge.name, plan, self.store.edge(edge.name).location, incarnation, edge=True)

    def shape(self, key_groups: Mapping[str, int]) -> JobShape:
        """Return the job as the rules of an incarnation need it. `key_groups`: number of key groups by operator."""
        return JobShape(
            job=self.job,
            sources=tuple(node.name for node in self.sources),
            sinks={binding.name: self.place(binding.name) for binding in self.bindings},
            operators=tuple(_shape_of(node, key_groups[node.name]) for node in self.operators),
            limits=_limits(self.config),
            edges=tuple(EdgeShape(each.edge.name, ddl(each.edge.schema)) for each in self.edges),
            store=self.store.location.uri,
            every_batch=self.config.every_batch,
            ack_wait_ms=max(1, renewal_ms(self.config.lease_ms)),
            awaits_lines=self.between.decides_lines,
        )

    def with_found(self, found: Found) -> JobPlan:
        """Return the plan with these endpoints. Each sink that is another table or topic now is checked and staged again.

        Raises the errors of `Sink.check`.
        """
        plans, sinks = dict(self.stage_plans), dict(found.sinks)
        for name, sink, schema in ((each.name, each.sink, each.schema) for each in self.bindings):
            before, now = self.found.sinks.get(name, {}), sinks.get(name, {})
            # It may have other partitions. One that is gone is not created here: the check of the start refuses it.
            if differing(before, now) and all(now.values()):
                sink.check(self.spark, schema)
                # Asked again, because the answer of `check` may serve the next call.
                plans[name], sinks[name] = sink.stage(schema), identities.parts_of(sink, self.spark)
                _set_root(self.store, name, plans[name])
        return replace(self, found=replace(found, sinks=sinks), stage_plans=plans)

    def declare_edges(self) -> None:
        """Write the columns of edges to other jobs, so that a reader can start before there are rows."""
        for binding in self.bindings:
            if isinstance(binding.sink, EdgeSink):
                self.store.staged(binding.name).declare(binding.schema.json())

    def place(self, sink: str) -> SinkPlace:
        """Return the location of a sink's staged rows and the time of its publishes."""
        plan, staged = self.stage_plans[sink], self.store.staged(sink).location
        binding = next(each for each in self.bindings if each.name == sink)
        every_ms = _publish_every_ms(binding, self.config)
        early = self.config.send_early and isinstance(binding.sink, SendsEarly) and binding.sink.sends_early
        # Never the sink of rejected records: it keeps those of all batches.
        replaces = any(complete_node(each.node) is not None for each in _results([binding]))
        # A transaction would stay open until other stages have decided.
        early = early and not self.between.decides_lines
        # A sink without a place of its own has its rows in the store; a Delta sink has them in its table's folder.
        if plan.root is None:
            return SinkPlace(staged.uri, staged.storage_options, "", every_ms, early, replaces)
        return SinkPlace(plan.root, plan.storage_options, plan.root, every_ms, early, replaces)

    def sources_ends(self) -> dict[str, Cursor]:
        """Return the current end of each source, by name."""
        return {node.name: node.source.end(self.spark) for node in self.sources}

    def have_reached(self, cursors: Mapping[str, Cursor], ends: Mapping[str, Cursor]) -> bool:
        """Return true if every source with an end in `ends` has been read up to it."""
        return all(
            node.source.reached(cursors[node.name], ends[node.name]) for node in self.sources if node.name in ends
        )

    def check_ends(self) -> None:
        """Raise `ConfigInvalid` if a source has no end up to which a run could drain it."""
        for node in self.sources:
            why = node.source.endless if isinstance(node.source, MayNeverEnd) else None
            if why is not None:
                raise ConfigInvalid(
                    f"source '{node.name}' cannot be drained: {why}",
                    hint="start without availableNow, and call run.stop() when it is enough",
                )

    def check_base(
        self,
        base: Manifest,
        unpublished: Mapping[str, Sequence[Manifest]] | None = None,
        restore: RestoreTarget = LATEST,
    ) -> None:
        """Raise `GraphInvalid`, `ConfigInvalid` or `StateSchemaChanged` if the base epoch does not fit this graph.

        `unpublished`: per sink its unpublished epochs. `restore`: the target that the base was chosen for.
        """
        self.key_groups(base)
        self._check_dropped()
        known = {node.name for node in self.sources}
        lost = sorted(set(base.cursors) - known - self.confirmed.dropped_sources)
        if lost:
            dropped = self.confirmed.dropped_sources | set(lost)
            instead = (
                "keep the source's name; or continue without it: "
                f"{replace(self.confirmed, dropped_sources=dropped).call(restore)}: the state keeps what the job has "
                "read from it"
            )
            raise GraphInvalid(
                f"epoch {base.epoch} has cursors of sources that the job {_lacks(base)}: {', '.join(lost)}",
                hint=_names_hint(base, "source", lost[0], known, instead),
            )
        # Deferred rows (`publish_every`) are part of the epoch, so their sink cannot go although no epoch of it is unpublished.
        due = unpublished_rows(base, unpublished or {})
        if gone := sorted(due.keys() - {binding.name for binding in self.bindings}):
            back = self._epoch_before({name: due[name] for name in gone})
            raise GraphInvalid(
                f"committed epochs are still to be published to sinks that the job no longer has: {', '.join(gone)}",
                hint="run the job once more with the sinks (availableNow=True), stop it, then drop them; if that is gone for good, "
                f"{self.confirmed.call(back)} produces the rows again, for the other sinks",
            )
        for name, snapshot in base.operators.items():
            self._check_snapshot(name, snapshot, base, restore)
        check_spark_state(self, base, restore)
        check_in_flight({each.edge.name: ddl(each.edge.schema) for each in self.edges}, base)

    def _epoch_before(self, rows: Mapping[str, Sequence[Manifest]]) -> int:
        """Return the newest restorable epoch before `rows` that defers nothing for their sinks."""
        log, newest = self.store.log, max(each.epoch for of in rows.values() for each in of)
        return free_of(rows, lambda: whole_manifests(log.state(), newest, log.manifest, log.verify))

    def _check_dropped(self) -> None:
        for kind, dropped, there in (
            ("operator", self.confirmed.dropped_operators, {each.name for each in self.operators}),
            ("source", self.confirmed.dropped_sources, {each.name for each in self.sources}),
        ):
            if both := sorted(dropped & there):
                raise ConfigInvalid(
                    f"accept_dropped_{kind} names '{both[0]}', which the job has",
                    hint=f"drop the confirmation: if it stays, a later start would continue without the {kind}",
                )

    def check_start(self, restore: RestoreTarget) -> Standing:
        """Return the endpoints for a start from `restore`; raise if the job cannot continue from there.

        It reads the log and changes nothing.
        """
        log = self.store.log
        log_state = log.state()
        chosen = choice_unseen(log_state, restore, log.manifest, log.verify)
        self.check_base(chosen.base, chosen.unpublished, restore)
        standing = identities.reconciled(
            log, log_state, chosen.base, chosen.unpublished, self.found, self.confirmed, restore != LATEST
        )
        for node in self.sources:
            # Any other source was asked for its start when the job asked for its columns.
            if isinstance(node.source, KnowsColumns) and node.name not in chosen.base.cursors:
                # Before an incarnation begins: the start of a source that no epoch has read may be out of range.
                node.source.start(self.spark)
        standing = skip_lost(self, chosen.base, standing)
        try:
            check_inputs(self, chosen.base, standing.fresh | standing.skipped.keys())
        except RowsLost as error:
            raise with_source(error, self, chosen.base, restore) from error
        known = {*chosen.base.operators, *([SPARK_OPERATORS] if chosen.base.spark_state else [])}
        # A confirmation that confirms nothing is reported: left in the program, it would drop an operator of that name one day.
        gone = sorted(self.confirmed.dropped_operators - known)
        unread = sorted(self.confirmed.dropped_sources - chosen.base.cursors.keys())
        needless = [f"accept_dropped_operator={name!r}" for name in gone]
        needless += [f"accept_dropped_source={name!r}" for name in unread]
        return replace(standing, unneeded=(*standing.unneeded, *needless))

    def _check_snapshot(self, name: str, snapshot: OperatorSnapshot, base: Manifest, restore: RestoreTarget) -> None:
        operator = next((each for each in self.operators if each.name == name), None)
        if operator is None and name in self.confirmed.dropped_operators:
            return
        if operator is None:
            instead = (
                f"give the operator its name back (name='{name}'); {self._renaming(snapshot, base, restore)}"
                f"or continue without its state: {self.without_operator(name, restore)}"
            )
            there = {each.name for each in self.operators}
            raise GraphInvalid(
                f"epoch {base.epoch} has state of operator '{name}', which the job {_lacks(base)}",
                hint=_names_hint(base, "operator", name, there, instead),
            )
        check_state(snapshot, operator.key_ddl, operator.state_ddl, base.epoch)

    def without_operator(self, name: str, restore: RestoreTarget) -> str:
        """Return the start from `restore` that continues without the state of this operator."""
        dropped = self.confirmed.dropped_operators | {name}
        return replace(self.confirmed, dropped_operators=dropped).call(restore)

    def _renaming(self, snapshot: OperatorSnapshot, base: Manifest, restore: RestoreTarget) -> str:
        """Return the advice that keeps the state of an operator under a new name; empty if no operator of the job fits."""
        # The command adds an epoch to the newest one, which a start from an older epoch would not read.
        if restore != LATEST:
            return ""
        for each in self.operators:
            same = each.key_ddl == snapshot.key_schema and each.state_ddl == snapshot.state_schema
            if same and each.name not in base.operators:
                command = (
                    f"spark-ckpt bootstrap {shlex.quote(self.store.location.uri)} {each.name} --of {snapshot.operator}"
                )
                return f"if '{each.name}' is its new name, first give it the state: {command}; "
        return ""


def _lacks(base: Manifest) -> str:
    # A job without a run never had the name, so it has not lost it.
    return "has not" if base.reason == "adopt" else "no longer has"


def _names_hint(base: Manifest, kind: str, name: str, there: Iterable[str], otherwise: str) -> str:
    """Return the hint about a name that the epoch has and the job lacks. `there`: names that the job has."""
    if base.reason != "adopt":
        return otherwise
    known = ", ".join(sorted(there)) or "none"
    return (
        f"a plain query was adopted under this name, and the job has: {known}. Call the {kind} '{name}' in the job; or adopt again "
        f"into an empty store, with the job's name of it: spark-ckpt adopt CHECKPOINT STORE --job {base.job} --{kind} NAME=NUMBER"
    )


def _shape_of(node: OperatorNode, key_groups: int) -> OperatorShape:
    delays_ms = {mark.input: mark.node.delay_ms for mark in marks_of(node)}
    return OperatorShape(node.name, node.key_ddl, node.state_ddl, key_groups, delays_ms)


def _limits(config: JobConfig) -> Limits:
    return Limits(
        interval_ms=max(1, config.interval_ms),  # 0: every batch ends an epoch
        standby_interval_ms=config.standby_interval_ms,
        epoch_timeout_ms=max(1, config.timeout_ms),
        store_timeout_ms=max(1, config.timeout_ms),
        publish_timeout_ms=max(1, config.publish_timeout_ms),
        max_failed_epochs=config.max_failed_epochs,
        max_unpublished=config.max_unpublished,
        max_publish_attempts=max(1, config.publish_timeout_ms // 1000),  # one per second, as `Limits.retry_ms` pauses
    )


def _publish_every_ms(binding: SinkBinding, config: JobConfig) -> int:
    # The user's word counts first, also 0.
    if binding.publish_every_ms is not None:
        return binding.publish_every_ms
    # An epoch per batch would give such a sink a commit per batch, which may cost more than the batch.
    if config.every_batch and isinstance(binding.sink, CostlyCommits):
        return binding.sink.publish_every_ms
    return 0


def planned(
    spark: SparkSession,
    job: str,
    config: JobConfig,
    store: Store,
    bindings: Sequence[SinkBinding],
    edges: Sequence[EdgeBinding] = (),
    restore: RestoreTarget = LATEST,
    confirmed: Confirmed | None = None,
) -> JobPlan:
    """Check the graph, read its endpoints, and resolve the settings that depend on the session.

    A job that does not fit its store is refused before a sink creates a table for it. Raises `GraphInvalid`, and the
    errors of `JobPlan.check_start`.
    """
    ends = _ends(bindings, edges)
    operators = operators_of(*ends)
    sources = sources_of(*ends)
    # Before the check of the start, which asks the sources about the input that they remember there.
    remember_in(store, sources)
    parallelism = spark.sparkContext.defaultParallelism
    found = identities.found(spark, sources, bindings)
    shape = (list(bindings), sources, operators, parallelism)
    plan = JobPlan(spark, job, config, store, *shape, {}, found, confirmed or Confirmed(), edges)
    for needless in plan.check_start(restore).unneeded:
        _log.warning("job=%s %s confirms what has not changed; left there it would confirm a mistake", job, needless)
    return _staged(plan)


def check_graph(
    bindings: Sequence[SinkBinding], edges: Sequence[EdgeBinding], over_stages: AbstractSet[str] = frozenset()
) -> None:
    """Raise `GraphInvalid` for a graph that no session and no store could run. Parameters as in `check_edges`."""
    if not bindings:
        raise GraphInvalid("the job has no sink", hint="end a stream with to(sink)")
    check_edges(bindings, edges, over_stages)
    check_complete(_results(bindings), operators_of(*_ends(bindings, edges)), edges)


def _ends(bindings: Sequence[SinkBinding], edges: Sequence[EdgeBinding]) -> tuple[Node, ...]:
    return ends_of([*_results(bindings), *edges])


def _results(bindings: Sequence[SinkBinding]) -> list[SinkBinding]:
    """Return the sinks of streams, without the sink of rejected records."""
    return [binding for binding in bindings if binding.name != REJECTED]


def _staged(plan: JobPlan) -> JobPlan:
    """Return the plan with the staging of its rows, and with the endpoints of tables that its sinks have created."""
    stages = {binding.name: binding.sink.stage(binding.schema) for binding in plan.bindings}
    for name, stage in stages.items():
        _set_root(plan.store, name, stage)
    return replace(plan, stage_plans=stages, found=identities.completed(plan.found, plan.spark, plan.bindings))


def _set_root(store: Store, sink: str, stage: StagePlan) -> None:
    if stage.root is not None:
        store.set_root(sink, stage.root)
