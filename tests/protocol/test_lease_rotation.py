"""Choice of the next holder, length of a lease, and the store's check of tokens."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checkpoint_lab.violations import NoEnd
from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease import rotation as lease_rotation
from checkpoint_protocols.lease.messages import (
    Admission,
    LeaseSettings,
    Terms,
    Turn,
    admission,
    turns_after,
)
from checkpoint_protocols.lease.primary import PrimaryPhase
from checkpoint_protocols.lease.replica import ReplicaPhase
from checkpoint_protocols.lease.rotation import DRAWS, Estimate, budget_of, first_estimate, patience, pick, weights

A, B, C = ProcessId("a"), ProcessId("b"), ProcessId("c")
MEMBERS = (A, B, C)
SETTINGS = LeaseSettings(least_ms=100, first_ms=1_000, most_ms=4_000, margin_ms=50, fresh_ms=500, rounds=2)
FOR_B = Terms(B, 1, 10_000, 700, 1_000)
R, P = ReplicaPhase, PrimaryPhase


def test_weights_follow_health_and_waiting_and_have_a_floor() -> None:
    turns = {A: Turn(9), B: Turn(1), C: Turn(2)}

    assert weights({B: 100, C: 0}, turns, SETTINGS) == {B: 200, C: 15}


def test_an_overdue_replica_is_next_and_the_longest_waiting_first() -> None:
    turns = {A: Turn(9), B: Turn(4), C: Turn(5)}

    assert weights({B: 100, C: 0}, turns, SETTINGS) == {C: 1}
    assert weights({B: 100, C: 0}, {**turns, B: Turn(6)}, SETTINGS) == {B: 1}
    assert weights({B: 100}, turns, SETTINGS) == {B: 1}


def forced_from() -> int:
    """Leases to others after which B is the only choice; C had the last lease, and A is the primary."""
    waits = range(100)
    return next(n for n in waits if weights({B: 100, C: 100}, {A: Turn(), B: Turn(n), C: Turn()}, SETTINGS) == {B: 1})


def test_a_replica_is_overdue_after_rounds_times_the_secondaries() -> None:
    assert forced_from() == SETTINGS.rounds * 2


@pytest.mark.parametrize("off", [-1, 1])
def test_a_rotation_that_is_off_by_one_is_found(off: int, monkeypatch: pytest.MonkeyPatch) -> None:
    since = lease_rotation.passed_over
    monkeypatch.setattr(lease_rotation, "passed_over", lambda turns, candidate: since(turns, candidate) - off)

    assert forced_from() == SETTINGS.rounds * 2 + off


def test_the_bound_counts_replicas_that_are_overdue_at_the_same_time() -> None:
    """All secondaries but one may be overdue at once, and take turns."""
    assert [patience(members, SETTINGS) for members in (2, 3, 6)] == [2 + 1, 4 + 2, 10 + 5]


def test_every_draw_picks_a_replica_by_weight() -> None:
    shares = {A: 1, B: 3}
    drawn = [pick(shares, draw * DRAWS // 8) for draw in range(8)]

    assert drawn == [A, A, B, B, B, B, B, B]
    assert pick(shares, DRAWS - 1) == B


@pytest.mark.parametrize(("shares", "draw"), [({}, 0), ({A: 1}, DRAWS)])
def test_a_pick_without_candidates_or_with_a_wrong_draw_is_refused(shares: dict[ProcessId, int], draw: int) -> None:
    with pytest.raises(ValueError, match="no candidate"):
        pick(shares, draw)


@pytest.mark.parametrize("draw", [0, DRAWS // 2, DRAWS - 1])
def test_no_replica_waits_longer_than_the_bound_with_any_draw(draw: int) -> None:
    members = tuple(ProcessId(f"n{number}") for number in range(6))
    turns = dict.fromkeys(members, Turn())
    health = {member: 100 if member == "n1" else 0 for member in members[1:]}
    since = dict.fromkeys(health, 0)
    for _ in range(200):
        holder = pick(weights(health, turns, SETTINGS), draw)
        since = {member: 0 if member == holder else passed + 1 for member, passed in since.items()}
        turns = turns_after(turns, Terms(holder, 1, 0, 1, 1))
        assert max(since.values()) <= patience(len(members), SETTINGS)


# -- timeouts and the store --------------------------------------------------------------------------------------------


def test_a_steady_replica_gets_its_time_and_a_margin_over_the_rate() -> None:
    estimate = first_estimate(0, SETTINGS)
    for _ in range(80):
        estimate = estimate.succeeded(700, SETTINGS)

    assert estimate.smoothed_8 // 8 == 700
    assert 700 + SETTINGS.margin_ms <= budget_of(estimate.ttl_ms, SETTINGS) <= 700 + 2 * SETTINGS.margin_ms


def test_one_slow_checkpoint_makes_the_next_lease_longer() -> None:
    steady = Estimate(1_000, 8 * 500, 0)

    assert steady.succeeded(900, SETTINGS).ttl_ms > steady.succeeded(500, SETTINGS).ttl_ms


def test_timeouts_double_up_to_the_longest_and_then_count_towards_the_alert() -> None:
    estimate = first_estimate(900, SETTINGS)
    for expected, alarming in ((1_800, False), (3_600, False), (4_000, False), (4_000, False), (4_000, False)):
        estimate = estimate.missed(SETTINGS)
        assert (estimate.ttl_ms, estimate.alarming(SETTINGS)) == (expected, alarming)
    assert estimate.missed(SETTINGS).alarming(SETTINGS)
    assert not estimate.succeeded(100, SETTINGS).alarming(SETTINGS)


class NeverLonger(Estimate):
    """A timeout leaves the length as it is."""

    def missed(self, settings: LeaseSettings) -> Estimate:
        return self


class LongerByTheMargin(Estimate):
    """A timeout adds the margin instead of doubling."""

    def missed(self, settings: LeaseSettings) -> Estimate:
        return replace(self, ttl_ms=self.ttl_ms + settings.margin_ms)


def timeouts_until_it_fits(needed_ms: int, kind: type[Estimate] = Estimate) -> int:
    """Return the number of timeouts of a replica whose checkpoint takes so long. Raises `NoEnd` if there are too many."""
    estimate = kind(SETTINGS.first_ms)
    for timeouts in range(4):
        if budget_of(estimate.ttl_ms, SETTINGS) >= needed_ms:
            return timeouts
        estimate = estimate.missed(SETTINGS)
    raise NoEnd(f"{needed_ms} ms fit in no lease after {timeouts} timeouts")


def test_a_slow_replica_has_a_lease_that_is_long_enough_after_a_few_timeouts() -> None:
    assert [timeouts_until_it_fits(needed_ms) for needed_ms in (700, 1_400, 2_800)] == [0, 1, 2]


@pytest.mark.parametrize("kind", [NeverLonger, LongerByTheMargin])
def test_a_lease_that_does_not_double_is_found(kind: type[Estimate]) -> None:
    with pytest.raises(NoEnd):
        timeouts_until_it_fits(1_400, kind)


@pytest.mark.parametrize(("last", "expected"), [(0, 1_000), (1, 100), (500, 500), (99_999, 4_000)])
def test_a_new_primary_continues_with_the_last_lease_within_the_bounds(last: int, expected: int) -> None:
    assert first_estimate(last, SETTINGS).ttl_ms == expected


@pytest.mark.parametrize(
    ("newest", "token", "expected"),
    [(0, 1, Admission.ACCEPTED), (4, 4, Admission.REPEATED), (5, 4, Admission.FENCED)],
)
def test_the_store_takes_only_newer_tokens(newest: int, token: int, expected: Admission) -> None:
    assert admission(newest, token) is expected
