"""The takeover of a standby: not before its time, not later than its bound, once. A planted bug tests each rule."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from checkpoint_protocols.lease.messages import Watched
from checkpoint_protocols.machine import Effect, Event
from spark_ckpt.coordination.standby import HolderGone, LeaseRead, Standby, TakeOver, TakeoverLost, TakeoverWon

TTL_MS, MARGIN_MS, GAP_MS, LOOK_MS = 3_000, 250, 1_000, 250
Kind = type[Standby]


def read(local_ms: int, token: int = 1, lease_of: int = 1, free: bool = False) -> LeaseRead:
    return LeaseRead(lease_of, token, TTL_MS, free, local_ms)


def looks(from_ms: int, to_ms: int, token: int = 1, lease_of: int = 1) -> list[LeaseRead]:
    """Return repeated reads of the log."""
    return [read(at, token, lease_of) for at in range(from_ms, to_ms + 1, LOOK_MS)]


def taken(kind: Kind, *events: Event) -> list[TakeOver]:
    """Return the takeovers of a new machine after these events."""
    machine = kind(MARGIN_MS, GAP_MS)
    return [effect for event in events for effect in machine.handle(event) if isinstance(effect, TakeOver)]


# -- rules ----------------------------------------------------------------------------------------------------------------


def waits_for_the_whole_term_and_the_margin(kind: Kind) -> None:
    assert taken(kind, *looks(0, TTL_MS + MARGIN_MS)) == []


def takes_over_one_look_after_the_term(kind: Kind) -> None:
    assert [each.token for each in taken(kind, *looks(0, TTL_MS + MARGIN_MS + LOOK_MS))] == [1]


def counts_from_the_newest_renewal(kind: Kind) -> None:
    renewed = [*looks(0, 2_500), *looks(2_750, 5_500, token=2), *looks(5_750, 8_500, token=3)]
    assert taken(kind, *renewed) == []


def takes_a_released_lease_at_once(kind: Kind) -> None:
    assert [each.token for each in taken(kind, read(0), read(250, token=2, free=True))] == [2]
    assert len(taken(kind, read(0, token=0, lease_of=0, free=True))) == 1


def takes_from_a_dead_process_at_once(kind: Kind) -> None:
    assert [each.token for each in taken(kind, read(0), read(50, token=2), HolderGone(1))] == [2]


def proof_against_an_earlier_holder_proves_nothing(kind: Kind) -> None:
    assert taken(kind, read(0), read(250, token=2, lease_of=2), HolderGone(1)) == []


def an_outage_of_the_log_is_no_silence_of_the_holder(kind: Kind) -> None:
    """Twenty seconds without a read: the holder could not renew either, and keeps its term."""
    assert taken(kind, *looks(0, 1_000), *looks(21_000, 21_000 + TTL_MS - 1_000)) == []
    assert taken(kind, *looks(0, 1_000), *looks(21_000, 21_000 + TTL_MS)) != []


def a_slow_log_delays_a_takeover_and_does_not_prevent_it(kind: Kind) -> None:
    """Each read takes longer than the gap that is taken for an outage."""
    slow = [read(at) for at in range(0, 60_000, GAP_MS + LOOK_MS)]
    assert taken(kind, *slow[:3]) == []
    assert [each.token for each in taken(kind, *slow)] == [1]


def asks_once_until_it_is_answered(kind: Kind) -> None:
    assert len(taken(kind, *looks(0, 10_000), HolderGone(1))) == 1


def waits_again_when_another_was_faster(kind: Kind) -> None:
    lost = [*looks(0, 3_500), TakeoverLost(), *looks(3_750, 6_750, token=9, lease_of=2)]
    assert [each.token for each in taken(kind, *lost)] == [1]
    assert [each.token for each in taken(kind, *lost, *looks(7_000, 7_250, token=9, lease_of=2))] == [1, 9]


def has_nothing_more_to_take_when_it_leads(kind: Kind) -> None:
    assert len(taken(kind, *looks(0, 3_500), TakeoverWon(), *looks(3_750, 9_000), HolderGone(1))) == 1


RULES: list[Callable[[Kind], None]] = [
    waits_for_the_whole_term_and_the_margin,
    takes_over_one_look_after_the_term,
    counts_from_the_newest_renewal,
    takes_a_released_lease_at_once,
    takes_from_a_dead_process_at_once,
    proof_against_an_earlier_holder_proves_nothing,
    an_outage_of_the_log_is_no_silence_of_the_holder,
    a_slow_log_delays_a_takeover_and_does_not_prevent_it,
    asks_once_until_it_is_answered,
    waits_again_when_another_was_faster,
    has_nothing_more_to_take_when_it_leads,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_a_standby_keeps_the_rule(rule: Callable[[Kind], None]) -> None:
    rule(Standby)


# -- planted bugs ---------------------------------------------------------------------------------------------------------


class TakesEarly(Standby):
    """Ignores the margin, and a part of the term."""

    def _learn(self, event: LeaseRead) -> None:
        super()._learn(event)
        assert self.watched is not None
        self.watched = replace(self.watched, ttl_ms=event.ttl_ms * 7 // 10)


class CountsFromTheFirstReading(Standby):
    """A renewal does not begin a new term."""

    def _learn(self, event: LeaseRead) -> None:
        known = self.watched
        super()._learn(event)
        if known is not None and self.watched is not None:
            self.watched = Watched(self.watched.token, known.ttl_ms, known.since_ms)


class WaitsForTheTermOfAFreeLease(Standby):
    """Ignores that the lease was released."""

    def handle(self, event: Event) -> list[Effect]:
        return super().handle(replace(event, free=False) if isinstance(event, LeaseRead) else event)


class BelievesAnyProof(Standby):
    """Takes the proof that an earlier holder is dead as one about the current holder."""

    def handle(self, event: Event) -> list[Effect]:
        return super().handle(HolderGone(self.lease_of) if isinstance(event, HolderGone) else event)


class IgnoresProof(Standby):
    def _on_gone(self, _event: HolderGone) -> list[Effect]:
        return []


class CountsOutages(Standby):
    """Counts time without a read of the log as silence of the holder."""

    def __init__(self, margin_ms: int, gap_ms: int) -> None:
        super().__init__(margin_ms, 10**9)


class TakesSlowReadsForOutages(Standby):
    """Does not count any part of a long gap between two reads."""

    def _learn(self, event: LeaseRead) -> None:
        known = self.watched
        super()._learn(event)
        if known is not None and self.watched is not None and self.watched != known:
            self.watched = replace(self.watched, since_ms=event.local_ms)


class RestartsAfterEachRead(Standby):
    """Takes every read for a pause."""

    def __init__(self, margin_ms: int, gap_ms: int) -> None:
        super().__init__(margin_ms, 0)


class AsksAgainAndAgain(Standby):
    """Does not wait for the answer."""

    def _take(self, watched: Watched, why: str) -> list[Effect]:
        return [TakeOver(watched.token, why)]


class GivesUpWhenItLost(Standby):
    def _on_lost(self, _event: TakeoverLost) -> list[Effect]:
        return []


class KeepsTheOldTermWhenItLost(Standby):
    """Gives the new holder only the rest of the old one's term, which is over."""

    def _learn(self, event: LeaseRead) -> None:
        known = self.watched
        super()._learn(event)
        if known is not None and self.watched is not None and known.token != event.token and event.lease_of > 1:
            self.watched = replace(self.watched, since_ms=known.since_ms)


BUGS: list[tuple[Kind, Callable[[Kind], None]]] = [
    (TakesEarly, waits_for_the_whole_term_and_the_margin),
    (CountsFromTheFirstReading, counts_from_the_newest_renewal),
    (WaitsForTheTermOfAFreeLease, takes_a_released_lease_at_once),
    (BelievesAnyProof, proof_against_an_earlier_holder_proves_nothing),
    (IgnoresProof, takes_from_a_dead_process_at_once),
    (CountsOutages, an_outage_of_the_log_is_no_silence_of_the_holder),
    (TakesSlowReadsForOutages, a_slow_log_delays_a_takeover_and_does_not_prevent_it),
    (RestartsAfterEachRead, takes_over_one_look_after_the_term),
    (AsksAgainAndAgain, asks_once_until_it_is_answered),
    (GivesUpWhenItLost, waits_again_when_another_was_faster),
    (KeepsTheOldTermWhenItLost, waits_again_when_another_was_faster),
]


@pytest.mark.parametrize(("bug", "rule"), BUGS, ids=lambda each: each.__name__)
def test_the_rule_finds_its_planted_bug(bug: Kind, rule: Callable[[Kind], None]) -> None:
    with pytest.raises(AssertionError):
        rule(bug)


# -- three drivers with drifting clocks, and a log ---------------------------------------------------------------------------

SLOWEST, FASTEST = 0.85, 1.2
"""Clock rates relative to true time: any two clocks run at a ratio of 0.7 or more."""
STEP_MS = 25


@dataclass
class Driver:
    """A driver with its own clock. A primary (it has an incarnation) renews each third of its term; the others read the log."""

    rate: float
    offset_ms: float
    standby: Standby
    incarnation: int = 0
    next_ms: float = float("-inf")
    """Time of the driver's own clock."""
    paused_until_ms: float = 0.0
    dead: bool = False

    def clock_ms(self, now_ms: float) -> float:
        return now_ms * self.rate + self.offset_ms

    def works(self, now_ms: float) -> bool:
        return not self.dead and now_ms >= self.paused_until_ms


class World:
    """A world in true time, in ms. `harm`: drivers die and pause, one at a time, and renewals get lost."""

    def __init__(self, kind: Kind, seed: int, harm: bool = True) -> None:
        self.kind, self.draw, self.harm = kind, random.Random(seed), harm
        self.lease_of = self.token = 1
        self.drivers = [self._driver() for _ in range(3)]
        self.drivers[0].incarnation = 1
        self.longest_unheld_ms = self._held_ms = 0

    def run(self, for_ms: int = 120_000) -> World:
        for now_ms in range(0, for_ms, STEP_MS):
            if self.harm:
                self._hurt(now_ms)
            for number, driver in enumerate(self.drivers):
                if driver.works(now_ms) and driver.clock_ms(now_ms) >= driver.next_ms:
                    self._act(number, driver, now_ms)
            self._judge(now_ms)
        return self

    def _driver(self) -> Driver:
        rate, offset_ms = self.draw.uniform(SLOWEST, FASTEST), self.draw.uniform(0, 1e9)
        return Driver(rate, offset_ms, self.kind(MARGIN_MS, GAP_MS))

    def _hurt(self, now_ms: int) -> None:
        for number, driver in enumerate(self.drivers):
            if driver.dead and self.draw.random() < 0.01:
                self.drivers[number] = self._driver()
        if all(driver.works(now_ms) for driver in self.drivers) and self.draw.random() < 0.01:
            victim = self.draw.choice(self.drivers)
            victim.dead = self.draw.random() < 0.3
            victim.paused_until_ms = now_ms + self.draw.uniform(100, 15_000)

    def _act(self, number: int, driver: Driver, now_ms: int) -> None:
        clock_ms = driver.clock_ms(now_ms)
        driver.next_ms = clock_ms + (TTL_MS / 3 if driver.incarnation else LOOK_MS)
        if not driver.incarnation:
            self._look(driver, round(clock_ms))
        elif self.lease_of != driver.incarnation:
            self.drivers[number] = self._driver()  # fenced: it ends, and starts again
        elif not self.harm or self.draw.random() < 0.95:
            self.token += 1

    def _look(self, driver: Driver, local_ms: int) -> None:
        for effect in driver.standby.handle(LeaseRead(self.lease_of, self.token, TTL_MS, False, local_ms)):
            assert isinstance(effect, TakeOver)
            if effect.token != self.token:
                driver.standby.handle(TakeoverLost())
                continue
            driver.standby.handle(TakeoverWon())
            self.lease_of, self.token = self.lease_of + 1, self.token + 1
            driver.incarnation = self.lease_of

    def _judge(self, now_ms: int) -> None:
        if any(each.incarnation == self.lease_of and each.works(now_ms) for each in self.drivers):
            self._held_ms = now_ms
        self.longest_unheld_ms = max(self.longest_unheld_ms, now_ms - self._held_ms)


BOUND_MS = (TTL_MS + MARGIN_MS + 2 * LOOK_MS) / SLOWEST + 2 * STEP_MS
"""Bound for an unheld lease: the term and the margin on the slowest clock, a read for the last renewal, and one for the end."""


def longest_unheld_ms(kind: Kind) -> int:
    return max(World(kind, seed).run().longest_unheld_ms for seed in range(15))


def test_no_lease_is_unheld_for_longer_than_the_bound() -> None:
    assert longest_unheld_ms(Standby) <= BOUND_MS
    assert longest_unheld_ms(RestartsAfterEachRead) > BOUND_MS, "the world finds a standby that never takes over"


def test_a_driver_that_renews_is_never_replaced() -> None:
    assert {World(Standby, seed, harm=False).run().lease_of for seed in range(15)} == {1}
    assert World(CountsFromTheFirstReading, 1, harm=False).run().lease_of > 1, (
        "the world finds a standby that takes over too early"
    )
