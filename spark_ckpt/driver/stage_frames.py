"""What an incarnation's query computes. All operators are chained in it: one micro-batch goes through all of them.

```
sources -> user's operations -> pack --+
control rows, one per key group -------+ union -> shuffle -> operator -> explode -> user's operations -> pack --+
control rows, one per key group --------------------------------------------------------------------------------+ union -> ...
```

A micro-batch is atomic and every shuffle in it is complete before an operator behind it runs, so a barrier that is in the batch
is behind the same rows at every operator: the cut is aligned without anybody waiting for it.

Between two operators that nothing lies between but names of columns, the first one packs what the second one takes (`onward.py`).

What comes out of an edge begins like a source: the rows that a batch before has put on it, read from their files by tasks.

Streams may part behind a source or an edge: each branch reads the same rows of it, from its own scan. Every end stages its rows as
they come, and the query puts out none: a batch's own plan, made anew for each batch, was 51 ms of a small batch's 714. Streams
that part behind an operator do so in the batch's own plan, behind one shuffle more: Spark would run the operator for each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, reduce
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from spark_ckpt.connector import Cursor
from spark_ckpt.coordination.edges import Bound
from spark_ckpt.driver.admission import small
from spark_ckpt.driver.control_source import Control, control_rows
from spark_ckpt.errors import EnvironmentUnfit
from spark_ckpt.plan.graph import (
    EdgeNode,
    Leaf,
    Mark,
    Node,
    OperatorNode,
    SourceNode,
    WatermarkNode,
    build,
    edges_of,
    heads_of,
    leaves_of,
    parting_of,
    segment,
    sources_of,
)
from spark_ckpt.plan.onward_plan import onward_between
from spark_ckpt.plan.stateless_graph import checked_behind, checked_rows
from spark_ckpt.spark_internals.batch_action import run_tasks
from spark_ckpt.spark_internals.column_names import map_in_arrow
from spark_ckpt.spark_internals.event_time import in_event_time, with_clock
from spark_ckpt.spark_internals.physical_plans import times_computed
from spark_ckpt.tasks.group_host import GroupHost
from spark_ckpt.tasks.onward import Onward
from spark_ckpt.tasks.packing import PACKED_DDL, tables_of_blobs
from spark_ckpt.tasks.rejects import Diverter, divert_rejects, diverting_with
from spark_ckpt.tasks.reports import Reports
from spark_ckpt.tasks.rows import EVENT_TIME, REJECT
from spark_ckpt.tasks.stage_tasks import Step, exploder, first_met, large_tables, packer, stager, tapper
from spark_ckpt.tasks.staging import SinkStage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType

    from spark_ckpt.driver.edge_stream import EdgeStream

STAGED = "staged long"
"""What a step that stages rows puts out: no row of it."""


@dataclass(frozen=True, slots=True)
class StageDescription:
    """What an incarnation's query is built from. `cursors`: where every source starts. `hosts`: of every operator, by name.
    `stages`: where rows are staged, by the stream that the sinks get; `ends`: those from which no stream goes on.
    `behind`: rows wait there, so that the first batch is kept small. `edges`: by name; `bound`: of each. `marks`: event times
    that the operators' inputs have; the number of one is that of its clock. `input_tasks`: at most so many read an operator's
    input; more than run at a time only wait for each other's Python workers."""

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
    behind: bool
    edges: Mapping[str, EdgeStream]
    bound: Bound
    marks: Sequence[Mark] = ()
    newest_ms: Mapping[int, int] = field(default_factory=dict)
    """What clocks have seen before the query begins, by number."""


class StageFrames:
    """Builds the streaming plan once, and every batch's plan behind it."""

    def __init__(self, spark: SparkSession, stage: StageDescription, reports: Reports) -> None:
        self._spark = spark
        self._stage = stage
        self._reports = reports
        self._steps = 0
        self._pass = _Passage(stage, reports)

    def streaming(self) -> DataFrame:
        """What `foreachBatch` gets: no rows, or the blobs of the operator behind which streams part."""
        return diverting_with(self._diverter, self._streaming)

    def run(self, frame: DataFrame) -> None:
        """The batch's one action: rows go to the sinks' files."""
        if self._parting is None:
            run_tasks(frame)
        else:
            self._parted(self._parting, frame).collect()

    # -- the streaming plan -------------------------------------------------------------------------------------------

    @cached_property
    def _parting(self) -> OperatorNode | None:
        """The operator behind which streams part, each to its end."""
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
            return reduce(DataFrame.union, [self._staged_end(node, blobs.schema) for node in others], blobs)
        staged = reduce(DataFrame.union, [self._staged_end(node, STAGED) for node in (first, *others)])
        return staged if self._stage.hosts else _no_rows(self._control, staged).union(staged)

    def _staged_end(self, node: Node, schema: StructType | str) -> DataFrame:
        """The rows of `node` go to its sinks' files; nothing comes out, in columns of `schema`."""
        rows = self._blobs(node) if isinstance(node, OperatorNode) else self._rows(node)
        rejects = self._diverter() if REJECT in rows.columns else None
        tables = tables_of_blobs if isinstance(node, OperatorNode) else first_met(rejects)
        return map_in_arrow(rows, stager(tables, self._stage.stages[node], self._reports), schema)

    @cached_property
    def _control(self) -> DataFrame:
        return control_rows(self._spark, self._stage.control)

    def _rows(self, node: Node, operator: str | None = None) -> DataFrame:
        """The rows of `node`: what is recorded, on top of sources and of operators' outputs. `operator`: whose input they are."""
        clocks = _Clocks(self._stage.marks, operator, self._pass)
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
        """Read once: Spark takes each plan of a stream for a stream of its own, with a position of its own."""
        ends = self._stage.ends
        nodes: list[SourceNode | EdgeNode] = [*sources_of(*ends), *edges_of(*ends)]
        return {node: self._input(node) for node in nodes}

    def _input(self, node: SourceNode | EdgeNode) -> DataFrame:
        stage = self._stage
        if isinstance(node, EdgeNode):
            return stage.edges[node.name].read(self._spark)
        return (small(node.source) if stage.behind else node.source).read(self._spark, stage.cursors[node.name])

    def _blobs(self, node: OperatorNode, onward: Onward | None = None) -> DataFrame:
        """The output of an operator, packed; with `onward` as the next operator takes it."""
        host, handed_on = self._stage.hosts[node.name], self._handed_on(node)
        packed = self._packed(node) if handed_on is None else handed_on
        united = host.control(self._control).toDF(*packed.columns).union(packed)
        timed = in_event_time(united, EVENT_TIME) if node.event_time is not None else united
        return host.apply(timed, self._reports, onward)

    def _packed(self, node: OperatorNode) -> DataFrame:
        """The input of an operator, by way of Spark's rows."""
        host, rows = self._stage.hosts[node.name], self._rows(node.parent, node.name)
        diverter = self._diverter() if REJECT in rows.columns else None
        keyed = host.keyed(rows).coalesce(self._stage.input_tasks)
        return map_in_arrow(keyed, packer(diverter, host.shuffle_keys), PACKED_DDL)

    def _handed_on(self, node: OperatorNode) -> DataFrame | None:
        """The input of an operator, packed by the one that it comes from, if that can be."""
        before = _only_operator(node.parent)
        if before is None or self._pass.stops(segment(node.parent)):
            return None
        onward = onward_between(self._spark, before, node, self._stage.hosts)
        return None if onward is None else self._blobs(before, onward)

    def _diverter(self) -> Diverter:
        self._steps += 1
        return Diverter(self._reports, self._stage.rejected_stage, self._steps)

    # -- one batch ----------------------------------------------------------------------------------------------------

    def _parted(self, operator: OperatorNode, frame: DataFrame) -> DataFrame:
        """Every branch behind the operator reads its blobs from one shuffle, so that the operator runs once. A group's blobs stay
        together and in order."""
        blobs = frame.repartition(self._stage.shuffle_partitions, F.spark_partition_id())
        passage = _Passage(self._stage, self._reports)
        rows = lambda _: passage.exploded(operator, blobs)  # noqa: E731
        staged = diverting_with(
            self._diverter, lambda: reduce(DataFrame.union, [self._branch(e, rows, passage) for e in self._parted_ends])
        )
        if times_computed(staged, frame) != 1:
            raise EnvironmentUnfit(
                f"Spark's plan does not run operator '{operator.name}' once for all streams that part behind it",
                hint="let one stream go on from the operator, or run the others in jobs of their own",
            )
        return staged

    def _branch(self, end: Node, rows: Callable[[Leaf], DataFrame], passage: _Passage) -> DataFrame:
        behind = divert_rejects(build(end, rows, passage))
        return map_in_arrow(behind, stager(large_tables, self._stage.stages[end], self._reports), STAGED)


class _Clocks:
    """What the rows of an operator's inputs go through, beside `passage`: a clock wherever their event time is declared."""

    def __init__(
        self, marks: Sequence[Mark], operator: str | None, passage: Callable[[Node, DataFrame], DataFrame]
    ) -> None:
        self._numbers: dict[Node, list[int]] = {}
        for number, mark in enumerate(marks):
            if mark.operator == operator:
                self._numbers.setdefault(mark.node, []).append(number)
        self._passage = passage

    def __call__(self, node: Node, rows: DataFrame) -> DataFrame:
        rows = self._passage(node, rows)
        if not (isinstance(node, WatermarkNode) and self._numbers.get(node)):
            return rows
        return with_clock(rows, node.column, node.delay_ms, self._numbers[node].pop(0))

    def among(self, node: Node) -> int:
        """How many clocks the rows of `node` go through."""
        return sum(above in self._numbers for above in segment(node))


class _Passage:
    """What the rows of every node go through while one plan is built: sinks on the way get theirs.

    A stream that parts is in the plan once per branch. It is passed in full the first time only, so that a sink gets a row
    once, and a record that could not be parsed is diverted once.
    """

    def __init__(self, stage: StageDescription, reports: Reports) -> None:
        self._stages = {node: stages for node, stages in stage.stages.items() if node not in stage.ends}
        self._reports = reports
        self._passed: set[Node] = set()

    def stops(self, nodes: Iterable[Node]) -> bool:
        """Whether a sink on the way gets the rows of one of the nodes."""
        return any(node in self._stages for node in nodes)

    def exploded(self, node: OperatorNode, blobs: DataFrame) -> DataFrame:
        """The rows in an operator's blobs. The task that unpacks them stages them as well: to the JVM and back again would cost
        more than all the rest of it."""
        output = node.operator.output
        return blobs.mapInArrow(exploder(output, self._tap(node)), output)

    def __call__(self, node: Node, rows: DataFrame) -> DataFrame:
        if node in self._passed:
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
    """Without an operator nobody has to see a marker, but Spark must count it, so the control source is in the plan. The
    condition lets Spark leave it out of every batch's: no task, no column."""
    nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields]
    return control.where(F.lit(False)).select(*nulls)


def _only_operator(node: Node) -> OperatorNode | None:
    """The operator that the stream's rows come from, if they come from nowhere else."""
    first, *others = leaves_of(node)
    return first if isinstance(first, OperatorNode) and not others else None
