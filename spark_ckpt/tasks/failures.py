"""Errors of an operator's function or of an expression.

They name the key, the operator, the column and the user's line.

An error that a retry cannot change is final: a replay calls the same function with the same rows. An error of the
environment (`MAY_PASS`) is retried.
"""

from __future__ import annotations

import numpy as np

from spark_ckpt.errors import CkptError
from spark_ckpt.tasks.user_frames import user_traceback

MAY_PASS = (OSError, MemoryError)
"""Exceptions of the environment: a service, a disk, the memory. The job retries after them."""


class UserFunctionFailed(CkptError):
    """The user's function raised an exception, which is the cause of this error."""

    condition = "CKPT_USER_FUNCTION_FAILED"
    exit_code = 7


class UserFunctionHindered(UserFunctionFailed):
    """The user's function raised an error of its environment that can disappear: an `OSError` or a `MemoryError`."""

    condition = "CKPT_USER_FUNCTION_HINDERED"
    retriable = True


class ExpressionFailed(CkptError):
    """Spark cannot compute an expression of the stream for a row: a cast, an overflow, a division by zero,
    `raise_error`.
    """

    condition = "CKPT_EXPRESSION_FAILED"
    exit_code = 7


class RowsInvalid(CkptError):
    """A row that an operator received or returned is invalid. `row` is its position; the message does not contain it."""

    condition = "CKPT_ROWS_INVALID"
    exit_code = 7
    row: int | None = None

    def at(self, operator: str, key: object) -> None:
        """Add the operator's name and the key to the context, unless they are already set. A key of None is unknown."""
        if operator:
            self.context.setdefault("operator", operator)
        if key is not None:
            self.context.setdefault("key", shown_key(key))


class OutputInvalid(RowsInvalid):
    """The function of an operator returned output or state that does not fit the declared schema."""

    condition = "CKPT_OUTPUT_INVALID"
    exit_code = 7


class ArithmeticOverflow(RowsInvalid):
    """A running sum left the range of its type. As in Spark's ANSI mode, the job fails and does not wrap the number."""

    condition = "CKPT_ARITHMETIC_OVERFLOW"
    exit_code = 7


BOUND = 200
_HINT = "fix the function or the record; the epoch is not committed and the batch will be replayed"


def bounded(value: object) -> str:
    """Return `repr(value)`, cut to `BOUND` characters so that it fits a log line."""
    text = repr(value)
    return text if len(text) <= BOUND else text[: BOUND - 3] + "..."


def shown_key(key: object) -> str:
    """Return a key for a message, with numpy scalars as plain Python numbers."""
    parts = key if isinstance(key, tuple) else None
    return bounded(
        key if parts is None else tuple(each.item() if isinstance(each, np.generic) else each for each in parts)
    )


def types_of(values: object) -> str:
    """Return the type names of a row's values, for a message that must not show user data."""
    return (
        ", ".join(type(each).__name__ for each in values) if isinstance(values, list | tuple) else type(values).__name__
    )


def user_function_failed(operator: str, key: object, error: Exception) -> UserFunctionFailed:
    """Build the error of a user's function: operator, key, exception and the user's part of the traceback.

    The caller raises it `from error`. It is `UserFunctionHindered` for an exception in `MAY_PASS`.
    """
    # Any other exception comes again with the same rows, and a retry would only delay the message.
    kind = UserFunctionHindered if isinstance(error, MAY_PASS) else UserFunctionFailed
    return kind(
        f"the function of operator {operator!r} raised {type(error).__name__}: {bounded(str(error))}",
        operator=operator,
        key=shown_key(key),
        traceback=user_traceback(error) or None,
        hint=_HINT,
    )
