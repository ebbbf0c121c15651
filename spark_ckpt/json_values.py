"""Conversion of user data to JSON."""

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
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    if isinstance(value, decimal.Decimal | datetime.timedelta):
        return str(value)
    return repr(value)
