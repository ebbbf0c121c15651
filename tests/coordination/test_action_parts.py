"""The parts of a batch's action add up to its duration, for any clocks of the tasks."""

from __future__ import annotations

import pytest

from spark_ckpt.coordination.reports import SOURCES, Report, action_parts_ms


def action(began=1000.0, ended=1400.0):
    return Report("input", 0, 0, SOURCES, {"rows_in": 10, "began_ms": began, "ended_ms": ended})


def task(partition, began, ended, snapshot=0.0):
    body = {"late": 0, "began_ms": began, "ended_ms": ended, "snapshot_ms": snapshot}
    return Report("operator", partition, 0, "totals", body)


BUSY = [task(0, 1130, 1250, 30.0), task(1, 1140, 1300, 25.0)]


def test_an_action_has_parts_before_the_first_group_in_groups_and_after_the_last():
    assert action_parts_ms([*BUSY, action()]) == {"fetch": 130, "operator": 140, "snapshot": 30, "staging": 100}


def test_snapshots_are_those_of_the_task_that_took_longest_for_them_not_of_all_tasks_together():
    parts = action_parts_ms([*BUSY, task(2, 1300, 1310, 35.0), action()])
    assert parts["snapshot"] == 35


@pytest.mark.parametrize("off_ms", [0, -5000, 150, 5000])
def test_parts_add_up_to_the_action_with_another_clock_of_the_tasks(off_ms):
    tasks = [task(0, 1130 + off_ms, 1300 + off_ms, 500.0)]
    parts = action_parts_ms([*tasks, action()])
    assert sum(parts.values()) == 400
    assert min(parts.values()) >= 0


def test_an_action_without_an_operator_or_times_has_no_parts():
    assert action_parts_ms([action()]) == {}
    assert action_parts_ms(BUSY) == {}
    assert action_parts_ms([Report("operator", 0, 0, "totals", {"late": 0}), action()]) == {}
