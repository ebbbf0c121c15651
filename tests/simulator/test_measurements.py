"""Campaigns count their events; timed runs measure the cost of clocks and failures."""

from __future__ import annotations

import pytest

import checkpoint_lab as sim
from checkpoint_lab.message_world import MessageWorld
from checkpoint_lab.scripted import handled_cells
from checkpoint_lab.timed import TIMED, skewed
from checkpoint_protocols.checkpoints import index_based
from checkpoint_protocols.message_logging import adaptive_logging
from checkpoint_protocols.recovery import Protocol
from checkpoint_protocols.snapshots import wall_clock
from tests.simulator import markers
from tests.simulator.planted import HearsTheDead


def test_a_campaign_sums_up_and_covers_the_table() -> None:
    report = sim.campaign(markers.protocol(), sim.GRAPHS["pipeline"], range(200))

    assert report.schedules == 200
    assert report.failures == []
    assert report.counts["crash"] + report.counts["suspicion"] >= report.counts["recovery"] > 100
    assert report.counts["complete"] > 200
    assert report.missed == []
    assert report.coverage == 1.0


def test_shares_of_a_campaign_add_up_to_the_whole() -> None:
    def total(processes: int) -> tuple[object, ...]:
        report = sim.campaign(markers.protocol(), sim.GRAPHS["pair"], range(40), processes)
        return (report.schedules, report.steps, report.counts, report.reached)

    assert total(1) == total(2)


def test_a_campaign_keeps_failures_with_their_traces() -> None:
    report = sim.campaign(markers.protocol(worker=HearsTheDead), sim.GRAPHS["diamond"], range(60))

    assert report.failures
    assert all(failure.trace for failure in report.failures)


def test_only_cells_with_a_handler_count() -> None:
    cells = handled_cells([markers.Worker])

    assert ("Worker", "RUNNING", "Received") in cells
    assert ("Worker", "RUNNING", "TimerElapsed") not in cells


def rates(skew_ms: float, seeds: int = 25) -> tuple[float, float]:
    """Shares of snapshots with an orphan, and with a loss."""
    runs = [sim.measure(wall_clock.PROTOCOL, sim.GRAPHS["cycle"], seed, skew_ms=skew_ms) for seed in range(seeds)]
    audits = [audit for run in runs for audit in run.audits]
    return (
        sum(bool(audit.orphans) for audit in audits) / len(audits),
        sum(bool(audit.lost) for audit in audits) / len(audits),
    )


def test_wall_clock_snapshots_lose_messages_even_with_perfect_clocks_and_double_them_with_skewed_ones() -> None:
    """P2 of the literature: no orphans without skew, many with a skew of several latencies, and losses always."""
    perfect, off_by_one, off_by_five = rates(0), rates(10), rates(50)

    assert perfect[0] == 0
    assert 0 < off_by_one[0] < off_by_five[0]
    assert off_by_five[0] > 0.3
    assert all(loss > 0.25 for _, loss in (perfect, off_by_one, off_by_five))


def test_a_sound_protocol_works_with_any_skew() -> None:
    run = sim.measure(markers.protocol(), sim.GRAPHS["cycle"], 1, skew_ms=50, crashes=[(150, "a"), (400, "k")])

    assert run.counts["crash"] == 2
    assert len(run.recovery_ms) == 2
    assert run.audits == ()
    assert run.reread > 0


def test_every_crash_counts_until_its_process_works_again() -> None:
    """The second crash is after the process has done its part of the first recovery, while another has not."""
    run = sim.measure(markers.protocol(), sim.GRAPHS["cycle"], 0, crashes=[(150, "a"), (220, "a")])

    first, second = run.recovery_ms
    assert first - second == 220 - 150


@pytest.mark.parametrize("protocol", [index_based.PROTOCOL, adaptive_logging.PROTOCOL], ids=lambda each: each.name)
def test_rows_are_shown_when_the_slowest_clock_has_come_to_their_index(protocol: Protocol) -> None:
    run = sim.measure(protocol, sim.GRAPHS["diamond"], 0, skew_ms=20_000)

    assert len(run.shown_ms) == run.counts["rows shown"] == 40
    assert max(run.shown_ms) > 10_000


def test_a_timed_run_replays_from_its_trace() -> None:
    graph, seed = sim.GRAPHS["diamond"], 3
    run = sim.measure(markers.protocol(), graph, seed, skew_ms=20, crashes=[(200, "a")], story=True)
    world = MessageWorld(
        markers.protocol(), graph, sim.Faults(crashes=1), 20, settings=TIMED, clocks=skewed(graph, seed, 20)
    ).watch()

    for choice in run.trace:
        world.perform(choice)

    assert tuple(world.moments or ()) == run.moments


@pytest.mark.parametrize(("clock", "now", "local"), [(sim.LinearClock(2.0, 5), 10, 25), (sim.LinearClock(), 10, 10)])
def test_a_clock_has_a_rate_and_an_offset(clock: sim.LinearClock, now: float, local: int) -> None:
    assert clock.local(now) == local
    assert clock.local(clock.after(now, 30)) == local + 30
