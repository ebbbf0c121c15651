"""The interval dependency graph finds the same line as the solver, and no later failure needs a discardable checkpoint."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_protocols.checkpoints.recovery_line import recovery_line
from checkpoint_protocols.checkpoints.uncoordinated import IntervalGraph, Marks
from checkpoint_protocols.ids import ProcessId
from tests.protocol.histories import STEPS, History, random_steps
from tests.protocol.literal.uncoordinated import ReceiverToSender

P, Q, R = ProcessId("p"), ProcessId("q"), ProcessId("r")


def line_by_graph(history, failed, graph_of=IntervalGraph):
    """Index per process, None for the current state."""
    marks = {p: Marks(history.marks[p], None if p in failed else history.seen[p]) for p in history.processes}
    undone = graph_of(marks).undone([(p, max(history.marks[p])) for p in failed])
    return {p: undone.get(p) for p in history.processes}


def line_by_counts(history, failed):
    chosen = recovery_line(history.candidates(frozenset(failed)), history.ends, failed).chosen
    return {p: candidate.index for p, candidate in chosen.items()}


def failures(history):
    """Every set of processes that can fail together."""
    sizes = range(1, len(history.processes) + 1)
    return chain.from_iterable(combinations(history.processes, size) for size in sizes)


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 4), st.booleans(), STEPS)
def test_the_greatest_line_undoes_the_reachable_intervals(processes, fifo, steps):
    history = History(processes, fifo, steps)
    for failed in failures(history):
        assert line_by_graph(history, failed) == line_by_counts(history, failed)


@settings(max_examples=120, deadline=None)
@given(st.integers(2, 4), STEPS, STEPS, st.lists(st.integers(0, 9), min_size=4, max_size=4))
def test_no_later_failure_needs_a_discardable_checkpoint(processes, before, after, reported):
    """Theorem 3 with a coordinator that lacks reports of the newest checkpoints."""
    early = History(processes, True, before)
    known = {p: dict(list(early.marks[p].items())[: 1 + n]) for p, n in zip(early.processes, reported, strict=False)}
    needed = IntervalGraph({p: Marks(marks) for p, marks in known.items()}).needed()

    later = History(processes, True, [*before, *after])
    for failed in failures(later):
        for process, index in line_by_counts(later, failed).items():
            assert index not in known[process].keys() - needed[process]


@settings(max_examples=120, deadline=None)
@given(st.integers(2, 4), STEPS, STEPS)
def test_lines_are_the_same_after_discardable_checkpoints_are_gone(processes, before, after):
    early = History(processes, True, before)
    needed = IntervalGraph({p: Marks(marks) for p, marks in early.marks.items()}).needed()
    later = History(processes, True, [*before, *after])
    old = {p: early.marks[p].keys() - needed[p] for p in early.processes}
    failed = later.processes[0]
    full = line_by_graph(later, [failed])

    for process, indices in old.items():
        for index in indices:
            del later.marks[process][index]

    assert line_by_graph(later, [failed]) == full


class NewestOnly(IntervalGraph):
    """Planted: a garbage collection that ignores other processes."""

    def needed(self):
        return {process: {0, max(own.checkpoints)} for process, own in self.marks.items()}


class OpenIntervalsAreOne(IntervalGraph):
    """Planted: intervals after the newest known checkpoint count as that one."""

    def _node(self, sender, interval):
        return (sender, self.marks[sender].begin_of(interval))


@pytest.mark.parametrize("planted", [NewestOnly, OpenIntervalsAreOne])
def test_a_later_failure_finds_a_planted_early_erasure(planted):
    wrong = []
    for seed in range(3_000):
        before, after = random_steps(seed), random_steps(seed + 100_000)
        early, later = History(3, True, before), History(3, True, [*before, *after])
        known = {
            p: dict(list(marks.items())[: 1 + (seed >> n) % 4]) for n, (p, marks) in enumerate(early.marks.items())
        }
        needed = planted({p: Marks(marks) for p, marks in known.items()}).needed()
        for failed in failures(later):
            line = line_by_counts(later, failed)
            wrong += [index for p, index in line.items() if index in known[p].keys() - needed[p]]
        if wrong:
            return
    raise AssertionError("nothing was needed again")


def test_checkpoints_that_no_recovery_can_restore_are_discardable():
    """Process p saves three times and sends nothing: only the newest and the initial checkpoint are needed."""
    marks = {P: Marks({0: {}, 1: {}, 2: {}, 3: {}}), Q: Marks()}
    assert IntervalGraph(marks).needed() == {P: {0, 3}, Q: {0}}


def test_an_unsaved_interval_keeps_the_checkpoint_before_its_receipt():
    """Process q received from p's open interval between its checkpoints 1 and 2: if p fails, q restores 1."""
    marks = {P: Marks({0: {}, 1: {}}), Q: Marks({0: {}, 1: {}, 2: {P: 1}, 3: {P: 1}})}
    graph = IntervalGraph(marks)
    assert graph.undone([(P, 1)]) == {P: 1, Q: 1}
    assert graph.needed()[Q] == {0, 1, 3}


def test_an_interval_that_is_not_known_yet_counts_as_open():
    """Process q has received from interval 4 of p, and p has reported only checkpoint 1."""
    marks = {P: Marks({0: {}, 1: {}}), Q: Marks({0: {}, 1: {}, 2: {P: 4}, 3: {P: 4}})}
    graph = IntervalGraph(marks)
    assert graph.undone([(P, 1)]) == {P: 1, Q: 1}
    assert graph.needed()[Q] == {0, 1, 3}


def test_the_seeds_direction_leaves_orphans():
    """Erratum E7, the smallest case: q received from p's lost interval."""
    history = History(2, True, [(0, 0), (2, 0)])
    assert line_by_graph(history, [P]) == {P: 0, Q: 0}
    assert line_by_graph(history, [P], ReceiverToSender) == {P: 0, Q: None}
