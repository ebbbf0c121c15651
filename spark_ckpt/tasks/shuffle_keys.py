"""Under which number Spark's shuffle deals each key group, so that every task of the operator gets as many of them.

Spark deals a row to a task by the hash of its key, modulo the tasks. Of key groups dealt by their own numbers, 64 to 8 tasks, one
task gets twelve and another five. A number says nothing outside of one incarnation's query: state files go by the key group.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from itertools import count

_SEED = 42
_WORD = 0xFFFFFFFF

_LEAST_GROUPS, _GROUPS_PER_TASK = 4, 2


def usual_key_groups(parallelism: int) -> int:
    """How many key groups an operator gets if nobody says; `parallelism`: tasks that run at a time. Each group costs a batch some
    milliseconds, whatever it holds; with two for each task twice as many tasks can share the work later."""
    return max(_LEAST_GROUPS, _GROUPS_PER_TASK * parallelism)


@lru_cache(maxsize=64)
def shuffle_keys(key_groups: int, tasks: int) -> tuple[int, ...]:
    """Distinct numbers from 0, one for each key group: group `g` goes to task `g` modulo `tasks`."""
    waiting = [len(range(task, key_groups, tasks)) for task in range(tasks)]
    found: list[list[int]] = [[] for _ in waiting]
    for number, task in _dealt(tasks):
        if waiting[task]:
            waiting[task] -= 1
            found[task].append(number)
        if not any(waiting):
            break
    return tuple(found[group % tasks][group // tasks] for group in range(key_groups))


def _dealt(tasks: int) -> Iterator[tuple[int, int]]:
    return ((number, task_of(number, tasks)) for number in count())


def task_of(number: int, tasks: int) -> int:
    """The task to which Spark's shuffle deals an `int` key (`HashPartitioning`: Murmur3 with seed 42, `pmod`)."""
    hashed = _SEED ^ _times(_turned(_times(number, 0xCC9E2D51), 15), 0x1B873593)
    hashed = (_times(_turned(hashed, 13), 5) + 0xE6546B64) & _WORD
    hashed ^= 4
    hashed = _times(hashed ^ hashed >> 16, 0x85EBCA6B)
    hashed = _times(hashed ^ hashed >> 13, 0xC2B2AE35)
    hashed ^= hashed >> 16
    return (hashed - (hashed >> 31 << 32)) % tasks


def _times(number: int, factor: int) -> int:
    return number * factor & _WORD


def _turned(number: int, bits: int) -> int:
    return (number << bits | number >> 32 - bits) & _WORD
