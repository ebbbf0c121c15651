"""Spark's `GroupState` of one key, created and read outside of Spark's own loop over keys. In tasks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from pyspark.sql import Row
from pyspark.sql.streaming.state import GroupState
from pyspark.sql.types import StructType

from spark_ckpt.spark_internals.names import SparkName

_STATE = "pyspark.sql.streaming.state.GroupState (python/pyspark/sql/streaming/state.py)"
_UNCALLED = "no user's function of applyInPandasWithState can be called"
NAMES = (
    SparkName("GroupState.__init__", _STATE, "key_states", _UNCALLED),
    SparkName("GroupState.NO_TIMESTAMP", _STATE, "key_states, NO_TIMESTAMP", _UNCALLED),
    SparkName("GroupState._updated", _STATE, "KeyState.updated", _UNCALLED),
    SparkName("GroupState._removed", _STATE, "KeyState.removed", _UNCALLED),
    SparkName("GroupState._timeout_timestamp", _STATE, "KeyState.timeout_timestamp_ms", _UNCALLED),
    SparkName("GroupState._value", _STATE, "KeyState.value", _UNCALLED),
)

NO_TIMESTAMP = GroupState.NO_TIMESTAMP
"""Value of a missing time in milliseconds."""


class KeyState(GroupState):
    """Spark's `GroupState`, which the operator reads after the user's function has returned."""

    @property
    def updated(self) -> bool:
        """True if `update` was the last change."""
        return self._updated

    @property
    def removed(self) -> bool:
        """True if `remove` was the last change."""
        return self._removed

    @property
    def timeout_timestamp_ms(self) -> int:
        """The timeout set in this call, in epoch milliseconds; `NO_TIMESTAMP` if there is none."""
        return self._timeout_timestamp

    @property
    def value(self) -> tuple[object, ...]:
        """The last value given to `update`."""
        return self._value


def value_given_to_update(error: Exception) -> tuple[object] | None:
    """Return the value that `GroupState.update` could not make a row of, in a tuple; None for any other error."""
    # The innermost frame: an error that the user's own function raised is none of `update`.
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    if at is None or type(error) is not TypeError or at.tb_frame.f_code is not GroupState.update.__code__:
        return None
    return (at.tb_frame.f_locals.get("newValue"),)


def key_states(
    values: Iterable[Row],
    exists: Iterable[bool],
    *,
    state: StructType,
    timeout: str,
    timed_out: bool,
    processing_ms: int,
    watermark_ms: int | None,
) -> list[KeyState]:
    """Return one state per key. `values` are the keys' values; those of keys that do not exist are ignored."""
    present = watermark_ms is not None
    watermark = NO_TIMESTAMP if watermark_ms is None else watermark_ms
    none = cast(Row, None)
    return [
        # In the order of `GroupState.__init__`: from "defined" on, the key's bytes are for Spark only.
        KeyState(
            value if has else none, processing_ms, watermark, timeout, timed_out, present,
            has, False, False, NO_TIMESTAMP, b"", state,
        )
        for value, has in zip(values, exists, strict=True)
    ]  # fmt: skip
