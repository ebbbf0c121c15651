from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ckpt.tasks.packing import pack
from spark_ckpt.tasks.shuffle_keys import shuffle_keys, task_of
from tests.runtime.test_packing import rows_of


@given(st.integers(1, 300), st.integers(1, 40))
def test_every_task_gets_as_many_key_groups_as_any_other_or_one_less(key_groups, tasks):
    keys = shuffle_keys(key_groups, tasks)
    assert len(set(keys)) == key_groups
    groups_of_task = Counter(task_of(key, tasks) for key in keys)
    assert max(groups_of_task.values()) - min(groups_of_task[task] for task in range(tasks)) <= 1


def test_plain_key_group_numbers_would_be_distributed_unevenly():
    groups_of_task = Counter(task_of(group, 8) for group in range(64))
    assert (min(groups_of_task.values()), max(groups_of_task.values())) == (5, 12)


def test_the_hash_is_sparks():
    """`SELECT hash(i)` for these numbers, Spark 4.2."""
    hashes = {0: 933211791, 1: -559580957, 2: 1765031574, 3: -1823081949, 1000: -14577491}
    for number, hashed in hashes.items():
        assert [task_of(number, tasks) for tasks in (2, 3, 7, 1 << 20)] == [
            hashed % tasks for tasks in (2, 3, 7, 1 << 20)
        ]


def test_packed_rows_go_by_their_groups_shuffle_key():
    (batch,) = pack([rows_of([0, 1, 2, 1])], 0, (70, 7, 5))
    assert batch.column("ckpt_shuffle_key").to_pylist() == [70, 7, 5]


@pytest.mark.parametrize("tasks", [1, 3])
def test_fewer_key_groups_than_tasks_only_leave_tasks_idle(tasks):
    assert [task_of(key, tasks) for key in shuffle_keys(1, tasks)] == [0]
