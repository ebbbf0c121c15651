"""A transactional sink as connectors promise it: rows and marker in one transaction, a fence per incarnation.

What the marker says about an epoch is judged by the shipped rules (`sink_rules.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_ckpt.connector import EpochOutput, SinkContext
from spark_ckpt.connector_parts.sink_rules import SinkMarker, is_published, marker_of
from spark_ckpt.errors import EpochDamaged, Fenced, PublishFailed
from spark_ckpt.simulator.barrier_storage import ensure
from spark_ckpt.simulator.spark_rows import Row, by_key, in_order, in_the_end
from spark_ckpt.simulator.spark_store import JOB, Shared


@dataclass
class SparkSink:
    """What everybody can see of it. `fence`: the newest incarnation that has opened it."""

    name: str
    rows: list[Row] = field(default_factory=list)
    marker: SinkMarker | None = None
    fence: int = 0

    def publish(self, shared: Shared, output: EpochOutput, how: str) -> tuple[int, bool]:
        """One transaction: rows, and whether they were there before. Raises what a publisher raises.

        `how`: "ok", "fail" (not done) or "silent" (done, but the answer does not come).
        """
        if output.incarnation < self.fence:
            raise Fenced(f"{self.name} belongs to incarnation {self.fence}")
        self.fence = output.incarnation
        context = SinkContext(JOB, self.name, "store", output.incarnation)
        if is_published(self.marker, output, context):
            return self._rows(shared, output), True
        if how == "fail":
            raise PublishFailed(f"{self.name} is away")
        self._judge(shared, output)
        self._rows(shared, output)
        self.rows += [row for file in output.files for row in shared.staged[file.path]]
        self.marker = marker_of(output, context)
        if how == "silent":
            raise PublishFailed(f"{self.name} does not answer")
        return self._rows(shared, output), False

    def judge(self, rows: int) -> None:
        """O12: it shows a beginning of what it has to show, each row once and in order. `rows`: how many each source has."""
        for key, counts in by_key(self.rows).items():
            wanted = list(range(1, len(counts) + 1))
            ensure(counts == wanted, "O12", f"{self.name} shows {counts} for key {key}")
        whole = in_the_end(rows).shown[self.name]
        for lane, numbers in in_order(row.name for row in self.rows).items():
            wanted = whole.get(lane, [])[: len(numbers)]
            ensure(numbers == wanted, "O12", f"{self.name} shows {numbers} of {lane}, expected {wanted}")

    def _judge(self, shared: Shared, output: EpochOutput) -> None:
        """O11: what is shown is what was decided, whole."""
        decided = {each.epoch: each for each in shared.manifests()}.get(output.epoch)
        ensure(decided is not None, "O11", f"{self.name} shows epoch {output.epoch}, which is not decided")
        if decided is not None:
            wanted = [file.path for file in decided.outputs[self.name].files] if decided.outputs else []
            shown = [file.path for file in output.files]
            ensure(shown == wanted, "O11", f"{self.name} shows {shown} for epoch {output.epoch}, decided was {wanted}")

    def _rows(self, shared: Shared, output: EpochOutput) -> int:
        missing = [file.path for file in output.files if file.path not in shared.staged or file.path in shared.gone]
        if missing:
            raise EpochDamaged(f"{missing[0]} is missing", epoch=output.epoch)
        return sum(len(shared.staged[file.path]) for file in output.files)
