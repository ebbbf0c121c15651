"""The line of a rewind is the greatest consistent one in every history, and the comparison finds planted bugs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.strategies import integers
from simulated import Simulated

from spark_ckpt.errors import CkptError
from spark_rewind import connections, graph, intervals, line
from spark_rewind.checkpoint import QueryCheckpoint
from spark_rewind.explaining import plan_of
from spark_rewind.graph import graph_of
from spark_rewind.line import find_line
from spark_rewind.positions import DeltaPosition

HISTORIES, LONG_HISTORIES = 400, 10_000
DRAWN = 2**32


def difference(seed: int, *, pins: bool = False, steps: int = 14) -> str | None:
    """The difference between planner and oracle, or None."""
    history = Simulated(seed, steps, pins=pins)
    target = history.target()
    inputs = history.inputs()
    found = find_line(graph_of(inputs, None, target.process), target.allows)
    expected = history.greatest(target)
    chosen = {process: each.index for process, each in found.found.chosen.items()} if found.exists else None
    if chosen != expected:
        return f"line {chosen}, by brute force {expected}"
    if expected is None:
        return None
    plan = plan_of(inputs, found, target, None, 0)
    again = {(e.reader, table.ids[0], e.first, e.last) for table in plan.tables for e in table.in_flight}
    if again != history.in_flight(expected):
        return f"in flight {again}, by the ledger {history.in_flight(expected)}"
    return None


@pytest.mark.long
@pytest.mark.parametrize("pins", [False, True])
@settings(max_examples=LONG_HISTORIES // 2, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
@given(seed=integers(0, DRAWN), steps=integers(5, 20))
def test_it_is_the_greatest_in_ten_thousand_random_histories(seed, steps, pins):
    """Histories of other lengths too, half of them with pinned points."""
    assert difference(seed, pins=pins, steps=steps) is None


def test_it_is_the_greatest_of_all_lines_by_brute_force():
    wrong = {seed: found for seed in range(HISTORIES) if (found := difference(seed)) is not None}
    assert wrong == {}


def test_it_is_the_greatest_of_all_lines_of_retained_and_pinned_points():
    wrong = {seed: found for seed in range(HISTORIES) if (found := difference(seed, pins=True)) is not None}
    assert wrong == {}


def test_pinned_points_make_a_difference():
    """Lines that are newer than without pins, and lines only with pins; by batches deleted from the log, and by lost states."""
    seen = set()
    for seed in range(300):
        with_pins, without = Simulated(seed, pins=True), Simulated(seed)
        best, before = (history.greatest(history.target()) for history in (with_pins, without))
        if best is not None and best != before:
            seen.add("nearer" if before is not None else "a line after all")
            points = [(each, best[name]) for name, each in with_pins.queries.items()]
            pinned = [(each, at) for each, at in points if at is not None and at in each.pinned]
            seen |= {"left the log" for each, at in pinned if at < each.purged}
            seen |= {"state is gone" for each, at in pinned if at in each.gone}
    assert seen == {"nearer", "a line after all", "left the log", "state is gone"}


def forgets_pins_of_lost_states(original):
    return lambda self, batch, why: why


def forgets_pins_of_deleted_batches(original):
    return property(lambda self: self.batches)


def counts_every_batch_as_pinned(original):
    return lambda self, batch, why: None


PIN_BUGS = {
    "a lost state is lost though it is pinned": ("_unless_pinned", forgets_pins_of_lost_states),
    "what left the log is no point though it is pinned": ("known", forgets_pins_of_deleted_batches),
    "everything counts as pinned": ("_unless_pinned", counts_every_batch_as_pinned),
}


@pytest.mark.parametrize("bug", PIN_BUGS)
def test_a_planted_bug_about_pins_is_caught(bug, monkeypatch):
    name, plant = PIN_BUGS[bug]
    monkeypatch.setattr(QueryCheckpoint, name, plant(getattr(QueryCheckpoint, name)))
    assert any(_caught(seed, pins=True) for seed in range(300))


def test_the_histories_contain_every_kind_of_line():
    """Histories with and without a line; queries that stay, roll back, restart; versions in flight; kept unfinished batches."""
    seen = set()
    for seed in range(300):
        history = Simulated(seed)
        best = history.greatest(history.target())
        if best is None:
            seen.add("no line")
            continue
        points = [best[name] for name in history.queries]
        seen |= {"restarts"} if -1 in points else set()
        seen |= {"unfinished stays"} if None in points else set()
        seen |= {"rolls back"} if any(each not in (None, -1) for each in points) else set()
        seen |= {"in flight"} if history.in_flight(best) else set()
    assert seen == {"no line", "restarts", "unfinished stays", "rolls back", "in flight"}


def sends_one_too_many(original):
    return lambda *given: _shifted(original(*given), "sent", 1)


def sends_one_too_few(original):
    return lambda *given: _shifted(original(*given), "sent", -1)


def receives_one_too_few(original):
    return lambda *given: _shifted(original(*given), "received", -1)


def _shifted(channel, what, by):
    counts = {index: max(count + by, 0) if count else 0 for index, count in getattr(channel, what).items()}
    return replace(channel, **{what: counts})


def ignores_reads(original):
    return lambda *given: None


def keeps_lost_messages(original):
    return lambda *given: replace(original(*given), kept=True)


def forgets_the_unfinished_batch(original):
    return lambda query: [each for each in original(query) if each is not None] or [-1]


def forgets_that_it_is_gone(original):
    return lambda self, process, allowed, also_gone: original(self, process, allowed, also_gone=True)


def stops_after_one_step(original):
    def stopped(candidates, ends, failed=(), lost=None):
        whole = original(candidates, ends, failed, lost)
        early = {process: known[-1] for process, known in candidates.items() if known}
        early |= {step.process: step.taken for step in whole.steps[: len(failed) + 1] if step.taken}
        return replace(whole, chosen=early if whole.missing is None else {})

    return stopped


BUGS = {
    "a table holds a batch more": (graph, "writes_table", sends_one_too_many),
    "a table holds a batch less": (graph, "writes_table", sends_one_too_few),
    "a table knows a batch less": (graph, "writes_table", receives_one_too_few),
    "a reader knows a version less": (graph, "reads_table", lambda original: _if_any(receives_one_too_few(original))),
    "edges from tables are ignored": (graph, "reads_table", ignores_reads),
    "what a table lost may be kept": (graph, "writes_table", keeps_lost_messages),
    "an unfinished batch is forgotten": (connections, "query_points", forgets_the_unfinished_batch),
    "points that are gone are taken": (intervals.Intervals, "candidates", forgets_that_it_is_gone),
    "the search stops early": (line, "recovery_line", stops_after_one_step),
}


def _if_any(shifted):
    def maybe(*given):
        return shifted(*given) if connections.reads_table(*given) is not None else None

    return maybe


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_caught(bug, monkeypatch):
    where, name, plant = BUGS[bug]
    planted = plant(getattr(where, name))
    monkeypatch.setattr(where, name, planted)
    if where is connections:
        monkeypatch.setattr(graph, name, planted)
    assert any(_caught(seed) for seed in range(300))


def test_a_partly_read_version_that_counts_as_unread_is_caught(monkeypatch):
    monkeypatch.setattr(DeltaPosition, "versions", property(lambda self: self.version))
    assert any(_caught(seed) for seed in range(300))


def _caught(seed: int, *, pins: bool = False) -> bool:
    try:
        return difference(seed, pins=pins) is not None
    except CkptError:
        return True
