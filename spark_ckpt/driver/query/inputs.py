"""Lifecycle of stateful sources: create their store folder, validate the cursor before a restore, skip lost rows, release
unneeded input.
"""

from __future__ import annotations

import logging
import shlex
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from spark_ckpt.connector import Cursor, HoldsRows, Remembers, SkipsLost, Source
from spark_ckpt.epochs.identity import past_losses, with_confirmation
from spark_ckpt.epochs.parts import differing
from spark_ckpt.epochs.restore import LATEST, RestoreTarget, checked
from spark_ckpt.errors import UNREADABLE, CkptError, PublishConflict, RowsLost, SourceInvalid, SourceUndone

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pyspark.sql import SparkSession

    from spark_ckpt.driver.job_plan import JobPlan
    from spark_ckpt.epochs.identity import PastLost, Standing
    from spark_ckpt.epochs.records import Manifest
    from spark_ckpt.epochs.retention import RetentionReport
    from spark_ckpt.plan.graph import SourceNode
    from spark_ckpt.store.store import Store

_FOLDER = "sources"
_log = logging.getLogger(__name__)


def remember_in(store: Store, nodes: Iterable[SourceNode]) -> None:
    """Give each stateful source its own folder in the store."""
    for name, source in _remembering(nodes).items():
        source.remember_in(store.location.child(_FOLDER, name))


def check_inputs(plan: JobPlan, base: Manifest, fresh: AbstractSet[str] = frozenset()) -> None:
    """Raise `SourceInvalid` if the job cannot continue from `base` because input is gone. Changes nothing.

    `fresh`: sources with a confirmed new endpoint, which begin at their start. If the newest epoch read another
    endpoint than `base`, its cursor says nothing about this source and is not checked.
    """
    sources = _remembering(plan.sources)
    if not sources:
        return
    # A damaged newest epoch must not block the restore of an older one, which its error advises.
    newest = plan.store.log.state().newest_readable(plan.store.log.manifest)
    if newest is None:
        return
    for name, source in sources.items():
        before, now = (epoch.source_identities.get(name, {}) for epoch in (base, newest))
        # A source that is new in this program, or begins again by the user's word, has no position to compare.
        if name in newest.cursors and name not in fresh and not (now and differing(before, now)):
            try:
                source.check_cursor(base.cursors.get(name), newest.cursors[name])
            except SourceUndone as error:
                raise _with_restore(error, plan, name, source, base.epoch) from error


def skip_lost(plan: JobPlan, base: Manifest, standing: Standing) -> Standing:
    """Return `standing` with the cursors behind lost rows, of the sources whose loss the user has confirmed. Raises
    `ConfigInvalid`.
    """
    return past_losses(standing, plan.confirmed, base.cursors, _skipping(plan))


def with_source(error: RowsLost, plan: JobPlan, base: Manifest, restore: RestoreTarget = LATEST) -> RowsLost:
    """Return the error with the call that continues from `base` without the lost rows."""
    # The error may come from a task of Spark, which knows no name of a source: the loss itself tells it. All of them, also
    # those that this start has confirmed: a call that names one source is refused for the next one.
    found = [name for name, past_lost in _skipping(plan).items() if _has_lost(base.cursors.get(name), past_lost)]
    return with_confirmation(error, found, restore, plan.confirmed) if found else error


def _has_lost(cursor: Cursor | None, past_lost: PastLost) -> bool:
    """Return True if rows after the cursor are lost, False also if the source does not answer."""
    with suppress(CkptError):
        return cursor is not None and past_lost(cursor) != cursor
    return False


def _skipping(plan: JobPlan) -> dict[str, PastLost]:
    sources = {node.name: node.source for node in plan.sources}
    return {
        name: partial(source.past_lost, plan.spark) for name, source in sources.items() if isinstance(source, SkipsLost)
    }


def with_next_step(error: CkptError, plan: JobPlan) -> CkptError:
    """Return the error of a query, with the epoch to restore if a source's rows were undone while it ran, or the
    confirmation if they are lost.
    """
    if isinstance(error, RowsLost):
        with suppress(CkptError):
            log = plan.store.log
            return with_source(error, plan, log.manifest(log.state().latest))
    if isinstance(error, SourceUndone):
        try:
            check_inputs(plan, plan.store.log.manifest(plan.store.log.state().latest))
        except SourceUndone as advised:
            return advised
        except CkptError as other:
            _log.info("job=%s no epoch to restore could be found: %s", plan.job, other)
    return error


def _with_restore(error: SourceUndone, plan: JobPlan, name: str, source: Remembers, epoch: int) -> SourceUndone:
    back = _newest_readable(plan, name, source, epoch)
    store = shlex.quote(plan.store.location.uri)
    hint = (
        f"start with job.start(restore={back}): epoch {back} has read nothing of it, and the job continues from there "
        f"(first see what it would do: spark-ckpt restore {store} {back})"
        if back is not None
        else "every kept epoch has read undone rows: start the job with a new store"
    )
    return SourceUndone(error.what, hint=hint, **{**error.context, "source": name, "restore": back})


def _newest_readable(plan: JobPlan, name: str, source: Remembers, epoch: int) -> int | None:
    """Return the newest epoch up to `epoch` on its branch from which the source can be read; None if there is none."""
    log = plan.store.log
    log_state = log.state()
    for brief in log_state.ancestry(epoch):
        # An epoch that the source or a start refuses is skipped: the search wants the newest that both accept.
        with suppress(SourceInvalid, PublishConflict, *UNREADABLE):
            cursor = log.manifest(brief.epoch).cursors.get(name)
            # Against itself: the question is only if its rows are still there.
            if cursor is not None:
                source.check_cursor(cursor, cursor)
                return checked(log_state, brief.epoch, "", log.manifest, log.verify).base.epoch
    return None


def first_position(job: str, source: Source, spark: SparkSession) -> Cursor:
    """Return the configured start of a source, and register it where rows are kept for the job."""
    start = source.start(spark)
    if isinstance(source, HoldsRows):
        # Before the position is pinned: a driver that dies in between would leave one whose rows may be deleted before the
        # next start.
        hold(job, source, [start])
    return start


def hold(job: str, source: HoldsRows, kept: Sequence[Cursor]) -> None:
    """Register positions of job `job` where `source` keeps rows for it. A failure is only logged."""
    try:
        source.hold(kept)
    except CkptError as error:
        _log.warning("job=%s the position of a source could not be registered: %s", job, error)


class InputRetention:
    """Releases input that no retained epoch needs, after the log has forgotten epochs."""

    def __init__(self, plan: JobPlan) -> None:
        self._plan = plan
        self._sources = _remembering(plan.sources)
        self._begun = False

    def follow(self, report: RetentionReport) -> None:
        """Release input after a retention pass. `report`: the epochs that the store has forgotten.

        A failure is only logged: the next call releases the same input.
        """
        # The first call releases in any case: the last incarnation may have died between retention and release.
        if not self._sources or (self._begun and not report.epochs):
            return
        self.hold()
        try:
            self._release()
        except CkptError as error:
            _log.warning("job=%s input could not be released: %s", self._plan.job, error)

    def hold(self) -> None:
        """Register the job's position where sources keep rows for it. A failure is only logged, and the next call repeats
        it.
        """
        holding = {name: source for name, source in self._sources.items() if isinstance(source, HoldsRows)}
        if not holding:
            return
        log = self._plan.store.log
        try:
            # The lineage ends at a gap, so old savepoints do not hold rows of another system.
            branch = sorted(brief.epoch for brief in log.state().lineage())
            cursors = [each.cursors for each in log.manifests(branch)]
        except CkptError as error:
            _log.warning("job=%s positions of sources could not be registered: %s", self._plan.job, error)
            return
        for name, source in holding.items():
            hold(self._plan.job, source, [each[name] for each in cursors if name in each])

    def _release(self) -> None:
        log = self._plan.store.log
        log_state = log.state()
        # A driver that restored the beginning reads again what every kept epoch has read: a newer one, or this one until it
        # has an epoch. With standbys, a pass comes before its first epoch.
        if log_state.incarnation != log.own_incarnation or not log_state.latest:
            return
        self._begun = True
        kept = sorted(brief.epoch for brief in log_state.epochs)
        if not kept or any(kept[0] in log_state.unsettled(sink) for sink in log_state.sinks):
            return  # the rows of the oldest epoch are not published yet
        cursors = [each.cursors for each in log.manifests(kept)]
        for name, source in self._sources.items():
            if all(name in each for each in cursors):  # an epoch without the source would read it from its start
                source.release([each[name] for each in cursors])


def _remembering(nodes: Iterable[SourceNode]) -> Mapping[str, Remembers]:
    return {node.name: node.source for node in nodes if isinstance(node.source, Remembers)}
