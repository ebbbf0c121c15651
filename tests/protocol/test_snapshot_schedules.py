"""Random schedules with crashes, failed and torn writes, pauses and partitions: no snapshot protocol breaks a promise.

The oracles judge every delivery, every complete line, every recovery and every end (see `simulator`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from checkpoint_lab import NO_FAULTS, Choice, Faults, MessageWorld, Violation, drive
from checkpoint_lab.explore import explore
from checkpoint_lab.process import Process
from checkpoint_lab.scripted import CYCLE, GRAPHS, JOIN, PAIR
from checkpoint_lab.timed import TIMED, measure
from checkpoint_protocols.graph import COORDINATOR
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.recovery import Protocol, ProtocolSettings
from checkpoint_protocols.snapshots import acyclic as snapshots
from checkpoint_protocols.snapshots import cyclic as cyclic_snapshots
from checkpoint_protocols.snapshots import epochs, markers, partial_recovery, stop_the_world, wall_clock
from tests.protocol.audited import AuditedWorld, graphs_for, play

PROTOCOLS = [each.PROTOCOL for each in (stop_the_world, markers, epochs, snapshots, cyclic_snapshots, partial_recovery)]
SEEDS = 12
"""Seeds per graph: eight graphs, of which five are acyclic."""

# The large number is a long test's; tests/protocol/test_snapshot_bugs.py judges what schedules find.
each_number = pytest.mark.parametrize("seeds", [SEEDS // 2, pytest.param(2 * SEEDS, marks=pytest.mark.long)])

HURRIED = ProtocolSettings(timeout_ms=300)
"""A timeout below the interval: snapshots abort half way, and the next begins among their barriers."""

each_protocol = pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda protocol: protocol.name)


def outcomes(
    protocol: Protocol, settings: ProtocolSettings | None = None, seeds: int = SEEDS
) -> Iterator[Counter[str]]:
    """Counts of events of each schedule. Raises the first violation."""
    for graph in graphs_for(protocol):
        for seed in range(seeds):
            outcome = play(protocol, graph, seed, steps=120, settings=settings)
            if outcome.error is not None:
                raise outcome.error
            yield Counter(outcome.counts)


@each_number
@each_protocol
def test_no_schedule_breaks_a_promise_and_every_calm_end_has_a_snapshot(protocol: Protocol, seeds: int) -> None:
    counts = list(outcomes(protocol, seeds=seeds))

    assert all(each["complete"] for each in counts)
    assert sum(each["recovery"] for each in counts) > len(counts) / 2


@each_protocol
def test_aborted_snapshots_leave_no_records(protocol: Protocol) -> None:
    counts = sum(outcomes(protocol, HURRIED, seeds=8), Counter[str]())

    assert counts["aborted"] > 40


class WatchedWorld(AuditedWorld):
    """Counts overlapping epochs and overtaken messages, which P1 promises to survive."""

    def do(self, choice: Choice) -> None:
        super().do(choice)
        coordinator = self.processes[COORDINATOR].machine
        overlapping = isinstance(coordinator, epochs.EpochCoordinator) and len(coordinator.open) > 1
        overtaken = choice[0] == "deliver" and choice[1] in self.graph.channels and choice[2] != 0
        self.count["overlapping"] = self.count.get("overlapping", 0) + overlapping
        self.count["overtaken"] = self.count.get("overtaken", 0) + overtaken


def test_epochs_overlap_and_messages_come_in_any_order() -> None:
    seen = Counter[str]()
    for seed in range(30):
        world = WatchedWorld(epochs.PROTOCOL, CYCLE, Faults(), 5, settings=ProtocolSettings(options={"overlap": 5}))
        outcome = drive(world, seed, 150)
        assert outcome.ok, outcome.error
        seen += Counter(outcome.counts)

    assert seen["overlapping"] > 100
    assert seen["overtaken"] > 100


class SimultaneousWorld(MessageWorld):
    """Counts complete lines whose states the system had at one moment, and those that it never had."""

    had: frozenset[tuple[tuple[int, int], ...]] = frozenset()

    def do(self, choice: Choice) -> None:
        super().do(choice)
        self.had |= {tuple((each.state.sent, each.state.received) for each in self.everybody)}

    def judge_complete(self, process: Process, index: str) -> None:
        super().judge_complete(process, index)
        line = tuple((cut.sent, cut.received) for cut in (self.complete or {}).values())
        self.note("occurred" if line in self.had else "never occurred")


@pytest.mark.parametrize(
    "protocol",
    [each for each in PROTOCOLS if not each.needs.deterministic],
    ids=lambda protocol: protocol.name,
)
def test_only_a_stopped_world_was_in_the_state_of_every_snapshot(protocol: Protocol) -> None:
    """Seed 000: a consistent checkpoint is a state in which the processes may have been, and often never were."""
    seen = Counter[str]()
    for seed in range(20):
        outcome = drive(SimultaneousWorld(protocol, GRAPHS["diamond"], NO_FAULTS, 5), seed, 150)
        assert outcome.ok, outcome.error
        seen += Counter(outcome.counts)

    assert seen["occurred"] > 0
    assert (seen["never occurred"] > 0) == (protocol is not stop_the_world.PROTOCOL)


# -- small scopes, all of them -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("protocol", "crashes"),
    [
        (stop_the_world.PROTOCOL, 0),
        (markers.PROTOCOL, 0),
        (epochs.PROTOCOL, 0),
        (snapshots.PROTOCOL, 0),
        (partial_recovery.PROTOCOL, 0),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_snapshot_of_a_pair_in_every_order(protocol: Protocol, crashes: int) -> None:
    """Every interleaving of messages, writes, replies and the timer, for one input and one snapshot."""
    world = MessageWorld(protocol, PAIR, Faults(crashes, 0, 0, 0, 0, 0, 0), 1)

    seen = explore(world, states_max=2_000, timers_max=1)

    assert seen.states > 50
    assert seen.ends >= 1


# -- the counter-example -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "wrong"),
    [
        (wall_clock.BROADCAST, {"Orphan", "Lost"}),
        (wall_clock.CLOCK, {"Orphan", "Lost"}),
        (wall_clock.COUNTED, {"Orphan"}),
    ],
)
def test_the_wall_clock_is_caught_in_every_variant(variant: str, wrong: set[str]) -> None:
    settings = ProtocolSettings(options={"variant": variant})
    graphs = list(GRAPHS.values())
    found = Counter(
        type(play(wall_clock.PROTOCOL, graphs[seed % 8], seed, settings=settings).error).__name__ for seed in range(120)
    )

    assert {"Orphan", "Lost"} & found.keys() == wrong


def share(skew: float, variant: str = wall_clock.CLOCK) -> tuple[float, float]:
    """Shares of complete snapshots with an orphan and with a lost message; `skew` in mean latencies of a message."""
    settings = replace(TIMED, options={"variant": variant})
    audits = [
        audit
        for seed in range(15)
        for audit in measure(wall_clock.PROTOCOL, JOIN, seed, skew_ms=10 * skew, inputs=20, settings=settings).audits
    ]
    orphans = sum(bool(audit.orphans) for audit in audits) / len(audits)
    return orphans, sum(bool(audit.lost) for audit in audits) / len(audits)


def test_equal_clocks_lose_messages_and_skewed_clocks_make_orphans() -> None:
    """Seed 000: a cut without skew is consistent, but messages in flight are lost."""
    orphans, lost = share(0)
    assert orphans == 0
    assert lost > 0.2

    assert [share(skew)[0] for skew in (1, 5, 20)] == sorted(share(skew)[0] for skew in (1, 5, 20))
    assert share(20)[0] > 0.3


def test_counted_messages_make_clock_snapshots_right_only_with_equal_clocks() -> None:
    """Seed 000, "Impact of clock drifts": no message is lost, but orphans are counted twice."""
    assert share(0, wall_clock.COUNTED) == (0, 0)

    orphans, lost = share(20, wall_clock.COUNTED)
    assert orphans > 0.3
    assert lost == 0


def test_barriers_on_a_loop_are_refused() -> None:
    """On a loop, aligned barriers would wait for themselves."""
    with pytest.raises(ProtocolViolation, match="needs an acyclic graph"):
        MessageWorld(snapshots.PROTOCOL, CYCLE)


def test_a_violation_is_an_error_of_the_schedule() -> None:
    """`outcomes` raises every violation."""
    with pytest.raises(Violation):
        list(outcomes(wall_clock.PROTOCOL))
