"""Seeds of planted bugs in the order of their trial: first the one that condemned the bug in the last measurement.

Any schedule that condemns a bug catches it. Only the measurement searches for the first one, which takes most of its time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from functools import cache

from integration_tests.proof.page import RESULTS

SHORT: dict[tuple[str, str], int] = {
    ("rows sent early", "rows_of_an_attempt_that_was_given_up_stay_in_the_transaction"): 11,
    ("rows sent early", "what_was_sent_ahead_is_sent_again"): 11,
    ("rows sent early", "rows_of_a_later_batch_are_sent_in_front"): 11,
    ("rules of rows held back", "Forgetful"): 16,
    ("rules of rows held back", "Hasty"): 16,
    ("rules of rows held back", "Endless"): 16,
    ("rules of rows held back", "Backwards"): 16,
    ("surroundings", "coordinated without a memory of what was heard"): 3,
    ("surroundings", "uncoordinated without a memory of what was heard"): 8,
    ("surroundings", "coordinated over bare lines that lose"): 18,
    ("surroundings", "uncoordinated, nothing is said again"): 6,
    ("surroundings", "markers, readers that do not know what was acknowledged"): 7,
    ("surroundings", "synchronous-logging, readers that do not know what was acknowledged"): 1,
    ("surroundings", "epochs, nobody stops for a recovery"): 18,
    ("surroundings", "coordinated, nobody stops for a recovery"): 9,
    ("rules of an incarnation", "an_interval_is_lost_when_a_standby_begins_to_wait"): 4,
    ("rules of an incarnation", "full_files_that_a_task_has_missed_are_not_asked_for_again"): 191,
    ("rules beside it", "an_identity_is_compared_with_nothing"): 5,
    ("rules beside it", "an_epoch_takes_sparks_state_of_the_newest_batch"): 1,
    ("rules beside it", "a_task_reports_its_first_call_only"): 1,
    ("rules beside it", "a_task_reports_its_last_call_only"): 0,
    ("rules beside it", "the_attempts_of_a_task_are_added_up"): 6,
    ("rules beside it", "a_key_group_gets_no_marker"): 0,
    ("rules beside it", "an_outage_counts_as_a_failure"): 2,
    ("rules beside it", "a_failure_passes_like_an_outage"): 2,
    ("rules beside it", "an_outage_is_waited_for_for_ever"): 2,
    ("rules beside it", "a_restore_that_takes_the_epoch_before_the_newest"): 2,
}
"""Shorter schedules that condemn a bug than the measured one, which is the first and may be long."""


def seeds_for(where: str, bug: str, seeds: Iterable[int]) -> list[int]:
    """All of `seeds`, after the measured one. `where`: the measurement's name for the rules with the bug."""
    return known_first(SHORT.get((where, bug), _measured().get((where, bug))), seeds)


def known_first(known: int | None, seeds: Iterable[int]) -> list[int]:
    """All of `seeds`, after the known one if there is one."""
    return [*seeds] if known is None else [known, *(seed for seed in seeds if seed != known)]


@cache
def _measured() -> dict[tuple[str, str], int]:
    caught = json.loads(RESULTS.read_text())["caught"]
    return {(each["where"], each["bug"]): each["seeds"] - 1 for each in caught if each["seeds"] is not None}
