"""What can go wrong inside an operator or an expression, said so that the user finds the key, the operator, the column and the line
to change.

What a new attempt cannot change is final: the same rows meet the same function again. What may pass by itself is tried again.
"""

from __future__ import annotations

import numpy as np

from spark_ckpt.errors import CkptError
from spark_ckpt.tasks.user_frames import user_traceback

MAY_PASS = (OSError, MemoryError)
"""What a function raises when its surroundings fail it: a service, a disk, the memory."""


class UserFunctionFailed(CkptError):
    """The user's function raised; the original exception is the cause."""

    condition = "CKPT_USER_FUNCTION_FAILED"
    exit_code = 7


class UserFunctionHindered(UserFunctionFailed):
    """The user's function raised what may pass by itself: one of `MAY_PASS`."""

    condition = "CKPT_USER_FUNCTION_HINDERED"
    retriable = True


class ExpressionFailed(CkptError):
    """An expression of the stream cannot be computed for a row: a cast, an overflow, a division by zero, `raise_error`."""

    condition = "CKPT_EXPRESSION_FAILED"
    exit_code = 7


class RowsInvalid(CkptError):
    """Something is wrong with one of many rows. `row`: which, for whoever knows what the rows are; not part of the message."""

    condition = "CKPT_ROWS_INVALID"
    exit_code = 7
    row: int | None = None

    def at(self, operator: str, key: object) -> None:
        """Say whose rows these are, unless that is said already. Keys of None are not known."""
        if operator:
            self.context.setdefault("operator", operator)
        if key is not None:
            self.context.setdefault("key", shown_key(key))


class OutputInvalid(RowsInvalid):
    """What an operator's function returned does not fit the declared output or state schema."""

    condition = "CKPT_OUTPUT_INVALID"
    exit_code = 7


class ArithmeticOverflow(RowsInvalid):
    """A running sum left the range of its type (Spark's ANSI rule: an error, never a wrapped number)."""

    condition = "CKPT_ARITHMETIC_OVERFLOW"
    exit_code = 7


BOUND = 200
_HINT = "fix the function or the record; the epoch is not committed and the batch will be replayed"


def bounded(value: object) -> str:
    """`repr(value)`, cut to a length that fits a log line."""
    text = repr(value)
    return text if len(text) <= BOUND else text[: BOUND - 3] + "..."


def shown_key(key: object) -> str:
    """A key for a message: numbers as numbers, not as numpy's objects."""
    parts = key if isinstance(key, tuple) else None
    return bounded(
        key if parts is None else tuple(each.item() if isinstance(each, np.generic) else each for each in parts)
    )


def types_of(values: object) -> str:
    """The types of a row's values, for a message that must not show the values."""
    return (
        ", ".join(type(each).__name__ for each in values) if isinstance(values, list | tuple) else type(values).__name__
    )


def user_function_failed(operator: str, key: object, error: Exception) -> UserFunctionFailed:
    """Name the operator, the key, the user's exception and where it was raised; raise it `from error`."""
    kind = UserFunctionHindered if isinstance(error, MAY_PASS) else UserFunctionFailed
    return kind(
        f"the function of operator {operator!r} raised {type(error).__name__}: {bounded(str(error))}",
        operator=operator,
        key=shown_key(key),
        traceback=user_traceback(error) or None,
        hint=_HINT,
    )
