"""The publishing threads of one incarnation, one per sink."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from spark_ckpt.connector import EpochOutput, SinkContext
from spark_ckpt.driver.identities import parts_of
from spark_ckpt.driver.publishing import SinkLane
from spark_ckpt.errors import Fenced
from spark_ckpt.host.messages import PublishEnded
from spark_ckpt.plan.graph import SinkBinding
from spark_ckpt.protocol.ids import Incarnation
from spark_ckpt.store.identity import Standing

if TYPE_CHECKING:
    from spark_ckpt.driver.job_plan import JobPlan


class Lanes:
    """`inherited`: the highest epoch decided by earlier incarnations. `ended` is called on a lane's thread."""

    def __init__(
        self,
        plan: JobPlan,
        incarnation: int,
        inherited: int,
        standing: Standing,
        ended: Callable[[PublishEnded], None],
    ) -> None:
        self._plan = plan
        self._incarnation = incarnation
        self._inherited = inherited
        self._ended = ended
        self._lanes = {binding.name: self._lane(binding, standing) for binding in plan.bindings}

    def start(self) -> None:
        """Begin to publish what is submitted."""
        for lane in self._lanes.values():
            lane.start()

    def submit(self, sink: str, output: EpochOutput) -> None:
        """Try to publish a decided epoch once, behind what was submitted before."""
        self._lanes[sink].submit(output)

    def stop(self) -> None:
        """End after the attempts under way."""
        for lane in self._lanes.values():
            lane.stop()

    def threads(self) -> Iterator[threading.Thread]:
        """For whoever waits for their end."""
        yield from self._lanes.values()

    def _lane(self, binding: SinkBinding, standing: Standing) -> SinkLane:
        plan = self._plan
        context = SinkContext(plan.job, binding.name, plan.store.id, Incarnation(self._incarnation))
        known = standing.is_complete(binding.name)
        return SinkLane(
            binding.name,
            lambda: binding.sink.publisher(plan.spark, context),
            self._still_current,
            self._ended,
            inherited=self._inherited,
            ask_identity=None if known else lambda: parts_of(binding.sink, plan.spark),
        )

    def _still_current(self) -> None:
        newest = self._plan.store.log.state().incarnation
        if newest > self._incarnation:
            raise Fenced(
                f"incarnation {newest} took over",
                incarnation=self._incarnation,
                hint="this driver can be ended",
            )
