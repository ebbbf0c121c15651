"""Arrow decimals as unscaled whole numbers in numpy, and back.

The conversion is exact, and it needs no Python per row while the numbers fit 64 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from spark_ckpt.tasks.failures import ArithmeticOverflow
from spark_ckpt.tasks.rows import Bools

if TYPE_CHECKING:
    from spark_ckpt.tasks.operators.segments import Values
    from spark_ckpt.tasks.rows import Array

_LOW = (1 << 64) - 1
_MOST_DIGITS = 38


def unscaled(values: Array) -> Values:
    """Return the unscaled numbers (value times ten to the scale).

    They are int64 if all fit, else Python ints; those of nulls are unspecified.
    """
    # An Arrow decimal is a little-endian 128-bit number: two words, the low one first.
    # Without values an array may have no buffer.
    words = np.frombuffer(memoryview(values.buffers()[1] or b""), np.int64)[
        2 * values.offset : 2 * (values.offset + len(values))
    ]
    low, high = words[0::2], words[1::2]
    valid = values.is_valid().to_numpy(zero_copy_only=False)
    # a number fits 64 bits if its high word only repeats the sign
    if ((high == low >> 63) | ~valid).all():
        return np.where(valid, low, 0)
    wide = (high.astype(object) << 64) | (low.astype(object) & _LOW)
    return np.where(valid, wide, 0)


def _wider(kind: pa.Decimal128Type) -> str:
    # A sum has ten digits more than its column, 38 at most.
    if kind.precision < _MOST_DIGITS:
        return (
            f"cast the column to decimal({_MOST_DIGITS - 10}, {kind.scale}) before: the sum then has {_MOST_DIGITS} digits, and "
            "the state widens to it"
        )
    return (
        "cast the column to fewer digits after the point; that is another state, so give the operator a new name, and drop the "
        "state of the old one: job.start(accept_dropped_operator='OLD_NAME')"
    )


def decimals(numbers: Values, null: Bools, kind: pa.Decimal128Type) -> Array:
    """Return decimals of type `kind` from unscaled numbers.

    Raises `ArithmeticOverflow` for a number beyond its precision.
    """
    limit = 10**kind.precision
    wide = numbers.astype(object) if limit > np.iinfo(np.int64).max else numbers
    out = (wide >= limit) | (wide <= -limit)
    if out.any():
        refused = ArithmeticOverflow(f"a value does not fit {kind}", hint=_wider(kind))
        refused.row = int(np.argmax(out))
        raise refused
    words = np.empty(2 * len(numbers), np.int64)
    words[0::2], words[1::2] = _words(numbers)
    # Arrow's validity bitmap: 1 for a value.
    bits = pa.py_buffer(np.packbits(~null, bitorder="little").tobytes()) if null.any() else None
    return pa.Array.from_buffers(kind, len(numbers), [bits, pa.py_buffer(words.tobytes())])


def _words(numbers: Values) -> tuple[Values, Values]:
    if numbers.dtype != object:
        return numbers, numbers >> 63  # the high word repeats the sign
    return (numbers & _LOW).astype(np.uint64).view(np.int64), (numbers >> 64).astype(np.int64)
