"""Bugs planted in an outbox's additions for `format("outbox")`: in the shipped protocol and rule, and in the lab's host."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_lab.outbox_format import FormatDriver
from spark_ckpt.outbox import protocol
from spark_ckpt.outbox.protocol import Staged
from tests.simulator.outbox_bugs import between


def rows_that_a_sweep_may_have_deleted_are_committed(monkeypatch):
    """Another driver began after they were staged."""

    def host(effect, batch):
        answer = yield effect
        return replace(answer, known=2**31) if isinstance(answer, Staged) else answer

    between(monkeypatch, host)


def the_log_is_read_after_the_rows_were_staged(monkeypatch):
    """The log then has the other driver's incarnation, and the guard has no effect."""
    monkeypatch.setattr(FormatDriver, "known_of_messages", FormatDriver.newest_incarnation)


def a_run_restores_again_in_another_process(monkeypatch):
    monkeypatch.setattr(protocol, "still_accepted", lambda log_state, run, accepted: accepted)


def a_process_does_not_see_that_another_one_has_continued_its_run(monkeypatch):
    monkeypatch.setattr(FormatDriver, "is_stale", lambda driver: False)


def abort_deletes_the_files_of_its_batch(monkeypatch):
    """Spark calls it after a commit whose answer was lost."""

    def delete(driver):
        driver.store.remove(file.path for files in driver.messages.values() for file in files)

    monkeypatch.setattr(FormatDriver, "abort", delete)


PLANTED = [
    rows_that_a_sweep_may_have_deleted_are_committed,
    the_log_is_read_after_the_rows_were_staged,
    a_run_restores_again_in_another_process,
    a_process_does_not_see_that_another_one_has_continued_its_run,
    abort_deletes_the_files_of_its_batch,
]

SEEDS = {
    "rows_that_a_sweep_may_have_deleted_are_committed": 2966,
    "the_log_is_read_after_the_rows_were_staged": 2966,
    "a_run_restores_again_in_another_process": 77,
    "a_process_does_not_see_that_another_one_has_continued_its_run": 139,
    "abort_deletes_the_files_of_its_batch": 10,
}
"""A short schedule that condemns the bug, tried first. A search of 6,000 schedules has found them."""
CATCHERS = (*dict.fromkeys(SEEDS.values()),)
