"""The default number of key groups of an operator."""

from __future__ import annotations

import pytest

from spark_ckpt.tasks.shuffle_keys import usual_key_groups


@pytest.mark.parametrize(("tasks", "groups"), [(1, 4), (2, 4), (3, 6), (64, 128)])
def test_there_are_two_for_each_task_and_four_at_least(tasks: int, groups: int) -> None:
    assert usual_key_groups(tasks) == groups
