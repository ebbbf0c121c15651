"""The rules that ship, hosted by a world in which everything may fail at every step: sound, and not for want of looking."""

from __future__ import annotations

import pytest
from host_bugs import PLANTED, core_with

import spark_ckpt.simulator as sim
from spark_ckpt.host import reports
from spark_ckpt.simulator.spark_rows import OPERATORS
from spark_ckpt.store import epoch_log, restore
from spark_ckpt.store.tail import Tail

SCHEDULES = 600
ENOUGH = 400


def first_failure(core_of=None):
    """The first schedule that an oracle condemns, if any."""
    run = sim.run_spark if core_of is None else lambda seed: sim.run_spark(seed, core_of)
    return next((outcome for outcome in map(run, range(ENOUGH)) if not outcome.ok), None)


def test_no_schedule_is_condemned_and_every_kind_of_fault_happens():
    happened = dict.fromkeys(
        ["crash", "usurped", "query lost", "store fail", "store silent", "publish fail", "publish silent",
         "begin fail", "begin silent", "run twice", *(f"miss {operator}" for operator in OPERATORS),
         "complete", "in flight", "delete"], 0,
    )  # fmt: skip
    for seed in range(SCHEDULES):
        outcome = sim.run_spark(seed)
        assert outcome.ok, f"seed {seed}: {outcome.error}"
        for what in happened:
            happened[what] += outcome.counts.get(what, 0)
    assert min(happened.values()) > 10, happened
    assert happened["complete"] > 3 * SCHEDULES


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_bug_in_the_rules_of_an_incarnation_is_caught(plant):
    condemned = first_failure(core_with(plant))
    assert condemned is not None
    assert not isinstance(condemned.error, TypeError | AttributeError | NameError), condemned.error


def test_a_trace_replays_to_the_same_verdict():
    condemned = first_failure(core_with(PLANTED[3]))
    make = lambda: sim.SparkWorld(  # noqa: E731
        core_with(PLANTED[3]), draining=condemned.seed % 2 == 1, deaths=condemned.seed % 3 > 0
    )
    again = sim.replay(make, condemned)
    assert (type(again.error), str(again.error)) == (type(condemned.error), str(condemned.error))


def test_a_task_of_one_operator_taken_for_a_newer_attempt_of_anothers_is_caught(monkeypatch):
    monkeypatch.setattr(reports, "_place", lambda report: (report.step, report.partition, ""))
    assert first_failure() is not None


# -- the log that ships -------------------------------------------------------------------------------------------------


def test_a_log_without_a_fence_is_caught(monkeypatch):
    monkeypatch.setattr(epoch_log, "_fence", lambda tail, incarnation: None)
    assert first_failure() is not None


def test_a_log_that_forgets_what_a_sink_is_owed_is_caught(monkeypatch):
    unacked = Tail.unacked
    monkeypatch.setattr(Tail, "unacked", lambda tail, sink: unacked(tail, sink)[1:])
    assert first_failure() is not None


def test_a_restore_that_takes_the_epoch_before_the_newest_is_caught(monkeypatch):
    candidates = restore._candidates
    monkeypatch.setattr(restore, "_candidates", lambda tail: list(candidates(tail))[1:] or list(candidates(tail)))
    assert first_failure() is not None
