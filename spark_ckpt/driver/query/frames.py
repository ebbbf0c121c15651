"""Streaming plan of an incarnation's query. It chains all operators, so a micro-batch passes through all of them.

```
sources -> user's operations -> pack --+
control rows, one per key group -------+ union -> shuffle -> operator -> explode -> user's operations -> pack --+
control rows, one per key group --------------------------------------------------------------------------------+ union -> ...
```

A micro-batch is atomic, and each shuffle in it completes before the operator after it runs. So every operator sees
the batch's barrier after the same rows: the snapshot is aligned, and no operator waits for alignment.

If only columns are renamed between two operators, the first one packs the rows in the second one's format
(`onward.py`).

The exit of an edge is like a source: tasks read the rows that an earlier batch wrote on it from their files.

A stream may fork after a source or an edge: each branch reads the same rows with its own scan. Each end stages its
rows in the streaming plan, and the query emits none. Planning each batch again took 51 ms of a small batch's 714.
Only a fork after an operator stays in the batch's own plan, with one more shuffle. Otherwise Spark would run the
operator once per branch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property, reduce

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from spark_ckpt.connector import Cursor
from spark_ckpt.coordination.edges import Bound
from spark_ckpt.driver.input_clock import InputClock
from spark_ckpt.driver.query.admission import Admission
from spark_ckpt.driver.query.control_source import Control, control_rows
from spark_ckpt.driver.query.edge_stream import EdgeStream
from spark_ckpt.driver.query.spark_state import CheckpointState
from spark_ckpt.errors import EnvironmentUnfit
from spark_ckpt.plan.graph import (
    EdgeNode,
    Leaf,
    Mark,
    Node,
    OperatorNode,
    SourceNode,
    SparkNode,
    WatermarkNode,
    build,
    edges_of,
    heads_of,
    leaves_of,
    parting_of,
    segment,
    sources_of,
    spark_nodes_of,
)
from spark_ckpt.plan.onward_plan import onward_between
from spark_ckpt.plan.stateless_graph import checked_behind, checked_rows
from spark_ckpt.spark_internals.batch_action import run_tasks
from spark_ckpt.spark_internals.column_names import map_in_arrow, quoted
from spark_ckpt.spark_internals.event_time import in_event_time, with_clock
from spark_ckpt.spark_internals.physical_plans import times_computed
from spark_ckpt.tasks.group_host import GroupHost
from spark_ckpt.tasks.onward import Onward
from spark_ckpt.tasks.packing import PACKED_DDL, tables_of_blobs
from spark_ckpt.tasks.rejects import Diverter, divert_rejects, diverting_with
from spark_ckpt.tasks.reports import Reports
from spark_ckpt.tasks.rows import EVENT_TIME, REJECT
from spark_ckpt.tasks.stage_tasks import Step, exploder, first_met, packer, stager, tapper
from spark_ckpt.tasks.staging import SinkStage

STAGED = "staged long"
"""Schema of a step that stages rows; it emits no row."""


@dataclass(frozen=True, slots=True)
class StageDescription:
    """Input for the query of an incarnation.

    - `cursors`: start position of every source.
    - `hosts`: task side of every operator, by name.
    - `stages`: staging of sinks, by the stream that they receive.
    - `ends`: streams that continue nowhere.
    - `admission`: rows per batch. `behind`: rows wait, so the first batch is kept small.
    - `edges`: by name. `bound`: limit of each.
    - `marks`: event times of the operators' inputs; the number of a mark is that of its clock.
    - `inputs`: clock of the operators that wait for their inputs; None without one.
    - `input_tasks`: maximum number of tasks that read an operator's input, unless Spark's own operators yield it. More
      tasks than run at a time would only wait for each other's Python workers.
    """

    name: str
    ends: tuple[Node, ...]
    cursors: Mapping[str, Cursor]
    stages: Mapping[Node, Sequence[SinkStage]]
    rejected_stage: SinkStage | None
    hosts: Mapping[str, GroupHost]
    control: Control
    checkpoint_uri: str
    shuffle_partitions: int
    input_tasks: int
    trigger_ms: int
    admission: Admission
    behind: bool
    edges: Mapping[str, EdgeStream]
    bound: Bound
    marks: Sequence[Mark] = ()
    newest_ms: Mapping[int, int] = field(default_factory=dict)
    """Newest event times of the clocks before the query starts, by number."""
    inputs: InputClock | None = None
    spark_mode: str | None = None
    """Output mode of Spark's own stateful operators; None for a job without them."""
    spark_state: CheckpointState | None = None
    """Their state in the query's checkpoint; None for a job without them."""


class StageFrames:
    """Builds the streaming plan once, and the plan of every batch."""

    def __init__(self, spark: SparkSession, stage: StageDescription, reports: Reports) -> None:
        self._spark = spark
        self._stage = stage
        self._reports = reports
        # Built into the plan: a source is read with its small limit, and later batches get the user's through Java.
        self._sources = stage.admission.small() if stage.behind else {}
        self._steps = 0
        self._pass = _Passage(stage, reports)
        self._sparks = {
            above for node in spark_nodes_of(*stage.ends) for above in segment(node) if isinstance(above, WatermarkNode)
        }
        """Declarations of event time for Spark's own operators."""

    def streaming(self) -> DataFrame:
        """Return the frame for `foreachBatch`: no rows, or the blobs of the operator at the fork."""
        return diverting_with(self._diverter, self._streaming)

    def run(self, frame: DataFrame) -> None:
        """Run the batch's single action, which stages the rows of the sinks."""
        if self._parting is None:
            run_tasks(frame)
        else:
            self._parted(self._parting, frame).collect()

    # -- the streaming plan -------------------------------------------------------------------------------------------

    @cached_property
    def _parting(self) -> OperatorNode | None:
        """The operator after which streams fork, each to its end; None without such a fork."""
        return parting_of(*self._stage.ends)

    @cached_property
    def _parted_ends(self) -> list[Node]:
        return [end for end in self._stage.ends if self._parting in leaves_of(end)]

    def _streaming(self) -> DataFrame:
        first, *others = heads_of(self._stage.ends)
        if self._parting is not None:
            for end in self._parted_ends:
                checked_behind(self._spark, end)
            blobs = self._blobs(self._parting)
            # Blobs are handed to `foreachBatch`, where the fork is; other ends are staged in the same plan.
            return reduce(DataFrame.union, [self._staged_end(node, blobs.schema) for node in others], blobs)
        staged = reduce(DataFrame.union, [self._staged_end(node, STAGED) for node in (first, *others)])
        return staged if self._stage.hosts else _no_rows(self._control, staged).union(staged)

    def _staged_end(self, node: Node, schema: StructType | str) -> DataFrame:
        """Stage the rows of `node` for its sinks; return no rows, in columns of `schema`."""
        rows = self._blobs(node) if isinstance(node, OperatorNode) else self._rows(node)
        # Diverted where rows meet Python first, so that no step of its own is needed.
        rejects = self._diverter() if REJECT in rows.columns else None
        tables = tables_of_blobs if isinstance(node, OperatorNode) else first_met(rejects)
        return map_in_arrow(rows, stager(tables, self._stage.stages[node], self._reports), schema)

    @cached_property
    def _control(self) -> DataFrame:
        # One stream for all operators: Spark counts each stream by itself, and all must have the same newest marker.
        return control_rows(self._spark, self._stage.control)

    def _rows(self, node: Node, operator: str | None = None) -> DataFrame:
        """Return the rows of `node`: the recorded operations on sources and operators' outputs.

        `operator`: the operator whose input they are.
        """
        clocks = _Clocks(self._stage.marks, operator, self._pass, self._sparks)
        if not any(isinstance(leaf, OperatorNode) for leaf in leaves_of(node)):
            return checked_rows(node, self._leaf, clocks, clocks.among)
        checked_behind(self._spark, node)
        return build(node, self._leaf, clocks)

    def _leaf(self, node: Leaf) -> DataFrame:
        if isinstance(node, OperatorNode):
            return self._pass.exploded(node, self._blobs(node))
        return self._inputs[node]

    @cached_property
    def _inputs(self) -> dict[SourceNode | EdgeNode, DataFrame]:
        # Read once: Spark takes each plan of a source for a stream with a position of its own.
        ends = self._stage.ends
        nodes: list[SourceNode | EdgeNode] = [*sources_of(*ends), *edges_of(*ends)]
        return {node: self._input(node) for node in nodes}

    def _input(self, node: SourceNode | EdgeNode) -> DataFrame:
        stage = self._stage
        if isinstance(node, EdgeNode):
            return stage.edges[node.name].read(self._spark)
        return self._sources.get(node.name, node.source).read(self._spark, stage.cursors[node.name])

    def _blobs(self, node: OperatorNode, onward: Onward | None = None) -> DataFrame:
        """Return the packed output of an operator; with `onward` in the format of the next operator."""
        host, handed_on = self._stage.hosts[node.name], self._handed_on(node)
        packed = self._packed(node) if handed_on is None else handed_on
        # By position: both have the three columns of packed rows.
        united = host.control(self._control).toDF(*packed.columns).union(packed)
        timed = in_event_time(united, EVENT_TIME) if node.event_time is not None else united
        return host.apply(timed, self._reports, onward)

    def _packed(self, node: OperatorNode) -> DataFrame:
        """Return the packed input of an operator, built from Spark's rows."""
        host, rows = self._stage.hosts[node.name], self._rows(node.parent, node.name)
        diverter = self._diverter() if REJECT in rows.columns else None
        keyed = host.keyed(rows)
        # RocksDB fails if one task runs several of Spark's operators (`failures.py`).
        if not any(isinstance(above, SparkNode) for above in segment(node.parent)):
            keyed = keyed.coalesce(self._stage.input_tasks)
        return map_in_arrow(keyed, packer(diverter, host.shuffle_keys), PACKED_DDL)

    def _handed_on(self, node: OperatorNode) -> DataFrame | None:
        """Return the input of an operator as the previous operator packs it; None if that is not possible."""
        before = _only_operator(node.parent)
        # A sink in between needs the rows themselves.
        if before is None or self._pass.stops(segment(node.parent)):
            return None
        onward = onward_between(self._spark, before, node, self._stage.hosts)
        return None if onward is None else self._blobs(before, onward)

    def _diverter(self) -> Diverter:
        self._steps += 1
        return Diverter(self._reports, self._stage.rejected_stage, self._steps)

    # -- one batch ----------------------------------------------------------------------------------------------------

    def _parted(self, operator: OperatorNode, frame: DataFrame) -> DataFrame:
        """Return the batch's plan of all branches after the operator. They share one shuffle, so the operator runs
        once.

        The blobs of a key group stay together and in order. Raises `EnvironmentUnfit` if Spark would run the operator
        repeatedly.
        """
        # By the number of their partition: the blobs of a key group stay together and in order.
        blobs = frame.repartition(self._stage.shuffle_partitions, F.spark_partition_id())
        passage = _Passage(self._stage, self._reports)  # of this plan, which is another one for each batch
        rows = lambda _: passage.exploded(operator, blobs)  # noqa: E731
        staged = diverting_with(
            self._diverter, lambda: reduce(DataFrame.union, [self._branch(e, rows, passage) for e in self._parted_ends])
        )
        # An operator that ran twice would count each row twice in its state.
        if times_computed(staged, frame) != 1:
            raise EnvironmentUnfit(
                f"Spark's plan does not run operator '{operator.name}' once for all streams that part after it",
                hint="let only one stream leave the operator, or run the others in jobs of their own",
            )
        return staged

    def _branch(self, end: Node, rows: Callable[[Leaf], DataFrame], passage: _Passage) -> DataFrame:
        behind = divert_rejects(build(end, rows, passage))
        return map_in_arrow(behind, stager(first_met(None), self._stage.stages[end], self._reports), STAGED)


class _Clocks:
    """Adds a clock wherever an operator input declares its event time, in addition to `passage`.

    `sparks`: declarations that Spark's own operators read; they become watermarks of the plan.
    """

    def __init__(
        self,
        marks: Sequence[Mark],
        operator: str | None,
        passage: Callable[[Node, DataFrame], DataFrame],
        sparks: AbstractSet[Node] = frozenset(),
    ) -> None:
        self._numbers: dict[Node, list[int]] = {}
        for number, mark in enumerate(marks):
            if mark.operator == operator:
                self._numbers.setdefault(mark.node, []).append(number)
        self._passage = passage
        self._sparks = sparks

    def __call__(self, node: Node, rows: DataFrame) -> DataFrame:
        rows = self._passage(node, rows)
        if isinstance(node, WatermarkNode) and node in self._sparks:
            rows = rows.withWatermark(quoted(node.column), f"{node.delay_ms} milliseconds")
        if not (isinstance(node, WatermarkNode) and self._numbers.get(node)):
            return rows
        # Spark keeps one clock for each declaration. The number finds it again in the plan of each batch.
        return with_clock(rows, node.column, node.delay_ms, self._numbers[node].pop(0))

    def among(self, node: Node) -> int:
        """Return the number of clocks that the rows of `node` pass."""
        return sum(above in self._numbers for above in segment(node))


class _Passage:
    """Stages the rows of sinks in the middle of a stream, while one plan is built.

    A stream that forks occurs in the plan once per branch. It is staged only in the first one. So a sink gets a row
    once, and a record that fails to parse is diverted once.
    """

    def __init__(self, stage: StageDescription, reports: Reports) -> None:
        self._stages = {node: stages for node, stages in stage.stages.items() if node not in stage.ends}
        self._reports = reports
        self._passed: set[Node] = set()

    def stops(self, nodes: Iterable[Node]) -> bool:
        """Return true if a sink in the middle of the stream gets the rows of one of the nodes."""
        return any(node in self._stages for node in nodes)

    def exploded(self, node: OperatorNode, blobs: DataFrame) -> DataFrame:
        """Return the rows in an operator's blobs.

        The task that unpacks them also stages them: a round trip through the JVM would cost more than everything
        else.
        """
        output = node.operator.output
        return blobs.mapInArrow(exploder(output, self._tap(node)), output)

    def __call__(self, node: Node, rows: DataFrame) -> DataFrame:
        if node in self._passed:
            # The first branch has diverted these records. Here they would be rejected a second time.
            return rows.where(F.col(REJECT).isNull()) if REJECT in rows.columns else rows
        tap = self._tap(node)
        return map_in_arrow(rows, tap, rows.schema) if tap else rows

    def _tap(self, node: Node) -> Step | None:
        if node in self._passed:
            return None
        self._passed.add(node)
        stages = self._stages.get(node)
        return tapper(stages, self._reports) if stages else None


def _no_rows(control: DataFrame, rows: DataFrame) -> DataFrame:
    """Return an empty frame that keeps the control source in the plan of a job without operators.

    Spark must count the markers, although no operator reads them. The condition lets Spark leave the source out of
    every batch: no task, no column.
    """
    nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields]
    return control.where(F.lit(False)).select(*nulls)


def _only_operator(node: Node) -> OperatorNode | None:
    """Return the operator that is the only origin of the stream's rows, or None."""
    first, *others = leaves_of(node)
    return first if isinstance(first, OperatorNode) and not others else None
