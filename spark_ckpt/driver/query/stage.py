"""The query of an incarnation, with all its operators: pins the sources, starts the query, reports each batch to the
rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from spark_ckpt.connector import Cursor, KeepsUnchanged
from spark_ckpt.coordination.edges import Bound
from spark_ckpt.coordination.messages import BatchDone
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.coordination.reports import Report
from spark_ckpt.driver.input_clock import InputClock
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.query.admission import Admission
from spark_ckpt.driver.query.control_source import Control
from spark_ckpt.driver.query.edge_stream import EdgeStream
from spark_ckpt.driver.query.frames import StageDescription
from spark_ckpt.driver.query.inputs import first_position
from spark_ckpt.driver.query.offset_log import BatchOffsets
from spark_ckpt.driver.query.spark_state import CheckpointState
from spark_ckpt.driver.query.stage_query import RunningQuery, StageQuery
from spark_ckpt.epochs.parts import differing
from spark_ckpt.plan.graph import EdgeNode, OperatorNode, SourceNode
from spark_ckpt.store.widening import types_change
from spark_ckpt.tasks.group_host import GroupHost
from spark_ckpt.tasks.state.local_folder import LocalFolder


class Stage:
    """The query of one incarnation.

    `targets`: per source, the cursor at which a draining run ends. `cache`: this incarnation's own folder.
    `key_groups`: number of key groups by operator. `inputs`: clock of operators that wait for their inputs.
    `spark_state`: state of Spark's own operators in the query's checkpoint; None for a job without them.
    """

    def __init__(
        self,
        plan: JobPlan,
        incarnation: int,
        protocol: EpochProtocol,
        control: Control,
        targets: Mapping[str, Cursor],
        cache: Path,
        key_groups: Mapping[str, int],
        inputs: InputClock | None = None,
        spark_state: CheckpointState | None = None,
    ) -> None:
        self._spark_state = spark_state
        self._plan = plan
        self._incarnation = incarnation
        self._protocol = protocol
        self._control = control
        self._targets = dict(targets)
        self._cache = cache
        self._key_groups = key_groups
        self._inputs = inputs
        self.admission = Admission({node.name: node.source for node in plan.sources}, plan.config.short_batch_ms)

    def starts(self) -> Mapping[str, Cursor]:
        """Return the start positions of sources that have no cursor."""
        # Pinned once and committed as the first epoch: a restart before the first rows must not begin at a later "latest".
        fresh = [node for node in self._plan.sources if node.name not in self._protocol.cut.cursors]
        return {node.name: self._start(node) for node in fresh}

    def _start(self, node: SourceNode) -> Cursor:
        """Return the configured start of a source.

        A source with a changed endpoint starts there only for its changed parts, if it can keep the others.
        """
        spark, base, name = self._plan.spark, self._protocol.cut.base, node.name
        before, now = base.source_identities.get(name), self._protocol.publication.standing.sources.get(name, {})
        if before and name in base.cursors and isinstance(node.source, KeepsUnchanged):
            return node.source.renewed(spark, base.cursors[name], differing(before, now))
        return first_position(self._plan.job, node.source, spark)

    def is_behind(self) -> bool:
        """Return true if rows wait at the sources; false for a run that drains, since it ends soon anyway."""
        if self._targets:
            return False
        return not self._plan.have_reached(self._protocol.cut.cursors, self._plan.sources_ends())

    def start(
        self,
        behind: bool,
        ended: Callable[[BatchOffsets, Sequence[Report], int], None],
        is_over: Callable[[], bool],
    ) -> RunningQuery:
        """Start the query.

        `ended`: called on Spark's thread after each batch, with its end, its reports and its duration in ms.
        `is_over`: true once the incarnation has ended.
        """
        return StageQuery(self._plan.spark, self._description(behind), ended, is_over).start()

    def hosts(self) -> dict[str, GroupHost]:
        """Return the task side of each operator, by name."""
        return {operator.name: self._host(operator) for operator in self._plan.operators}

    def batch_done(self, offsets: BatchOffsets, reports: Sequence[Report], duration_ms: int) -> BatchDone:
        """Return the event of a finished batch.

        Call it on the coordinator's thread, in the order of the batches: each cursor builds on the one before.
        """
        cursors = dict(self._protocol.cut.cursors)
        for node, line in zip(self._plan.sources, offsets.sources, strict=True):
            if line is not None:
                # On the coordinator's thread and in order: a source that remembers extends its ledger by the batch here.
                cursors[node.name] = node.source.cursor(line, cursors[node.name])
        if self._inputs is not None:
            self._inputs.batch_ended(cursors)
        # Without a batch in which keys can time out, a draining run might never remove a key.
        timed_out = self._inputs is None or self._inputs.ran_in(offsets.batch)
        drained = bool(self._targets) and self._plan.have_reached(cursors, self._targets) and timed_out
        return BatchDone(
            offsets.batch,
            cursors,
            offsets.watermark_ms,
            offsets.markers,
            tuple(reports),
            duration_ms,
            drained,
            offsets.taken,
        )

    def _description(self, behind: bool) -> StageDescription:
        plan = self._plan
        return StageDescription(
            name=f"{plan.job}/{self._incarnation}",  # the running query is found by this name
            ends=plan.ends,
            cursors=self._protocol.cut.cursors,
            stages=plan.stages(self._incarnation),
            rejected_stage=plan.rejected_stage(self._incarnation),
            hosts=self.hosts(),
            control=self._control,
            checkpoint_uri=plan.checkpoint(self._incarnation).uri,
            shuffle_partitions=self._partitions,
            # With this and Unix sockets the map stage of a batch takes 50 ms instead of 115 (measured, four partitions on two
            # cores).
            input_tasks=max(self._partitions, plan.parallelism),
            trigger_ms=plan.config.trigger_ms,
            admission=self.admission,
            behind=behind,
            edges={binding.edge.name: self._edge(binding.edge) for binding in plan.edges},
            bound=self._bound,
            marks=plan.marks,
            newest_ms=self._newest_ms(),
            inputs=self._inputs,
            spark_mode=plan.spark_mode,
            spark_state=self._spark_state,
        )

    @property
    def _partitions(self) -> int:
        """Number of tasks behind a shuffle. The state of Spark's own operators fixes it."""
        state = self._protocol.cut.base.spark_state
        return self._plan.shuffle_partitions if state is None else state.partitions

    def _newest_ms(self) -> dict[int, int]:
        known = self._protocol.cut.event_times_ms
        inputs = enumerate((mark.operator, mark.input) for mark in self._plan.marks)
        return {number: known[each] for number, each in inputs if each in known}

    @property
    def _bound(self) -> Bound:
        return Bound(self._plan.config.max_in_flight)

    def _edge(self, edge: EdgeNode) -> EdgeStream:
        """Return the stream of an edge; it begins with the segments in flight at the restored epoch."""
        location = self._plan.store.edge(edge.name).location
        return EdgeStream(edge.name, location, edge.schema, self._protocol.cut.in_flight[edge.name], self._bound)

    def _host(self, operator: OperatorNode) -> GroupHost:
        protocol = self._protocol
        written = protocol.cut.base.operators.get(operator.name)
        return GroupHost(
            name=operator.name,
            keys=operator.keys,
            operator=operator.operator,
            key_groups=self._key_groups[operator.name],
            tasks=self._partitions,
            incarnation=self._incarnation,
            base_epoch=protocol.cut.base.epoch,
            base_watermark_ms=protocol.cut.base.watermark_ms,
            base_late_ms=protocol.cut.late_ms,
            chains={group: chain for (name, group), chain in protocol.cut.chains.items() if name == operator.name},
            location=self._plan.store.state(operator.name).location,
            cache=str(self._cache / operator.name),
            # Levels of an incarnation that was killed or failed: tasks on its hosts link what they need.
            earlier=str(LocalFolder(self._plan.cache, self._incarnation).earlier / operator.name),
            outgrown=written is not None and types_change(written.state_schema, operator.state_ddl),
        )
