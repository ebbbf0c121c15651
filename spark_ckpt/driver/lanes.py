"""Publishers of one incarnation: one thread per sink."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from checkpoint_protocols.ids import Incarnation
from spark_ckpt.connector import EpochOutput, SinkContext, StagedEarly
from spark_ckpt.coordination.messages import EarlySendEnded, PublishEnded
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.publishing import SinkLane
from spark_ckpt.endpoints.identities import explained, parts_of
from spark_ckpt.epochs.identity import Parts, Standing
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.epochs.ways_back import way_back
from spark_ckpt.errors import CkptError, Fenced
from spark_ckpt.plan.graph import SinkBinding

_log = logging.getLogger(__name__)


class Lanes:
    """Publisher threads of one incarnation.

    `point`: start of the incarnation. `ended`: receives the result of each attempt. `measured`: called before `ended`
    with a sink, an epoch and the durations of the publish in ms. Both are called on a publisher's thread.
    """

    def __init__(
        self,
        plan: JobPlan,
        point: RecoveryPoint,
        standing: Standing,
        ended: Callable[[PublishEnded | EarlySendEnded], None],
        measured: Callable[[str, int, Mapping[str, int]], None],
    ) -> None:
        self._plan = plan
        self._dropped = frozenset(point.dropped)
        self._incarnation = point.incarnation
        self._inherited = point.last
        self._ended = ended
        self._measured = measured
        self._sinks = {binding.name: binding.sink for binding in plan.bindings}
        self._identities: dict[str, Parts] = {name: sink.parts for name, sink in standing.sinks.items()}
        self._lanes = {binding.name: self._lane(binding, standing) for binding in plan.bindings}

    def start(self) -> None:
        """Start all publisher threads."""
        for lane in self._lanes.values():
            lane.start()

    def submit(self, sink: str, asked: EpochOutput | StagedEarly) -> None:
        """Queue one attempt to publish a committed epoch, or an early send, after earlier requests."""
        self._lanes[sink].submit(asked)

    def drop_early_send(self, sink: str) -> None:
        """Queue the rollback of early sends, after earlier requests."""
        self._lanes[sink].drop_early_send()

    def stop(self) -> None:
        """End after the attempts in progress."""
        for lane in self._lanes.values():
            lane.stop()

    def give_up(self) -> list[threading.Thread]:
        """Abort attempts that did not end by themselves; return the threads that end soon.

        Such an attempt would continue in this process, and fence the next publisher of the sink.
        """
        return [lane for lane in self._lanes.values() if lane.is_alive() and lane.give_up()]

    def threads(self) -> Iterator[threading.Thread]:
        """Iterate over the threads, for a caller that joins them."""
        yield from self._lanes.values()

    def _lane(self, binding: SinkBinding, standing: Standing) -> SinkLane:
        plan = self._plan
        # The publisher knows the bound of the job, so that its own error, which names a cause, comes earlier.
        within_s = plan.config.publish_timeout_ms / 1000
        context = SinkContext(plan.job, binding.name, plan.store.id, Incarnation(self._incarnation), within_s)
        known = standing.is_complete(binding.name)
        return SinkLane(
            binding.name,
            lambda: binding.sink.publisher(plan.spark, context),
            self.still_current,
            self._newest,
            self._with_ways_back,
            inherited=self._inherited,
            ask_identity=None if known else lambda: parts_of(binding.sink, plan.spark),
            measured=self._measured,
            opens_at_once=plan.place(binding.name).is_sent_early,
            # A driver that was paused in such a publish could still end it: the sink knows of no newer incarnation.
            fences=binding.name in self._dropped,
        )

    def _with_ways_back(self, event: PublishEnded | EarlySendEnded) -> None:
        """Add recovery advice to a failed publish, on a publisher's thread; the log is read only when an error needs
        it.
        """
        if isinstance(event, EarlySendEnded):
            self._ended(event)
            return
        if event.learned is not None:
            # The manifest that will record it is not committed yet, and a conflict of the next publish is judged by it.
            self._identities[event.sink] = event.learned
        # On the publisher's thread: it may ask a broker, and no event of the rules may wait for that.
        self._ended(event if event.error is None else self._advised(event, event.error))

    def _advised(self, event: PublishEnded, error: CkptError) -> PublishEnded:
        log, verify = self._plan.store.log, self._plan.store.verify
        before = self._identities.get(event.sink, {})
        try:
            why = explained(error, event.sink, self._sinks[event.sink], before, self._plan.spark)
            event = replace(event, error=why)
            return replace(event, back=way_back(why, event.sink, event.epoch, log.state, log.manifest, verify))
        except Exception as raised:  # noqa: BLE001 - a bug of a connector, too: nothing would say that the thread is gone
            _log.info("sink %s: where to go back to is not known: %s", event.sink, raised)
        return event

    def _newest(self) -> int:
        return self._plan.store.log.state().incarnation

    def still_current(self) -> None:
        """Raise `Fenced` if a newer incarnation has taken over."""
        newest = self._newest()
        if newest > self._incarnation:
            raise Fenced(
                f"incarnation {newest} took over",
                incarnation=self._incarnation,
                hint="this driver can be ended",
            )
