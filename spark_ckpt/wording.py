"""Counts in sentences (one row, two rows, epochs 5 and 6 were), and the known name nearest to a mistyped one."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


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


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the question for the known name nearest to `name`, letter case aside; empty if none is near."""
    by_lower = {each.lower(): each for each in known}
    near = get_close_matches(name.lower(), by_lower, n=1)
    return f"did you mean '{by_lower[near[0]]}'?" if near else ""


def complaint(error: ValidationError, whole: str) -> str:
    """Return the first complaint about a document, after the name of its field; `whole`: the name of the document."""
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}"


def snake_case(name: str) -> str:
    """Return "keepEpochs" as "keep_epochs"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()
