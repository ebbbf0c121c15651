"""Delegation of maintenance: one standby at a time, under the checkpoint lease of seed 002; without a standby, the
driver.

Maintenance is background work next to the stream: update the tables to the committed epochs, apply retention, read
files and verify them. One lease allows one turn of it. `Delegation` is the driver's part around `Primary`,
`StandbyLease` is a standby's part around `Replica`. The job's log is the replicated log of both. The number of a row in
it is the lease's token.

A driver considers a standby alive while it sees its note change; a first note counts if its process runs. It measures
time with its own clock; clocks of two hosts are never compared. While a standby may be alive, the driver does no
maintenance itself. Once the last standby is silent for `fresh_ms`, or provably gone, the driver does the maintenance
again. Until then, at most for the time of a lease, it is not done; it can be done later.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.messages import (
    Admission,
    CheckpointFailed,
    CheckpointStarted,
    CheckpointWritten,
    EntryExecuted,
    HealthReport,
    HealthReported,
    Lease,
    LeaseChosen,
    LeasedCheckpoint,
    LeaseElapsed,
    LeaseReturned,
    LeaseSettings,
    PublishAnswered,
    PublishCheckpoint,
    Terms,
    Ticked,
    Turn,
    Turns,
)
from checkpoint_protocols.lease.primary import Primary, PrimaryPhase
from checkpoint_protocols.lease.replica import Replica
from checkpoint_protocols.vocabulary import Note

SETTINGS = LeaseSettings(first_ms=20_000, most_ms=600_000, fresh_ms=6_000)
"""Settings of every job's checkpoint lease.

A standby's note is at most two seconds old, unless the standby is at work or not healthy.
"""
SPARED_MS = 60_000
"""Milliseconds without a lease for a standby that has failed."""
BOOT = 1
"""Boot number of every standby: a restarted standby gets a new name."""


@dataclass(frozen=True, slots=True)
class StandbyReport:
    """A standby as its note describes it.

    `lease_of`: the incarnation that it would replace. `clock_ms`: time of its own clock; None: it does no
    maintenance. `health`: in percent. `is_here`: its process is seen to run on this host.
    """

    node: ProcessId
    lease_of: int
    clock_ms: int | None
    health: int = 100
    is_here: bool = False


@dataclass(slots=True)
class _Known:
    """The newest report of a standby, and the driver's time at which it arrived."""

    report: StandbyReport
    since_ms: int


class Delegation:
    """The driver's part, from the start of its incarnation.

    `inherited`: a lease of an earlier incarnation that may still be in use. `turns`: past turns of the standbys.
    `local_ms`: time of the driver's clock, here and in all methods.
    """

    def __init__(
        self, incarnation: int, settings: LeaseSettings, inherited: Lease | None, turns: Turns, local_ms: int
    ) -> None:
        self._incarnation = incarnation
        self._settings = settings
        self._machine = Primary(ProcessId("driver"), incarnation, settings, inherited, turns, local_ms)
        self._known: dict[ProcessId, _Known] = {}
        self._spared_ms: dict[ProcessId, int] = {}
        self._notes: list[Note] = []

    # -- observations --------------------------------------------------------------------------------------------------

    def heard(self, notes: Sequence[StandbyReport], local_ms: int) -> None:
        """Apply all existing notes, except those of provably dead standbys. A lease holder without a note has ended."""
        gone = self._known.keys() - {report.node for report in notes}
        for node in gone:
            del self._known[node]
        for report in notes:
            self._hear(report, local_ms)
        self._count_members()
        out = self._machine.lease
        if out is not None and out.terms.holder not in self._known:
            self._machine.handle(LeaseReturned(out.token))

    def _hear(self, report: StandbyReport, local_ms: int) -> None:
        known = self._known.get(report.node)
        # An unchanged note keeps its time of arrival, so a standby that only hangs becomes silent.
        if known is not None and known.report == report:
            return
        is_new = known is None
        self._known[report.node] = _Known(report, local_ms)
        if report.clock_ms is None or report.lease_of != self._incarnation or self._is_spared(report.node, local_ms):
            return
        # A first note may be old. Only a changed note, or a running process, proves that the standby is alive.
        if report.is_here or not is_new:
            self._report(report.node, report.clock_ms, 0, report.health, local_ms)

    def _count_members(self) -> None:
        # A new standby counts as one that has just had a turn: a restart under a new name must not overtake those that
        # wait.
        turns, members = self._machine.turns, (self._machine.me, *sorted(self._known))
        self._machine.turns = {node: turns.get(node, Turn()) for node in members}

    def ended(self, lease: Lease, payload: int, clock_ms: int, failed: bool, local_ms: int) -> None:
        """Apply the log's row that ends `lease`. `payload`: number of that row, which follows the lease's."""
        out = self._machine.lease
        if out is None or out.token != lease.token:
            return
        holder = lease.terms.holder
        if failed:
            # The failed standby gets no lease for a while, so that another one, or the driver, does the work.
            self._spared_ms[holder] = local_ms + SPARED_MS
            self._machine.heard.pop(holder, None)
            self._machine.handle(LeaseReturned(lease.token))
            return
        known, heard = self._known.get(holder), self._machine.heard.get(holder)
        # Notes may be read out of order: the time of the log's row may be older than the note's.
        newest_ms = clock_ms if heard is None else max(clock_ms, heard[0].clock_ms)
        self._report(holder, newest_ms, payload, 100 if known is None else known.report.health, local_ms)

    def _report(self, node: ProcessId, clock_ms: int, payload: int, health: int, local_ms: int) -> None:
        self._machine.handle(HealthReported(HealthReport(node, BOOT, clock_ms, payload, health), local_ms))

    def _is_spared(self, node: ProcessId, local_ms: int) -> bool:
        return local_ms < self._spared_ms.get(node, local_ms)

    # -- decisions -----------------------------------------------------------------------------------------------------

    def is_ours(self, local_ms: int) -> bool:
        """Return true if the driver does the maintenance: no lease is active, and no standby that could get one may
        be alive.
        """
        self._give_up_on_silent(local_ms)
        return self._machine.phase is PrimaryPhase.FREE and not self._may_live(local_ms)

    def asks(self, local_ms: int, draw: int) -> Terms | None:
        """Return terms to append to the log if a standby can get a lease now, else None.

        The caller has maintenance to do. Terms with an unknown outcome are returned again. `draw`: random number in
        [0, 2**32) that picks the standby. Answered by `chosen`.
        """
        if self._machine.asked is None:
            self._tick(local_ms, draw)
        return self._machine.asked

    def chosen(self, token: int, local_ms: int) -> None:
        """Record that the requested lease is in the log, at row `token`."""
        asked = self._machine.asked
        if asked is not None:
            self._machine.handle(LeaseChosen(Lease(token, asked), local_ms))

    @property
    def out(self) -> Lease | None:
        """The active lease; None if there is none."""
        return self._machine.lease

    @property
    def turns(self) -> Turns:
        """Turns of the known standbys."""
        return {node: turn for node, turn in self._machine.turns.items() if node in self._known}

    def is_watched(self, local_ms: int) -> bool:
        """Return true if a standby may be alive that would replace this incarnation."""
        return any(
            known.report.lease_of == self._incarnation and self._is_fresh(known, local_ms)
            for known in self._known.values()
        )

    def notes(self) -> list[Note]:
        """Return and clear the notes about leases that timed out; an operator may have to check their holders."""
        notes, self._notes = self._notes, []
        return notes

    def _may_live(self, local_ms: int) -> bool:
        return any(
            self._is_fresh(known, local_ms) and self._can_do(node, local_ms) for node, known in self._known.items()
        )

    def _is_fresh(self, known: _Known, local_ms: int) -> bool:
        return known.since_ms >= local_ms - self._settings.fresh_ms

    def _can_do(self, node: ProcessId, local_ms: int) -> bool:
        return self._known[node].report.clock_ms is not None and not self._is_spared(node, local_ms)

    def _give_up_on_silent(self, local_ms: int) -> None:
        if self._machine.phase is PrimaryPhase.WAITING and not self._machine.candidates(local_ms):
            # Any draw will do: without a candidate the tick ends the lease and issues none.
            self._tick(local_ms, 0)

    def _tick(self, local_ms: int, draw: int) -> None:
        self._notes += [effect for effect in self._machine.handle(Ticked(local_ms, draw)) if isinstance(effect, Note)]


class StandbyLease:
    """A standby's part: at most one lease, used for one turn. Times are of this driver's own clock."""

    def __init__(self, me: ProcessId) -> None:
        self._me = me
        self._replica: Replica | None = None
        self._token = 0

    def looked(self, lease: Lease | None, local_ms: int) -> bool:
        """Apply the log's newest lease, or None; return true if a turn may begin.

        A lease that is older than the first read belongs to another standby.
        """
        token = 0 if lease is None else lease.token
        if self._replica is None:
            self._replica = Replica(self._me, BOOT, (self._me,), LeasedCheckpoint(applied=token))
        if lease is not None and token > self._replica.applied:
            # The replica applies every row number of the log; the rows in between are no leases.
            for index in range(self._replica.applied + 1, token):
                self._replica.handle(EntryExecuted(index, None, local_ms))
            self._replica.handle(EntryExecuted(token, lease.terms, local_ms))
            self._token = token
        return self._replica.may_take and not self._replica.taking

    def begins(self, local_ms: int) -> int | None:
        """Begin the turn; return its token, or None if its time is up."""
        machine = self._at_work()
        machine.handle(CheckpointStarted(self._token, local_ms))
        return self._token if machine.taking else None

    def may_work(self, local_ms: int) -> bool:
        """Return true while a turn is in progress and in time."""
        machine = self._at_work()
        return machine.taking and machine.until_ms is not None and local_ms < machine.until_ms

    def goes_on(self, local_ms: int) -> bool:
        """Return true if the turn may take another step; otherwise end it."""
        if self._at_work().taking and not self.may_work(local_ms):
            self._at_work().handle(LeaseElapsed(self._token))
        return self._at_work().taking

    def is_done(self, local_ms: int) -> bool:
        """Finish the work; return true if the log may record it, under the token. Answered by `answered`."""
        effects = self._at_work().handle(CheckpointWritten(self._token, local_ms))
        return any(isinstance(effect, PublishCheckpoint) for effect in effects)

    def answered(self, admitted: bool) -> None:
        """Apply the log's answer: it compared the token."""
        verdict = Admission.ACCEPTED if admitted else Admission.FENCED
        self._at_work().handle(PublishAnswered(self._token, verdict))

    def failed(self) -> None:
        """Give the lease back after a failure; do nothing if the turn is over."""
        machine = self._at_work()
        if machine.taking:
            machine.handle(CheckpointFailed(self._token))
        elif not machine.executes:
            # The log's answer to a finished turn is unknown. A replica that waits for it executes no later lease, and the
            # next look at the log would end this standby's maintenance for good.
            machine.handle(LeaseElapsed(self._token))

    def _at_work(self) -> Replica:
        assert self._replica is not None  # noqa: S101 - for the type checker; nothing begins before the first look
        return self._replica


def turns_of(reports: Mapping[str, tuple[int, int]]) -> dict[ProcessId, Turn]:
    """Return turns from their numbers: per node, `since` and `ttl_ms`."""
    return {ProcessId(node): Turn(since, ttl_ms) for node, (since, ttl_ms) in reports.items()}
