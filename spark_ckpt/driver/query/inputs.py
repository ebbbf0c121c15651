"""Lifecycle of stateful sources: create their store folder, validate the cursor before a restore, release unneeded
input.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

from spark_ckpt.connector import Remembers
from spark_ckpt.epochs.parts import differing
from spark_ckpt.errors import CkptError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from spark_ckpt.driver.job_plan import JobPlan
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
    latest = plan.store.log.state().latest
    if not sources or not latest:
        return
    newest = plan.store.log.manifest(latest)
    for name, source in sources.items():
        before, now = (epoch.source_identities.get(name, {}) for epoch in (base, newest))
        if name in newest.cursors and name not in fresh and not (now and differing(before, now)):
            source.check_cursor(base.cursors.get(name), newest.cursors[name])


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
        if not self._sources or (self._begun and not report.epochs):
            return
        self._begun = True
        try:
            self._release()
        except CkptError as error:
            _log.warning("job=%s input could not be released: %s", self._plan.job, error)

    def _release(self) -> None:
        log = self._plan.store.log
        log_state = log.state()
        kept = sorted(brief.epoch for brief in log_state.epochs)
        if not kept or any(kept[0] in log_state.awaited(sink) for sink in log_state.sinks):
            return  # the rows of the oldest epoch are not published yet
        cursors = [each.cursors for each in log.manifests(kept)]
        for name, source in self._sources.items():
            if all(name in each for each in cursors):  # an epoch without the source would read it from its start
                source.release([each[name] for each in cursors])


def _remembering(nodes: Iterable[SourceNode]) -> Mapping[str, Remembers]:
    return {node.name: node.source for node in nodes if isinstance(node.source, Remembers)}
