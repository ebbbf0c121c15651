"""What an incarnation's query computes. All operators are chained in it: one micro-batch goes through all of them.

```
sources -> user's operations -> pack --+
control rows, one per key group -------+ union -> shuffle -> operator -> explode -> user's operations -> pack --+
control rows, one per key group --------------------------------------------------------------------------------+ union -> ...
```

A micro-batch is atomic and every shuffle in it is complete before an operator behind it runs, so a barrier that is in the batch
is behind the same rows at every operator: the cut is aligned without anybody waiting for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from pyspark.sql import functions as F

from spark_ckpt.connector import Cursor
from spark_ckpt.graph import REJECT, Node, OperatorNode, SourceNode, build, leaves_of, watermark_of
from spark_ckpt.runtime.admission import small
from spark_ckpt.runtime.control_source import Control, control_rows
from spark_ckpt.runtime.group_host import GroupHost
from spark_ckpt.runtime.packing import packed_ddl, tables_of_blobs
from spark_ckpt.runtime.rejects import Diverter, divert_rejects, diverting_with
from spark_ckpt.runtime.reports import Reports
from spark_ckpt.runtime.rows import EVENT_TIME
from spark_ckpt.runtime.stage_tasks import Tables, exploder, first_met, large_tables, packer, stager, tapper
from spark_ckpt.runtime.staging import SinkStage
from spark_ckpt.runtime.stateless_graph import checked_behind, checked_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True, slots=True)
class StageDescription:
    """What an incarnation's query is built from. `cursors`: where every source starts. `hosts`: of every operator, by name.
    `stages`: where rows are staged, by the stream that the sinks get; `node` is the last of them.
    `behind`: rows wait there, so that the first batch is kept small."""

    name: str
    node: Node
    cursors: Mapping[str, Cursor]
    stages: Mapping[Node, Sequence[SinkStage]]
    rejected_stage: SinkStage | None
    hosts: Mapping[str, GroupHost]
    control: Control
    checkpoint_uri: str
    shuffle_partitions: int
    trigger_ms: int
    behind: bool


class StageFrames:
    """Builds the streaming plan once, and every batch's plan behind it."""

    def __init__(self, spark: SparkSession, stage: StageDescription, reports: Reports) -> None:
        self._spark = spark
        self._stage = stage
        self._reports = reports
        self._steps = 0

    def streaming(self) -> DataFrame:
        """What `foreachBatch` gets: rows, or the blobs of the one operator that the stream's rows come from."""
        return diverting_with(self._diverter, self._streaming)

    def staged(self, frame: DataFrame, batch: int) -> DataFrame:
        """What the batch's one action runs: the rows of `frame` go to the sinks' files."""
        rows, tables = self._tables(frame)
        stages = self._stage.stages[self._stage.node]
        return rows.mapInArrow(stager(tables, stages, batch, self._reports), "staged long")

    # -- the streaming plan -------------------------------------------------------------------------------------------

    def _streaming(self) -> DataFrame:
        node = self._stage.node
        operator = self._only_operator
        if operator is None:
            rows = self._rows(node)
            return rows if self._stage.hosts else self._no_rows(rows).union(rows)
        if operator is not node:
            checked_behind(self._spark, node)
        return self._blobs(operator)

    @cached_property
    def _only_operator(self) -> OperatorNode | None:
        """The operator that the stream's rows come from, if they come from nowhere else."""
        first, *others = leaves_of(self._stage.node)
        return first if isinstance(first, OperatorNode) and not others else None

    @cached_property
    def _control(self) -> DataFrame:
        return control_rows(self._spark, self._stage.control)

    def _rows(self, node: Node) -> DataFrame:
        """The rows of `node`: what is recorded, on top of sources and of operators' outputs."""
        if all(isinstance(leaf, SourceNode) for leaf in leaves_of(node)):
            return checked_rows(node, self._leaf, self._tapped)
        checked_behind(self._spark, node)
        return build(node, self._leaf, self._tapped)

    def _tapped(self, node: Node, rows: DataFrame) -> DataFrame:
        """The rows of `node`, of which the sinks on the way get theirs as they pass."""
        stages = self._stage.stages.get(node)
        if stages is None or node is self._stage.node:
            return rows
        return rows.mapInArrow(tapper(stages, self._reports), rows.schema)

    def _leaf(self, node: SourceNode | OperatorNode) -> DataFrame:
        if isinstance(node, OperatorNode):
            output = node.operator.output
            return self._blobs(node).mapInArrow(exploder(output), output)
        source = small(node.source) if self._stage.behind else node.source
        return source.read(self._spark, self._stage.cursors[node.name])

    def _blobs(self, node: OperatorNode) -> DataFrame:
        """The output of an operator, packed."""
        host, watermark = self._stage.hosts[node.name], watermark_of(node.parent)
        timed = watermark is not None
        rows = self._rows(node.parent)
        diverter = self._diverter() if REJECT in rows.columns else None
        step = packer(diverter, host.key_groups, watermark.column if watermark else None)
        packed = host.keyed(rows).mapInArrow(step, packed_ddl(timed))
        united = host.control(self._control, timed).toDF(*packed.columns).union(packed)
        if watermark is not None:
            united = united.withWatermark(EVENT_TIME, f"{watermark.delay_ms} milliseconds")
        return host.apply(united, self._reports)

    def _no_rows(self, rows: DataFrame) -> DataFrame:
        """Without an operator nobody has to see a marker, but Spark must count it, so the control source is in the plan. The
        condition lets Spark leave it out of every batch's: no task, no column."""
        nulls = [F.lit(None).cast(field.dataType).alias(field.name) for field in rows.schema.fields]
        return self._control.where(F.lit(False)).select(*nulls)

    def _diverter(self) -> Diverter:
        self._steps += 1
        return Diverter(self._reports, self._stage.rejected_stage, self._steps)

    # -- one batch ----------------------------------------------------------------------------------------------------

    def _tables(self, frame: DataFrame) -> tuple[DataFrame, Tables]:
        """The frame that goes to the sinks, and how its rows are read."""
        node, operator = self._stage.node, self._only_operator
        if operator is None:
            return frame, first_met(self._diverter() if REJECT in frame.columns else None)
        if node is operator:
            return frame, tables_of_blobs
        output = operator.operator.output
        exploded = frame.mapInArrow(exploder(output), output)
        behind = lambda: divert_rejects(build(node, lambda _: exploded, self._tapped))  # noqa: E731
        return diverting_with(self._diverter, behind), large_tables
