"""The shipped rules in a world with faults at every step are sound, and planted bugs are found."""

from __future__ import annotations

import pytest
from host_bugs import PLANTED, core_with
from measured import SHORT, seeds_for
from rules_bugs import PLANTED_AROUND, a_log_that_takes_a_number_again
from spark_lives import run, world

import checkpoint_lab as sim
from checkpoint_lab.spark_driver import shipped
from checkpoint_lab.spark_store import OPERATORS

ENOUGH = 400


def first_failure(where, name, core_of):
    """The first schedule that an oracle or a machine condemns, if any."""
    outcomes = (run(seed, core_of) for seed in seeds_for(where, name, range(ENOUGH)))
    return next((outcome for outcome in outcomes if outcome.condemned), None)


@pytest.mark.parametrize("schedules", [100, pytest.param(600, marks=pytest.mark.long)])
def test_no_schedule_is_condemned_and_every_kind_of_fault_happens(schedules):
    happened = dict.fromkeys(
        ["crash", "usurped", "query lost", "store away", "store fail", "store silent", "publish fail", "publish silent",
         "begin fail", "begin silent", "run twice", *(f"miss {operator}" for operator in OPERATORS),
         "complete", "out of retries", "in flight", "delete", "overdue", "late decided", "late fenced",
         "swept", "begin astray"], 0,
    )  # fmt: skip
    for seed in range(schedules):
        outcome = sim.run_spark(seed)
        assert outcome.ok, f"seed {seed}: {outcome.error}"
        for what in happened:
            happened[what] += outcome.counts.get(what, 0)
    assert min(happened.values()) > schedules // 60, happened
    assert happened["complete"] > 3 * schedules


@pytest.mark.parametrize("lives", [pytest.param(8, marks=pytest.mark.smoke), pytest.param(40, marks=pytest.mark.long)])
def test_no_long_or_eager_schedule_of_a_job_is_condemned(lives):
    soon = {seed for (where, _), seed in SHORT.items() if where != "surroundings"}  # those run without each bug there
    outcomes = [run(seed) for seed in {*range(lives), *soon}]
    assert [(outcome.seed, outcome.error) for outcome in outcomes if not outcome.ok] == []


def caught(where, name, core_of):
    """Assert that a schedule condemns the bug."""
    found = first_failure(where, name, core_of)
    assert found is not None, f"{name}: no schedule of {ENOUGH} is condemned"
    print(f"{name}: seed {found.seed}, {len(found.trace)} steps: {str(found.error).splitlines()[0]}")
    return found


# One of each kind of verdict, with a machine's; the long ones are of the same kinds.
@pytest.mark.parametrize(
    "plant",
    [plant if at % 10 == 0 else pytest.param(plant, marks=pytest.mark.long) for at, plant in enumerate(PLANTED)],
    ids=lambda plant: plant.__name__,
)
def test_a_condemned_schedule_repeats_its_verdict_from_trace_and_seed(plant):
    core_of = core_with(plant)
    found = caught("rules of an incarnation", plant.__name__, core_of)
    for again in (sim.replay(lambda: world(found.seed, core_of), found), run(found.seed, core_of)):
        assert (type(again.error), str(again.error)) == (type(found.error), str(found.error))
        assert again.trace == found.trace


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_in_the_rules_of_an_incarnation_is_caught(plant):
    caught("rules of an incarnation", plant.__name__, core_with(plant))


@pytest.mark.parametrize("plant", PLANTED_AROUND, ids=lambda plant: plant.__name__)
def test_a_planted_bug_in_the_rules_around_an_incarnation_is_caught(plant, monkeypatch):
    plant(monkeypatch)
    caught("rules beside it", plant.__name__, shipped)


def test_a_number_that_is_used_again_is_condemned_at_its_commit(monkeypatch):
    a_log_that_takes_a_number_again(monkeypatch)
    assert str(sim.run_spark(0).error) == "O8: epoch 1 is committed after epoch 1"


def test_the_bugs_that_are_planted_differ():
    bugs = PLANTED + PLANTED_AROUND
    assert len({plant.__name__ for plant in bugs}) == len(bugs) > 50
