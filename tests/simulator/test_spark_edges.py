"""Edges and the loop of the simulated job lose and repeat no row in flight, and bugs that would are caught."""

from __future__ import annotations

import pytest
from edge_bugs import PATCHED, PLANTED, what_is_still_in_flight_is_given_up, what_was_in_flight_is_not_put_back
from host_bugs import core_with
from measured import seeds_for
from spark_lives import run, world

import checkpoint_lab as sim
from checkpoint_lab import spark_store
from checkpoint_lab.schedules import spark_world
from checkpoint_lab.spark_driver import shipped
from checkpoint_lab.spark_store import LATER, LOOP, Name, Row, expected
from checkpoint_lab.spark_world import judge_restores
from checkpoint_lab.violations import ErasedTooEarly, Orphan, Violation

ENOUGH = 200
SEEDS = [*range(60), 383, 416]
"""In the last two a driver dies after the release of segments, before it deletes them."""


def caught(name, core_of=shipped):
    """The first schedule that is condemned, with its seed; its trace replays to the same verdict."""
    outcomes = (run(seed, core_of) for seed in seeds_for("rules of edges", name, range(ENOUGH)))
    condemned = next((each for each in outcomes if each.condemned), None)
    assert condemned is not None, f"not caught in {ENOUGH} schedules"
    print(f"seed {condemned.seed}, {len(condemned.trace)} steps: {condemned.error}")
    again = sim.replay(lambda: world(condemned.seed, core_of), condemned)
    assert (type(again.error), str(again.error)) == (type(condemned.error), str(condemned.error))


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_in_the_edges_of_an_incarnation_is_caught(plant):
    caught(plant.__name__, core_with(plant))


@pytest.mark.parametrize("plant", PATCHED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_in_counts_and_releases_of_segments_is_caught(plant, monkeypatch):
    plant(monkeypatch.setattr)
    caught(plant.__name__)


def test_a_batch_misses_a_segment_that_was_released_too_early():
    core_of = core_with(what_is_still_in_flight_is_given_up)
    errors = (str(run(seed, core_of).error) for seed in (11, *range(ENOUGH)))
    assert any(error.startswith("O12: segment") for error in errors)


# -- coverage of the schedules ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worlds():
    """Worlds at the end of some schedules."""
    found = []
    for seed in SEEDS:
        world = spark_world(seed)
        outcome = sim.drive(world, seed, 250, 0.08)
        assert outcome.ok, f"seed {seed}: {outcome.error}"
        found.append(world)
    return found


def cuts(worlds, edge):
    return [manifest.edges[edge] for world in worlds for manifest in world.durable.manifests()]


@pytest.mark.parametrize("edge", [LOOP, LATER])
def test_epochs_are_decided_and_restored_with_rows_in_flight(worlds, edge):
    assert sum(cut.produced > cut.consumed > 0 for cut in cuts(worlds, edge)) > 20
    begun = [driver.base.edges[edge] for world in worlds for driver in world.drivers if edge in driver.base.edges]
    assert any(cut.files for cut in begun)


def test_rows_pass_the_loop_more_than_once_and_are_consumed_in_the_end(worlds):
    last = [world.durable.manifests()[-1].edges[LOOP] for world in worlds]
    assert {(cut.consumed, cut.produced) for cut in last} == {(36, 36)}


def test_most_released_segments_are_deleted_and_some_never_are(worlds):
    spent = [path in world.durable.segments for world in worlds for path in world.durable.spent]
    assert spent.count(False) > 100
    assert spent.count(True) > 3


def test_an_epoch_whose_segment_is_gone_is_found(worlds):
    world = next(each for each in worlds if any(cut.files for cut in cuts([each], LOOP)[:-1]))
    named = next(file.path for cut in cuts([world], LOOP) for file in cut.files)
    damaged = world.durable.copy()
    damaged.delete(named)
    with pytest.raises(ErasedTooEarly, match=named):
        judge_restores(damaged, shipped, world.rows)


def test_a_restore_without_rows_in_flight_is_found_without_a_crash(worlds):
    world = next(each for each in worlds if not each.deaths and any(cut.files for cut in cuts([each], LOOP)))
    judge_restores(world.durable, shipped, world.rows)
    with pytest.raises(Violation):
        judge_restores(world.durable, core_with(what_was_in_flight_is_not_put_back), world.rows)


# -- expected content of a cut ------------------------------------------------------------------------------------------


def test_rows_in_the_loop_are_not_expected_yet():
    """Row 2 of source a passes the loop twice, and is input again after its second round."""
    cursors = {"a": 3, "b": 0}
    whole = expected(cursors, {})
    waiting = expected(cursors, {LOOP: [Row(2, 1, Name("a", 2, 1))]})
    assert whole.counts["counts"].total() == 4
    assert waiting.counts["counts"].total() == 3
    assert (whole.produced[LOOP], waiting.produced[LOOP]) == (3, 3)
    assert expected(cursors, {LOOP: [Row(2, 1, Name("a", 2))]}).produced[LOOP] == 2


def test_rows_on_the_edge_between_operators_are_not_expected_after_it():
    row = Row(1, 1, Name("a", 1))
    found = expected({"a": 2, "b": 0}, {LATER: [row]})
    assert found.counts["counts"].total() == 2
    assert found.counts["totals"].total() == 1
    assert sum(map(len, found.shown["out"].values())) == 1


@pytest.mark.parametrize(
    "in_flight",
    [
        {LOOP: [Row(2, 1, Name("a", 2)), Row(2, 1, Name("a", 2))]},
        {LOOP: [Row(2, 1, Name("a", 2)), Row(2, 1, Name("a", 2, 1))]},
        {LOOP: [Row(2, 1, Name("a", 6))]},
        {LOOP: [Row(0, 1, Name("a", 0))]},
        {LATER: [Row(1, 1, Name("a", 1)), Row(1, 1, Name("a", 1))]},
        {LATER: [Row(0, 1, Name("a", 0))]},
        {LATER: [Row(1, 9, Name("a", 1))]},
    ],
)
def test_rows_that_cannot_be_in_flight_are_condemned(in_flight):
    with pytest.raises(Orphan):
        expected({"a": 3, "b": 0}, in_flight)


def test_the_rounds_of_rows_include_none_and_odd_numbers():
    assert {0, 1} < set(spark_store.ROUNDS)
    assert max(spark_store.ROUNDS) % 2 == 1
