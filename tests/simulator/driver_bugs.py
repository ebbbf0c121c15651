"""Bugs planted around the lease of a job's driver: in a standby's rules, in the log's, in what a driver does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest

from checkpoint_lab.drivers_node import DriverNode, JobLog
from checkpoint_lab.drivers_world import DriversRules
from checkpoint_lab.schedules import ScheduleOutcome
from checkpoint_protocols.machine import Effect
from spark_ckpt.coordination.standby import LeaseRead, Standby
from spark_ckpt.epochs import log_state
from spark_ckpt.epochs.log_state import At, LogState
from spark_ckpt.epochs.records import EpochBrief, Heartbeat, Manifest, Released
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.store import epoch_log, proposals
from spark_ckpt.store.log_table import LogRow, NewRow
from tests.simulator.eager import run_drivers_long

Patch = pytest.MonkeyPatch


class CountsFromItsFirstLook(Standby):
    """A renewal does not restart the term."""

    def _learn(self, event: LeaseRead) -> None:
        known = self.watched
        super()._learn(event)
        if known is not None and self.watched is not None:
            self.watched = replace(self.watched, since_ms=known.since_ms)


class CountsOutages(Standby):
    """Counts an outage of the log as the holder's silence."""

    def __init__(self, margin_ms: int, gap_ms: int) -> None:
        super().__init__(margin_ms, 100 * gap_ms)


class WaitsThoughReturned(Standby):
    """Waits for a returned lease too."""

    def _on_read(self, event: LeaseRead) -> list[Effect]:
        return super()._on_read(replace(event, free=False))


class NeverTires(Standby):
    """Never takes silence for an end."""

    def _on_read(self, event: LeaseRead) -> list[Effect]:
        return super()._on_read(replace(event, ttl_ms=100 * event.ttl_ms))


class TakesTheTermForLess(Standby):
    """Takes over after half a term."""

    def _on_read(self, event: LeaseRead) -> list[Effect]:
        return super()._on_read(replace(event, ttl_ms=event.ttl_ms // 2))


def no_token(patch: Patch) -> None:
    """A lease that was seen to end is taken over, also if it has been renewed since."""
    patch.setattr(proposals, "refuse_if_moved", lambda log_state, token: None)


def no_fence(patch: Patch) -> None:
    """Rows of a replaced incarnation are appended."""
    patch.setattr(proposals, "fence", lambda log_state, incarnation: None)


def no_compare(patch: Patch) -> None:
    """A row is appended, even if other rows came after its author's read."""
    shipped = JobLog.append

    def append(self: JobLog, new: NewRow, seen: int) -> LogRow:
        return shipped(self, new, len(self.rows))

    patch.setattr(JobLog, "append", append)


def renews_what_was_returned(patch: Patch) -> None:
    """A pending renewal renews a returned lease."""

    def heartbeat(before: LogState, by: int, expires_ms: int) -> NewRow:
        proposals.fence(before, by)
        return proposals.row_of(Heartbeat(incarnation=by, lease_expires_ms=expires_ms), by)

    patch.setattr(proposals, "heartbeat", heartbeat)


def returns_anybodys(patch: Patch) -> None:
    """A replaced driver returns its successor's lease."""
    patch.setattr(proposals, "release", lambda log_state, record: proposals.row_of(record, record.incarnation))


def epochs_do_not_renew(patch: Patch) -> None:
    """A standby ignores that an epoch renews the lease."""
    shipped = log_state.with_epochs

    def epochs(before: LogState, briefs: Sequence[EpochBrief], at: At) -> LogState:
        after = shipped(before, briefs, at)
        return replace(after, lease_token=before.lease_token)

    patch.setattr(log_state, "with_epochs", epochs)


def keeps_nothing(patch: Patch) -> None:
    """An incarnation that ends and keeps its lease counts as one that returns it."""
    shipped = log_state.FOLDS[Released]

    def released(before: LogState, record: Released, at: At) -> LogState:
        return shipped(before, record.model_copy(update={"keeps": False}), at)

    patch.setitem(log_state.FOLDS, Released, released)


def numbers_again(patch: Patch) -> None:
    """A new incarnation has its predecessor's number."""
    shipped = epoch_log.recovery_point

    def recovery_point(before: LogState, *rest: object) -> RecoveryPoint:
        point: RecoveryPoint = shipped(before, *rest)  # type: ignore[arg-type]
        return replace(point, incarnation=max(1, before.incarnation))

    patch.setattr(epoch_log, "recovery_point", recovery_point)


def decides_without_reading(patch: Patch) -> None:
    """An epoch commits on top of the newest one, also of another incarnation."""
    shipped = proposals.epoch

    def epoch(before: LogState, manifest: Manifest, now_ms: int, index: int = 0) -> NewRow | None:
        behind = {"previous": before.last, "base": before.latest, "epoch": before.last + 1}
        ours = replace(before, incarnation=manifest.incarnation)
        return shipped(ours, manifest.model_copy(update=behind), now_ms, index)

    patch.setattr(proposals, "epoch", epoch)


def measures_by_the_wall_clock(patch: Patch) -> None:
    """A standby's term and a driver's renewals jump with the wall clock."""
    local, when = DriverNode.local, DriverNode.when
    patch.setattr(DriverNode, "local", lambda node, now: local(node, now) + node.set_ms)
    patch.setattr(DriverNode, "when", lambda node, local_ms: when(node, local_ms - node.set_ms))


def nothing(patch: Patch) -> None:
    """Leaves the log unchanged."""


@dataclass(frozen=True)
class Planted:
    """A bug, and the oracles that may condemn it. `plant`: in the log's rules."""

    oracles: str
    plant: Callable[[Patch], None] = nothing
    rules: DriversRules = field(default_factory=DriversRules)

    @property
    def name(self) -> str:
        """Name in reports."""
        if self.plant is not nothing:
            return self.plant.__name__
        return "RestartsByTheWallClock" if self.rules.restarts is None else self.rules.standby.__name__

    def run(self, seed: int) -> ScheduleOutcome:
        """One long schedule with it."""
        with pytest.MonkeyPatch.context() as patch:
            self.plant(patch)
            return run_drivers_long(seed, self.rules)


PLANTED = (
    Planted("D2", rules=DriversRules(CountsFromItsFirstLook)),
    Planted("D2", rules=DriversRules(CountsOutages)),
    Planted("D2", rules=DriversRules(TakesTheTermForLess)),
    Planted("D4", rules=DriversRules(NeverTires)),
    Planted("D5", rules=DriversRules(WaitsThoughReturned)),
    Planted("D2", rules=DriversRules(restarts=None)),
    Planted("D2", no_token),
    Planted("D1", no_fence),
    Planted("D1", no_compare),
    Planted("D1", decides_without_reading),
    Planted("D1|D3", numbers_again),
    Planted("D1", returns_anybodys),
    Planted("D2", epochs_do_not_renew),
    Planted("D2", keeps_nothing),
    Planted("D3", renews_what_was_returned),
    Planted("D2|D4|D5", measures_by_the_wall_clock),
)
