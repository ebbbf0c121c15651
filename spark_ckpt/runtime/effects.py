"""Carries out what the host core asks for: the log, the control stream, the publishing threads, the tables, the listeners."""

from __future__ import annotations

import logging
import time
import uuid
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from spark_ckpt.errors import ConfigInvalid, Fenced
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.host.manifests import stamped, summary_of
from spark_ckpt.host.messages import (
    ArmTimer,
    CountBatch,
    End,
    ManifestFenced,
    ManifestStored,
    NameEpoch,
    OfferMarker,
    Publish,
    SayAborted,
    SayCommitted,
    SayPublished,
    SettleTables,
    StoreManifest,
    TimerRanOut,
)
from spark_ckpt.protocol.barrier import Outcome
from spark_ckpt.protocol.machine import Effect, Event
from spark_ckpt.protocol.vocabulary import Note
from spark_ckpt.runtime.announcer import Announcer
from spark_ckpt.runtime.control_source import Control
from spark_ckpt.runtime.coordinator import CoordinatorLoop
from spark_ckpt.runtime.inputs import InputRetention
from spark_ckpt.runtime.lanes import Lanes
from spark_ckpt.runtime.progress import Progress
from spark_ckpt.store.records import Manifest
from spark_ckpt.store.retention import Retention

if TYPE_CHECKING:
    from spark_ckpt.runtime.job_plan import JobPlan

_log = logging.getLogger(__name__)


class Effects:
    """Of one incarnation, all on the coordinator's thread. `served`: the store has just answered.

    `tell` and `later` are the loop's: an answer for the rules, and a call for when there is time.
    """

    def __init__(
        self,
        plan: JobPlan,
        announcer: Announcer,
        progress: Progress,
        control: Control,
        lanes: Lanes,
        served: Callable[[], None],
        finish: Callable[[Outcome, BaseException | None], None],
    ) -> None:
        self._plan = plan
        self._announcer = announcer
        self._progress = progress
        self._control = control
        self._lanes = lanes
        self._served = served
        self._finish = finish
        self._inputs = InputRetention(plan)
        self._loop: CoordinatorLoop | None = None
        self._by_kind: Mapping[type[Effect], Callable[..., None]] = {
            ArmTimer: self._arm,
            OfferMarker: lambda effect: control.inject(effect.marker),
            StoreManifest: self._store,
            NameEpoch: self._name,
            Publish: lambda effect: lanes.submit(effect.sink, effect.output),
            SettleTables: lambda effect: self._later(lambda: self._settle(effect.manifest)),
            CountBatch: self._count,
            SayCommitted: lambda effect: announcer.committed(effect.manifest.epoch, summary_of(effect.manifest)),
            SayAborted: lambda effect: announcer.aborted(effect.epoch, effect.why),
            SayPublished: lambda effect: announcer.published(effect.epoch, effect.detail),
            End: lambda effect: finish(effect.outcome, effect.error),
            Note: self._note,
        }

    def answer_to(self, loop: CoordinatorLoop) -> None:
        """Where answers go. Before the first effect."""
        self._loop = loop

    def carry_out(self, effect: Effect) -> None:
        """Do it now: effects come in order."""
        deed = self._by_kind.get(type(effect))
        if deed is None:
            _log.debug("job=%s incarnation=%d dropped %s", self._plan.job, self._announcer.incarnation, effect)
        else:
            deed(effect)

    def _tell(self, event: Event) -> None:
        assert self._loop is not None  # noqa: S101 - effects come from the loop
        self._loop.tell(event)

    def _later(self, call: Callable[[], None]) -> None:
        assert self._loop is not None  # noqa: S101 - effects come from the loop
        self._loop.post(call)

    def _arm(self, effect: ArmTimer) -> None:
        assert self._loop is not None  # noqa: S101 - effects come from the loop
        self._loop.set_timer(effect.delay_ms, TimerRanOut(effect.elapsed))

    def _store(self, effect: StoreManifest) -> None:
        """The decision. An error other than a fence leaves its outcome unknown and ends the incarnation."""
        manifest = stamped(effect.manifest, uuid.uuid4().hex, time.time_ns() // 1_000_000)
        hit(Failpoint.EPOCH_COMMITTING)
        try:
            self._plan.store.log.commit_epoch(manifest)
        except Fenced as error:
            self._tell(ManifestFenced(manifest.epoch, str(error)))
            return
        hit(Failpoint.EPOCH_COMMITTED)
        self._served()
        self._tell(ManifestStored(manifest, effect.names))

    def _name(self, effect: NameEpoch) -> None:
        try:
            self._plan.store.log.add_savepoint(effect.name, effect.epoch)
        except ConfigInvalid as error:
            _log.warning("job=%s epoch=%d is kept without a name: %s", self._plan.job, effect.epoch, error)

    def _settle(self, manifest: Manifest) -> None:
        store, config = self._plan.store, self._plan.config
        store.settle(manifest)
        self._inputs.follow(store.retain(Retention(keep_last=config.keep_epochs, keep_age_ms=config.keep_age_ms)))

    def _count(self, effect: CountBatch) -> None:
        incarnation = self._announcer.incarnation
        self._progress.add(effect.batch, incarnation, effect.epoch, effect.counts, effect.duration_ms, effect.cursors)

    def _note(self, effect: Note) -> None:
        _log.info(
            "job=%s incarnation=%d %s %s", self._plan.job, self._announcer.incarnation, effect.what, effect.detail
        )
