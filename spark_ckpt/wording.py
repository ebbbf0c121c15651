"""Counts in sentences: one row, two rows, epoch 5 was, epochs 5 and 6 were."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, one: str, many: str = "") -> str:
    """A count and what is counted: "1 row", "2,000 rows"; `many` where an `s` does not make it."""
    return f"{count:,} {one_or_many(count, one, many or one + 's')}"


def one_or_many(count: int, one: str, many: str) -> str:
    """The word that agrees with a count: "was" or "were"."""
    return one if count == 1 else many


def epochs(numbers: Sequence[int]) -> str:
    """ "epoch 4", "epochs 4 to 9", "epochs 4, 6 and 9"."""
    if len(numbers) == 1:
        return f"epoch {numbers[0]}"
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"epochs {numbers[0]} to {numbers[-1]}"
    return f"epochs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
