"""What can go wrong inside an operator, said so that the user finds the key, the operator and the line to
change.
"""

from __future__ import annotations

from spark_ckpt.errors import CkptError


class UserFunctionFailed(CkptError):
    """The user's function raised; the original exception is the cause."""

    condition = "CKPT_USER_FUNCTION_FAILED"
    exit_code = 7


class OutputInvalid(CkptError):
    """What an operator's function returned does not fit the declared output or state schema."""

    condition = "CKPT_OUTPUT_INVALID"
    exit_code = 7


class ArithmeticOverflow(CkptError):
    """A running sum left the range of its type (Spark's ANSI rule: an error, never a wrapped number)."""

    condition = "CKPT_ARITHMETIC_OVERFLOW"
    exit_code = 7


BOUND = 200


def bounded(value: object) -> str:
    """`repr(value)`, cut to a length that fits a log line."""
    text = repr(value)
    return text if len(text) <= BOUND else text[: BOUND - 3] + "..."


def user_function_failed(operator: str, key: object, error: Exception) -> UserFunctionFailed:
    """Name the operator, the key and the user's exception; raise it `from error`."""
    return UserFunctionFailed(
        f"the function of operator {operator!r} raised {type(error).__name__}: {bounded(str(error))}",
        operator=operator,
        key=bounded(key),
        hint="fix the function or the record; the epoch is not committed and the batch will be replayed",
    )
