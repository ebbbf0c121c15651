"""Counts in sentences: one row, two rows, epoch 5 was, epochs 5 and 6 were."""

from __future__ import annotations

from collections.abc import Sequence


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: "1 row", "2,000 rows". `many` is the plural if it is not `one` with an "s"."""
    return f"{count:,} {one_or_many(count, one, many or one + 's')}"


def one_or_many(count: int, one: str, many: str) -> str:
    """Return the word that agrees with a count: "was" or "were"."""
    return one if count == 1 else many


def epochs(numbers: Sequence[int]) -> str:
    """Return the numbers as text: "epoch 4", "epochs 4 to 9" or "epochs 4, 6 and 9"."""
    if len(numbers) == 1:
        return f"epoch {numbers[0]}"
    if len(numbers) > 2 and list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return f"epochs {numbers[0]} to {numbers[-1]}"
    return f"epochs {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
