"""One standby at a time does a job's maintenance; the driver does it if there is none. Each rule finds a planted bug."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import groupby

import pytest

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.delegation import SETTINGS, SPARED_MS, Delegation, StandbyLease, StandbyReport
from checkpoint_protocols.lease.messages import Lease, Terms, Turns
from checkpoint_protocols.lease.rotation import DRAWS, patience

B, C = ProcessId("b"), ProcessId("c")
FRESH_MS = SETTINGS.fresh_ms
Kind = type[Delegation]
Holder = type[StandbyLease]


def note_of(node: ProcessId = B, clock_ms: int | None = 0, lease_of: int = 1, is_here: bool = False) -> StandbyReport:
    return StandbyReport(node, lease_of, clock_ms, 100, is_here)


def driver(kind: Kind, inherited: Lease | None = None, incarnation: int = 1) -> Delegation:
    return kind(incarnation, SETTINGS, inherited, {}, 0)


def report_twice(delegation: Delegation, *nodes: ProcessId, at_ms: int = 0) -> None:
    """Two reports of each standby: the second proves that it is alive."""
    delegation.heard([note_of(node, 1_000) for node in nodes], at_ms)
    delegation.heard([note_of(node, 1_500) for node in nodes], at_ms + 500)


def grant_lease(delegation: Delegation, at_ms: int, token: int = 7) -> Lease:
    terms = delegation.asks(at_ms, 0)
    assert terms is not None
    delegation.chosen(token, at_ms)
    return Lease(token, terms)


def test_a_driver_is_watched_while_a_standby_of_its_incarnation_may_be_alive() -> None:
    delegation = driver(Delegation)
    delegation.heard([note_of(B, lease_of=0)], 0)
    assert not delegation.is_watched(0), "the standby has not seen this incarnation yet"
    delegation.heard([note_of(B, None)], 1_000)
    assert delegation.is_watched(1_000 + FRESH_MS), "also one that does no maintenance"
    assert not delegation.is_watched(1_001 + FRESH_MS)
    delegation.heard([note_of(B, 2_000)], 8_000)
    assert delegation.is_watched(8_000)
    delegation.heard([], 8_001)
    assert not delegation.is_watched(8_001), "the standby has withdrawn its note"


# -- the driver's part -------------------------------------------------------------------------------------------------------


def driver_works_without_standbys(kind: Kind) -> None:
    delegation = driver(kind)
    delegation.heard([], 0)
    assert delegation.is_ours(0)
    assert delegation.asks(0, 0) is None


def driver_waits_while_a_standby_may_be_alive(kind: Kind) -> None:
    """Its note alone, before a second one proves that it is alive."""
    delegation = driver(kind)
    delegation.heard([note_of()], 0)
    assert not delegation.is_ours(FRESH_MS)
    assert delegation.asks(FRESH_MS, 0) is None, "one note may be of a dead standby: no lease for it"


def driver_waits_while_a_lease_is_out(kind: Kind) -> None:
    delegation = driver(kind)
    report_twice(delegation, B)
    lease = grant_lease(delegation, 600)
    assert not delegation.is_ours(600 + lease.terms.ttl_ms)


def driver_resumes_when_the_last_standby_is_silent(kind: Kind) -> None:
    delegation = driver(kind)
    report_twice(delegation, B)
    assert delegation.is_ours(501 + FRESH_MS)


def driver_resumes_after_the_deadline_of_the_lease(kind: Kind) -> None:
    delegation = driver(kind)
    report_twice(delegation, B)
    lease = grant_lease(delegation, 600)
    assert delegation.is_ours(601 + lease.terms.ttl_ms)


def driver_notes_a_turn_that_took_too_long(kind: Kind) -> None:
    delegation = driver(kind)
    report_twice(delegation, B)
    lease = grant_lease(delegation, 600)
    assert delegation.notes() == []
    delegation.is_ours(601 + lease.terms.ttl_ms)
    assert [note.what for note in delegation.notes()] == ["lease timed out"]
    assert delegation.notes() == []


def driver_resumes_at_once_when_the_holder_is_gone(kind: Kind) -> None:
    delegation = driver(kind)
    report_twice(delegation, B)
    grant_lease(delegation, 600)
    delegation.heard([], 700)
    assert delegation.is_ours(700)


def driver_leases_at_once_to_a_process_on_its_machine(kind: Kind) -> None:
    delegation = driver(kind)
    delegation.heard([note_of(is_here=True)], 0)
    assert grant_lease(delegation, 0).terms.holder == B


def driver_leases_only_to_standbys_of_its_incarnation(kind: Kind) -> None:
    """The note may be this driver's own, from its time as a standby."""
    delegation = driver(kind, incarnation=2)
    delegation.heard([note_of(is_here=True, lease_of=1)], 0)
    delegation.heard([note_of(clock_ms=500, is_here=True, lease_of=1)], 500)
    assert delegation.asks(500, 0) is None


def driver_leases_only_to_standbys_with_a_clock(kind: Kind) -> None:
    """A note without a clock: maintenance stays with the driver."""
    delegation = driver(kind)
    delegation.heard([note_of(clock_ms=None, is_here=True)], 0)
    assert delegation.asks(0, 0) is None
    assert delegation.is_ours(0)


def driver_issues_one_lease_at_a_time(kind: Kind) -> None:
    delegation = driver(kind)
    report_twice(delegation, B, C)
    grant_lease(delegation, 600)
    report_twice(delegation, B, C, at_ms=1_000)
    assert delegation.asks(1_600, 0) is None


def driver_issues_the_next_lease_after_a_turn(kind: Kind) -> None:
    """The driver may read the later note before it reads the log."""
    delegation = driver(kind)
    report_twice(delegation, B)
    lease = grant_lease(delegation, 600)
    delegation.heard([note_of(clock_ms=9_000)], 700)
    delegation.ended(lease, 9, 8_000, False, 800)
    assert grant_lease(delegation, 900, token=10).terms.reported_ms == 9_000


def driver_waits_for_an_inherited_lease(kind: Kind) -> None:
    inherited = Lease(5, Terms(C, 1, 0, 14_000, 20_000))
    delegation = driver(kind, inherited, incarnation=2)
    delegation.heard([note_of(C, 0, 1), note_of(B, 1_000, 2, is_here=True)], 0)
    assert delegation.asks(0, 0) is None
    assert not delegation.is_ours(0)


def driver_works_after_a_failed_turn_and_spares_the_standby(kind: Kind) -> None:
    """The driver does the work that failed there, so a standby that cannot do it does not stop maintenance."""
    delegation = driver(kind)
    report_twice(delegation, B)
    lease = grant_lease(delegation, 600)
    delegation.ended(lease, 9, 8_000, True, 800)
    delegation.heard([note_of(clock_ms=9_000)], 900)
    assert delegation.is_ours(900)
    assert delegation.asks(900, 0) is None
    delegation.heard([note_of(clock_ms=70_000)], 801 + SPARED_MS)
    assert delegation.asks(801 + SPARED_MS, 0) is not None


def driver_repeats_a_request_of_unknown_outcome(kind: Kind) -> None:
    delegation = driver(kind)
    report_twice(delegation, B)
    asked = delegation.asks(600, 0)
    assert asked is not None
    assert delegation.asks(700, 99) == asked


def standbys_take_turns(kind: Kind) -> None:
    """In a new job, and with any draw."""
    delegation = driver(kind)
    holders = [holder_of_turn(delegation, turn, draw=0) for turn in range(1, 30)]
    assert patience_of_two(holders) <= patience(3, SETTINGS)


def standbys_take_turns_by_health(kind: Kind) -> None:
    """Health weighs the draw: a standby of 100 gets twice the share of one of 50."""
    delegation = driver(kind)
    for clock_ms in (1_000, 1_500):
        delegation.heard(
            [replace(note_of(B, clock_ms), health=100), replace(note_of(C, clock_ms), health=50)], clock_ms
        )
    chosen = [copy.deepcopy(delegation).asks(1_600, draw) for draw in range(0, DRAWS, DRAWS // 300)]
    assert sum(terms is not None and terms.holder == B for terms in chosen) == pytest.approx(200, abs=2)


def holder_of_turn(delegation: Delegation, turn: int, draw: int) -> ProcessId:
    at_ms = turn * 10_000
    for clock_ms in (at_ms, at_ms + 500):
        delegation.heard([note_of(node, clock_ms) for node in (B, C)], clock_ms)
    terms = delegation.asks(at_ms + 600, draw)
    assert terms is not None
    delegation.chosen(2 * turn, at_ms + 600)
    delegation.ended(Lease(2 * turn, terms), 2 * turn + 1, at_ms + 600, False, at_ms + 700)
    return terms.holder


def patience_of_two(holders: Sequence[ProcessId]) -> int:
    """The most turns of one of two standbys between two of the other."""
    return max(len(list(turns)) for _, turns in groupby(holders))


DRIVERS: list[Callable[[Kind], None]] = [
    driver_works_without_standbys,
    driver_waits_while_a_standby_may_be_alive,
    driver_waits_while_a_lease_is_out,
    driver_resumes_when_the_last_standby_is_silent,
    driver_resumes_after_the_deadline_of_the_lease,
    driver_notes_a_turn_that_took_too_long,
    driver_resumes_at_once_when_the_holder_is_gone,
    driver_leases_at_once_to_a_process_on_its_machine,
    driver_leases_only_to_standbys_of_its_incarnation,
    driver_leases_only_to_standbys_with_a_clock,
    driver_issues_one_lease_at_a_time,
    driver_issues_the_next_lease_after_a_turn,
    driver_waits_for_an_inherited_lease,
    driver_works_after_a_failed_turn_and_spares_the_standby,
    driver_repeats_a_request_of_unknown_outcome,
    standbys_take_turns,
    standbys_take_turns_by_health,
]


@pytest.mark.parametrize("rule", DRIVERS, ids=lambda rule: rule.__name__)
def test_a_driver_keeps_the_rule(rule: Callable[[Kind], None]) -> None:
    rule(Delegation)


# -- the standby's part ------------------------------------------------------------------------------------------------------

FOR_B = Terms(B, 1, 100, 700, 1_000)


def holding(kind: Holder, *leases: Lease, at_ms: int = 200) -> StandbyLease:
    machine = kind(B)
    machine.looked(None, 0)
    for lease in leases:
        machine.looked(lease, at_ms)
    return machine


def standby_takes_one_turn_per_lease(kind: Holder) -> None:
    machine = holding(kind, Lease(7, FOR_B))
    assert machine.looked(Lease(7, FOR_B), 200)
    assert machine.begins(300) == 7
    assert machine.goes_on(799)
    assert machine.is_done(799)
    machine.answered(True)
    assert not machine.looked(Lease(7, FOR_B), 300), "one lease, one turn"


def standby_ignores_the_lease_of_another(kind: Holder) -> None:
    assert not holding(kind).looked(Lease(7, replace(FOR_B, holder=C)), 200)


def standby_stops_after_its_share_of_the_time(kind: Holder) -> None:
    """Seven tenths of the driver's wait, counted on the standby's clock from the note that the lease answers."""
    machine = holding(kind, Lease(7, FOR_B))
    machine.begins(300)
    assert not machine.goes_on(800)
    machine = holding(kind, Lease(7, FOR_B))
    machine.begins(300)
    assert not machine.is_done(800)
    assert holding(kind, Lease(7, FOR_B)).begins(800) is None


def standby_ignores_a_lease_older_than_itself(kind: Holder) -> None:
    machine = kind(B)
    assert not machine.looked(Lease(7, FOR_B), 200)


def standby_takes_the_next_turn_after_a_missing_answer(kind: Holder) -> None:
    """The turn was done; the append of its row failed with an unknown outcome."""
    machine = holding(kind, Lease(7, FOR_B))
    machine.begins(300)
    assert machine.is_done(400)
    machine.failed()
    assert machine.looked(Lease(9, replace(FOR_B, reported_ms=1_000)), 1_100)
    assert machine.begins(1_200) == 9


HOLDERS: list[Callable[[Holder], None]] = [
    standby_takes_the_next_turn_after_a_missing_answer,
    standby_takes_one_turn_per_lease,
    standby_ignores_the_lease_of_another,
    standby_stops_after_its_share_of_the_time,
    standby_ignores_a_lease_older_than_itself,
]


@pytest.mark.parametrize("rule", HOLDERS, ids=lambda rule: rule.__name__)
def test_a_standby_keeps_the_rule(rule: Callable[[Holder], None]) -> None:
    rule(StandbyLease)


# -- planted bugs ------------------------------------------------------------------------------------------------------------


class WorksWhileStandbysLive(Delegation):
    """A driver that does maintenance while a standby may do it too."""

    def is_ours(self, local_ms: int) -> bool:
        return True


class WorksWhileALeaseIsOut(Delegation):
    """A driver that has issued a lease and does maintenance all the same."""

    def is_ours(self, local_ms: int) -> bool:
        return self.out is not None or super().is_ours(local_ms)


class NeverResumes(Delegation):
    """After the first lease, the driver never does maintenance again."""

    def is_ours(self, local_ms: int) -> bool:
        return super().is_ours(local_ms) and not self.turns


class BelievesAnyNote(Delegation):
    """A driver that takes one note, never rewritten, as proof of a live standby."""

    def _hear(self, report: StandbyReport, local_ms: int) -> None:
        super()._hear(replace(report, is_here=True), local_ms)


class LooksOnlyForLeases(Delegation):
    """A driver that assumes no standby as long as it has issued no lease."""

    def _may_live(self, local_ms: int) -> bool:
        return False


class ForgetsWhatItInherits(Delegation):
    def __init__(
        self, incarnation: int, settings: object, inherited: Lease | None, turns: Turns, local_ms: int
    ) -> None:
        super().__init__(incarnation, SETTINGS, None, turns, local_ms)


class WaitsForTheDead(Delegation):
    """A driver that waits out the lease of a holder that is gone."""

    def heard(self, notes: Sequence[StandbyReport], local_ms: int) -> None:
        super().heard([*notes, *(known.report for known in self._known.values())], local_ms)


class WaitsForTheSilent(Delegation):
    """A driver that checks the lease's deadline only if there is another candidate."""

    def _give_up_on_silent(self, local_ms: int) -> None:
        pass


class SparesNoStandby(Delegation):
    def _is_spared(self, node: ProcessId, local_ms: int) -> bool:
        return False


class LeasesToItself(Delegation):
    """A driver that ignores for which incarnation a standby waits."""

    def _hear(self, report: StandbyReport, local_ms: int) -> None:
        super()._hear(replace(report, lease_of=self._incarnation), local_ms)


class CountsNoMembers(Delegation):
    """Standbys without a turn do not count, so in a new job all are overdue, and the last by name is forced."""

    def _count_members(self) -> None:
        pass


BUGS: list[tuple[Kind, Callable[[Kind], None]]] = [
    (WorksWhileStandbysLive, driver_waits_while_a_lease_is_out),
    (WorksWhileStandbysLive, driver_waits_while_a_standby_may_be_alive),
    (WorksWhileALeaseIsOut, driver_waits_while_a_lease_is_out),
    (NeverResumes, driver_resumes_after_the_deadline_of_the_lease),
    (BelievesAnyNote, driver_waits_while_a_standby_may_be_alive),
    (LooksOnlyForLeases, driver_waits_while_a_standby_may_be_alive),
    (ForgetsWhatItInherits, driver_waits_for_an_inherited_lease),
    (WaitsForTheDead, driver_resumes_at_once_when_the_holder_is_gone),
    (WaitsForTheSilent, driver_resumes_after_the_deadline_of_the_lease),
    (WaitsForTheSilent, driver_notes_a_turn_that_took_too_long),
    (SparesNoStandby, driver_works_after_a_failed_turn_and_spares_the_standby),
    (LeasesToItself, driver_leases_only_to_standbys_of_its_incarnation),
    (CountsNoMembers, standbys_take_turns),
    (CountsNoMembers, standbys_take_turns_by_health),
]


@pytest.mark.parametrize(("bug", "rule"), BUGS, ids=lambda each: each.__name__)
def test_the_rule_finds_the_drivers_planted_bug(bug: Kind, rule: Callable[[Kind], None]) -> None:
    with pytest.raises(AssertionError):
        rule(bug)


class UsesTheWholeTime(StandbyLease):
    """A standby that uses the driver's deadline as its own."""

    def looked(self, lease: Lease | None, local_ms: int) -> bool:
        if lease is not None:
            lease = Lease(lease.token, replace(lease.terms, budget_ms=lease.terms.ttl_ms))
        return super().looked(lease, local_ms)


class NeverLooksAtTheTime(StandbyLease):
    def may_work(self, local_ms: int) -> bool:
        return True


HOLDER_BUGS = [UsesTheWholeTime, NeverLooksAtTheTime]


@pytest.mark.parametrize("bug", HOLDER_BUGS, ids=lambda each: each.__name__)
def test_the_rule_finds_the_standbys_planted_bug(bug: Holder) -> None:
    with pytest.raises(AssertionError):
        standby_stops_after_its_share_of_the_time(bug)


# -- a world of drifting clocks and one log ------------------------------------------------------------------------------------

SLOWEST, FASTEST = 0.85, 1.2
"""Clock rates, relative to true time: any two run at a ratio of 0.7 or more."""
STEP_MS = 50
TICK_MS, NOTE_MS = 1_000, 2_000
TURNS = (3, 3, 3, 100)
"""Steps of a turn: half a second, or sometimes longer than a first lease."""
LONG_TURN_MS = 20_000


@dataclass
class Process:
    """A standby with its own clock. `steps`: left of its turn. `proposed`: the token checked for its next write, which follows
    with its next step, however late."""

    name: ProcessId
    rate: float
    offset_ms: float
    holding: StandbyLease
    paused_until_ms: float = 0.0
    dead: bool = False
    note: StandbyReport | None = None
    reported_ms: float = float("-inf")
    turn: int | None = None
    steps: int = 0
    proposed: int = 0
    is_near: bool = False
    """On the driver's machine: the driver sees at once that its process is dead."""

    def clock_ms(self, now_ms: float) -> int:
        return round(now_ms * self.rate + self.offset_ms)

    def works(self, now_ms: float) -> bool:
        return not self.dead and now_ms >= self.paused_until_ms


@dataclass
class Judged:
    """Violations as texts, and the longest time without maintenance."""

    two: list[str] = field(default_factory=list)
    overlapping: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    longest_ms: int = 0
    ttl_ms: int = 0

    @property
    def bound_ms(self) -> float:
        """Longest time without maintenance: a holder dies in its turn, and the holder of the next lease dies too."""
        return 2 * (self.ttl_ms + FRESH_MS + 2 * TICK_MS + LONG_TURN_MS) / SLOWEST


class World:
    """One driver that never dies; standbys that die, pause and return; an epoch each second. A turn has steps, sometimes more than
    the lease has time for. In a step the standby checks clock and log; the write follows in its next step. `fenced`: the log
    compares the token of a write. `comes_back`: probability that a dead standby returns, per step of the world."""

    def __init__(
        self, seed: int, kind: Kind = Delegation, holder: Holder = StandbyLease, fenced: bool = True, standbys: int = 2,
        comes_back: float = 0.005,
    ) -> None:  # fmt: skip
        self.kind, self.holder, self.fenced, self.draw = kind, holder, fenced, random.Random(seed)
        self.comes_back = comes_back
        self.lease: Lease | None = None
        self.ended: tuple[int, int] | None = None
        self.rows = self.named = self.epoch = self.maintained = self.maintained_ms = 0
        self.judged = Judged()
        self.rate, self.offset_ms = self.draw.uniform(SLOWEST, FASTEST), self.draw.uniform(0, 1e9)
        self.delegation = kind(1, SETTINGS, None, {}, round(self.offset_ms))
        self.standbys = [self._standby() for _ in range(standbys)]
        self.paused_until_ms = 0.0
        self.next_tick_ms = 0.0

    def run(self, for_ms: int) -> Judged:
        for now_ms in range(0, for_ms, STEP_MS):
            self.epoch = now_ms // 1_000
            self._hurt(now_ms)
            for number, standby in enumerate(self.standbys):
                if standby.works(now_ms):
                    self._live(standby, now_ms)
                elif standby.dead and self.draw.random() < self.comes_back:
                    self.standbys[number] = self._standby()
            if now_ms >= max(self.next_tick_ms, self.paused_until_ms):
                self.next_tick_ms = now_ms + TICK_MS
                self._tick(round(now_ms * self.rate + self.offset_ms), now_ms)
            self._judge(now_ms)
        return self.judged

    def _standby(self) -> Process:
        self.named += 1
        name = ProcessId(f"s{self.named}")
        process = Process(name, self.draw.uniform(SLOWEST, FASTEST), self.draw.uniform(0, 1e9), self.holder(name))
        process.is_near = self.draw.random() < 0.5
        return process

    def _hurt(self, now_ms: int) -> None:
        if self.draw.random() < 0.004:
            at_work = [standby for standby in self.standbys if standby.turn is not None and standby.works(now_ms)]
            victim = self.draw.choice(at_work or self.standbys)
            victim.dead = victim.dead or self.draw.random() < 0.3
            victim.paused_until_ms = now_ms + self.draw.uniform(100, 60_000)
        if self.draw.random() < 0.0005:
            self.paused_until_ms = now_ms + self.draw.uniform(100, 20_000)

    # -- a standby -----------------------------------------------------------------------------------------------------------

    def _live(self, standby: Process, now_ms: int) -> None:
        local_ms = standby.clock_ms(now_ms)
        if now_ms - standby.reported_ms >= NOTE_MS:
            standby.note, standby.reported_ms = StandbyReport(standby.name, 1, local_ms), now_ms
        if standby.turn is None:
            if standby.holding.looked(self.lease, local_ms):
                standby.turn, standby.steps = standby.holding.begins(local_ms), self.draw.choice(TURNS)
            return
        self._write(standby, now_ms)
        if standby.turn is None or self.draw.random() < 0.7:
            return
        standby.steps -= 1
        if standby.steps:
            self._propose(standby, local_ms)
        else:
            self._end(standby, local_ms, now_ms)

    def _propose(self, standby: Process, local_ms: int) -> None:
        """Checks the clock and the log before a write."""
        if standby.holding.goes_on(local_ms):
            standby.proposed = standby.turn or 0
        else:
            standby.turn = None

    def _write(self, standby: Process, now_ms: int) -> None:
        token, standby.proposed = standby.proposed, 0
        if not token:
            return
        newest = 0 if self.lease is None else self.lease.token
        if token != newest and self.fenced:
            standby.holding.failed()
            standby.turn = None
        elif token != newest:
            self.judged.stale.append(f"{standby.name} writes under {token} after {newest}, at {now_ms} ms")

    def _end(self, standby: Process, local_ms: int, now_ms: int) -> None:
        turn, standby.turn = standby.turn, None
        if not standby.holding.is_done(local_ms):
            return
        admitted = self.lease is not None and self.lease.token == turn
        standby.holding.answered(admitted)
        if admitted:
            self.rows += 1
            self.ended = (self.rows, local_ms)
            self._done(now_ms)

    # -- the driver ----------------------------------------------------------------------------------------------------------

    def _tick(self, local_ms: int, now_ms: int) -> None:
        if self.ended is not None and self.lease is not None:
            self.delegation.ended(self.lease, *self.ended, False, local_ms)
        there = [standby for standby in self.standbys if not (standby.dead and standby.is_near)]
        self.delegation.heard([standby.note for standby in there if standby.note], local_ms)
        if self.maintained >= self.epoch:
            return
        if self.delegation.is_ours(local_ms):
            self._done(now_ms)
            busy = [each.name for each in self.standbys if each.works(now_ms) and self._has_right(each, now_ms)]
            self.judged.overlapping += [f"the driver works at the same time as {busy}, at {now_ms} ms"] if busy else []
        elif (terms := self.delegation.asks(local_ms, self.draw.randrange(2**32))) is not None:
            self.rows += 1
            self.lease, self.ended = Lease(self.rows, terms), None
            self.delegation.chosen(self.rows, local_ms)
            self.judged.ttl_ms = max(self.judged.ttl_ms, terms.ttl_ms)

    def _done(self, now_ms: int) -> None:
        self.maintained, self.maintained_ms = self.epoch, now_ms

    def _has_right(self, standby: Process, now_ms: int) -> bool:
        return standby.turn is not None and standby.holding.may_work(standby.clock_ms(now_ms))

    def _judge(self, now_ms: int) -> None:
        at_work = [each.name for each in self.standbys if each.works(now_ms) and self._has_right(each, now_ms)]
        if len(at_work) > 1:
            self.judged.two.append(f"{at_work} at {now_ms} ms")
        if now_ms >= self.paused_until_ms + TICK_MS:
            self.judged.longest_ms = max(self.judged.longest_ms, now_ms - max(self.maintained_ms, self.paused_until_ms))


SEEDS = range(12)


@cache
def judged(for_ms: int = 240_000, **options: object) -> list[Judged]:
    return [World(seed, **options).run(for_ms) for seed in SEEDS]  # type: ignore[arg-type]


def test_one_process_works_at_a_time_with_any_clocks_deaths_and_pauses() -> None:
    found = judged()
    assert [each.two for each in found if each.two] == []
    assert [each.overlapping for each in found if each.overlapping] == []
    assert [each.stale for each in found if each.stale] == []


def test_maintenance_never_rests_for_longer_than_the_bound() -> None:
    assert [each.longest_ms for each in judged() if each.longest_ms > each.bound_ms] == []


def test_the_world_finds_a_driver_that_works_while_a_standby_does() -> None:
    assert any(each.overlapping for each in judged(kind=WorksWhileALeaseIsOut))


def test_the_world_finds_a_log_that_does_not_compare_tokens() -> None:
    assert any(each.stale for each in judged(fenced=False))


def test_the_world_finds_a_driver_that_does_not_resume_after_the_last_holders_death() -> None:
    assert any(
        each.longest_ms > each.bound_ms for each in judged(600_000, kind=NeverResumes, standbys=1, comes_back=0.0)
    )
    assert not any(each.longest_ms > each.bound_ms for each in judged(600_000, standbys=1, comes_back=0.0))


def test_the_world_finds_two_holders_at_once_if_a_holder_ignores_its_clock() -> None:
    assert any(each.two for each in judged(holder=NeverLooksAtTheTime))


def test_a_standby_that_ends_its_lease_keeps_its_reported_health() -> None:
    """The next choice weighs its health; the other standby counts twice, as it waited for one turn."""
    assert share_of_one_with(health=100) == pytest.approx(100 / (100 + 200), abs=0.01)
    assert share_of_one_with(health=40) == pytest.approx(40 / (40 + 200), abs=0.01)


def share_of_one_with(health: int) -> float:
    """Share of draws that choose the same holder again after its lease."""
    delegation = driver(Delegation)
    for clock_ms in (1_000, 1_500):
        delegation.heard([replace(note_of(B, clock_ms), health=health), note_of(C, clock_ms)], clock_ms - 1_000)
    lease = grant_lease(delegation, 500)
    delegation.ended(lease, 9, 2_000, failed=False, local_ms=1_000)
    chosen = [copy.deepcopy(delegation).asks(1_000, draw) for draw in range(0, DRAWS, DRAWS // 1_000)]
    assert lease.terms.holder == B
    assert None not in chosen
    return sum(terms.holder == B for terms in chosen if terms is not None) / len(chosen)
