"""The interface between the key-group function and an operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, Self

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_ckpt.errors import GraphInvalid
from spark_ckpt.tasks.operators.pandas_rows import PandasOptions
from spark_ckpt.tasks.operators.window_keys import Closing
from spark_ckpt.tasks.rows import StateSchema
from spark_ckpt.tasks.state.group_state import KeyGroupState
from spark_ckpt.wording import did_you_mean


@dataclass(frozen=True, slots=True)
class Clock:
    """The clocks of one micro-batch, in epoch milliseconds; all are constant during the batch."""

    processing_ms: int
    watermark_ms: int | None = None
    """The watermark. None: the query has no watermark. 0: it has one that has not advanced yet."""
    late_ms: int | None = None
    """The watermark that decides which rows are late: that of the previous batch. None without a watermark."""
    inputs_ms: int | None = None
    """Time up to which the job has read its inputs, for operators that wait for them. None: they do not wait."""


@dataclass(frozen=True, slots=True)
class Binding:
    """Facts that an operator gets when the job is planned.

    They are its name, the watermarked column, Spark's settings, and the part of the grouping that the watermark closes.
    """

    name: str = "operator"
    event_time: str | None = None
    options: PandasOptions = field(default_factory=PandasOptions)
    closing: Closing | None = None


WHOLE_RESULT = "Spark's own aggregation has the whole result: stream.transform(function, outputMode='complete')"


def checked_output_mode(mode: str, known: Sequence[str]) -> str:
    """Return an operator's output mode. Raises `GraphInvalid` for one that is not `known`."""
    if mode not in known:
        meant = did_you_mean(str(mode), known)
        why = f"take 'update', which emits the changed rows; {WHOLE_RESULT}"
        choices = f"use one of {', '.join(map(repr, known))}"
        raise GraphInvalid(
            f"unknown output mode {mode!r}",
            hint=why if mode == "complete" else f"{meant + ' ' if meant else ''}{choices}",
        )
    return mode


class KeyedOperator(Protocol):
    """Applies the rows of one key group to its state.

    Picklable; one instance may serve many groups, one after the other.
    """

    schema: StateSchema
    output: StructType
    output_mode: str
    timeout: str

    def bind(self, binding: Binding) -> Self:
        """Return a copy that has its name and settings. Raises `GraphInvalid` for a timeout that cannot work."""

    def process(self, rows: pa.Table | None, group: KeyGroupState, clock: Clock) -> Iterator[pa.Table]:
        """Yield output tables of schema `output`.

        `rows` are the user's columns and `ckpt_key_hash`, in order of arrival. They are None if only timeouts are due.
        All changes of `group` are complete when the iterator is exhausted.
        """
