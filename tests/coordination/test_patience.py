"""Outages are bounded in time and failures in number, and neither uses up the other's bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ckpt.coordination.patience import Ended, GiveUp, Kind, Patience, Pause, kind_of
from spark_ckpt.driver.query.failures import QueryFailed
from spark_ckpt.errors import BadRecord, CkptError, Fenced, StoreFull, StoreUnreachable, WorkersNotStarted

FULL, LOST, BAD = StoreFull("full"), QueryFailed("executor lost"), BadRecord("x")


class Trial:
    """A run in which every incarnation ends as given; `now_s` advances accordingly."""

    def __init__(self, **options):
        self.patience = Patience(**{"max_failures": 3, "patience_s": 100.0} | options)
        self.now_s = 1000.0

    def ends(self, error: CkptError, lived_s: float = 0.0, progressed: bool = False) -> Pause | GiveUp:
        self.now_s += lived_s
        verdict = self.patience.after(Ended(error, self.now_s, lived_s, progressed))
        if isinstance(verdict, Pause):
            self.now_s += verdict.pause_s
        return verdict

    def until_it_gives_up(self, error: CkptError, lived_s: float = 0.0) -> list[Pause]:
        pauses = []
        while isinstance(verdict := self.ends(error, lived_s), Pause):
            pauses.append(verdict)
        return pauses


@pytest.mark.parametrize(
    ("error", "kind"),
    [(FULL, Kind.PASSES), (StoreUnreachable("x"), Kind.PASSES), (LOST, Kind.COUNTS), (BAD, Kind.FINAL),
     (Fenced("x"), Kind.FINAL), (WorkersNotStarted("x"), Kind.PASSES)],
)  # fmt: skip
def test_every_error_is_of_one_kind(error, kind):
    assert kind_of(error) is kind


def test_an_outage_is_retried_with_growing_pauses_until_patience_ends():
    trial = Trial()
    pauses = trial.until_it_gives_up(FULL)
    assert [pause.pause_s for pause in pauses] == [1, 2, 4, 8, 16, 30, 30, 9]
    assert trial.now_s == 1100.0, "the last attempt is made when patience ends, not before"
    assert [pause.attempt for pause in pauses] == list(range(1, 9))


def test_a_run_without_patience_ends_at_the_first_outage():
    assert isinstance(Trial(patience_s=0.0).ends(FULL), GiveUp)


def test_an_outage_counts_as_no_failure():
    trial = Trial(max_failures=1)
    for _ in range(5):
        assert isinstance(trial.ends(FULL), Pause)
    assert isinstance(trial.ends(LOST), Pause)
    assert isinstance(trial.ends(FULL), Pause)
    assert trial.ends(LOST) == GiveUp(2, 0.0)


def test_workers_that_do_not_start_are_retried_and_count_as_no_failure():
    trial = Trial(max_failures=0)
    pauses = trial.until_it_gives_up(WorkersNotStarted("late"), lived_s=10)
    assert sum(pause.pause_s for pause in pauses) == 100


def test_failures_in_a_row_are_bounded_in_number_and_an_epoch_starts_the_count_again():
    trial = Trial(max_failures=2)
    assert [trial.ends(LOST).pause_s for _ in range(2)] == [1, 2]
    assert trial.ends(LOST, progressed=True).pause_s == 1
    assert isinstance(trial.ends(LOST), Pause)
    assert trial.ends(LOST) == GiveUp(3, 0.0)


def test_an_epoch_ends_the_outage():
    trial = Trial()
    while trial.now_s < 1095:
        trial.ends(FULL)
    verdict = trial.ends(FULL, lived_s=1, progressed=True)
    assert (verdict.waited_s, verdict.pause_s, verdict.attempt) == (0.0, 1.0, 1)


def test_incarnations_that_only_begin_do_not_extend_the_outage():
    trial = Trial()
    pauses = trial.until_it_gives_up(FULL, lived_s=5)
    assert sum(pause.pause_s for pause in pauses) == 100


def test_an_outage_after_a_long_idle_incarnation_is_a_new_one():
    trial = Trial()
    trial.ends(FULL)
    verdict = trial.ends(FULL, lived_s=7200)
    assert (verdict.waited_s, verdict.attempt) == (0.0, 1)


def test_an_error_that_no_restart_cures_ends_the_run_at_once():
    assert Trial().ends(BAD) == GiveUp(0, 0.0)
    assert Trial().ends(BAD, progressed=True) == GiveUp(0, 0.0)


def test_a_stop_bounds_the_outage_and_nothing_lengthens_it_again():
    trial = Trial()
    trial.ends(FULL)
    trial.patience.stop_by(trial.now_s + 10)
    trial.patience.stop_by(trial.now_s + 1000)
    trial.until_it_gives_up(FULL)
    assert trial.now_s == 1011.0


@given(st.lists(st.tuples(st.sampled_from([FULL, LOST]), st.floats(0, 50)), max_size=60))
def test_a_run_without_an_epoch_always_ends(history):
    """At most (failures + 1) outages fit between failures, each no longer than the patience."""
    trial, waited_s = Trial(), 0.0
    for error, lived_s in history:
        verdict = trial.ends(error, lived_s)
        if isinstance(verdict, GiveUp):
            return
        waited_s += verdict.pause_s
        assert 0 < verdict.pause_s <= 30
    assert waited_s <= 4 * 100 + 6
