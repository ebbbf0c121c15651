"""Conversion of user data to JSON, and values of a given kind in JSON."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spark_ckpt.connector import Json


def plain(value: object) -> Json:
    """Return a value of a state or cursor as JSON: times in ISO 8601, bytes in hexadecimal, decimals and NaN as text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, datetime.datetime | datetime.date | datetime.time):
        return value.isoformat()
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence):  # after text and bytes, which are sequences, too
        return [plain(each) for each in value]
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    return repr(value)


def number(value: Json) -> float:
    """Return a value as a number; 0 for anything else."""
    return float(value) if isinstance(value, int | float) else 0.0


def mapping(value: Json) -> Mapping[str, Json]:
    """Return a value as a mapping; an empty one for anything else."""
    return value if isinstance(value, Mapping) else {}


def numbers(value: Json) -> dict[str, float]:
    """Return the numbers of a mapping by name, as `mapping` and `number` do."""
    return {name: number(each) for name, each in mapping(value).items()}
