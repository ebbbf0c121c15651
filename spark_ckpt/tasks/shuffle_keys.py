"""Shuffle keys that give every task of an operator the same number of key groups, give or take one.

Spark assigns a row to a task by the hash of its key, modulo the number of tasks. If 64 key groups shuffled by their own
numbers to 8 tasks, one task would get twelve and another five. A shuffle key has no meaning outside of one
incarnation's query: state files use the key group's number.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import count

_SEED = 42
_WORD = 0xFFFFFFFF

_LEAST_GROUPS, _GROUPS_PER_TASK = 4, 2


def usual_key_groups(parallelism: int) -> int:
    """Return the default number of key groups of an operator; `parallelism` is the number of concurrent tasks.

    Each group costs a batch some milliseconds, even if it is empty. With two groups per task, twice as many tasks can
    share the work later.
    """
    return max(_LEAST_GROUPS, _GROUPS_PER_TASK * parallelism)


@lru_cache(maxsize=64)
def shuffle_keys(key_groups: int, tasks: int) -> tuple[int, ...]:
    """Return distinct numbers from 0, one per key group: group `g` goes to task `g` modulo `tasks`."""
    waiting = [len(range(task, key_groups, tasks)) for task in range(tasks)]
    found: list[list[int]] = [[] for _ in waiting]
    # try numbers in order and keep each one whose task still needs a group
    for number in count():
        task = task_of(number, tasks)
        if waiting[task]:
            waiting[task] -= 1
            found[task].append(number)
        if not any(waiting):
            break
    return tuple(found[group % tasks][group // tasks] for group in range(key_groups))


def task_of(number: int, tasks: int) -> int:
    """Return the task that Spark's shuffle assigns an `int` key to (`HashPartitioning`: Murmur3 with seed 42, `pmod`)."""
    hashed = _SEED ^ _times(_turned(_times(number, 0xCC9E2D51), 15), 0x1B873593)
    hashed = (_times(_turned(hashed, 13), 5) + 0xE6546B64) & _WORD
    hashed ^= 4  # Murmur3 mixes the length in: an int has four bytes
    hashed = _times(hashed ^ hashed >> 16, 0x85EBCA6B)
    hashed = _times(hashed ^ hashed >> 13, 0xC2B2AE35)
    hashed ^= hashed >> 16
    return (hashed - (hashed >> 31 << 32)) % tasks  # as a signed int; Python's modulo is Spark's `pmod`


def _times(number: int, factor: int) -> int:
    return number * factor & _WORD


def _turned(number: int, bits: int) -> int:
    return (number << bits | number >> 32 - bits) & _WORD
