"""What the stage's key-group function needs from an operator, whatever the user wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_ckpt.tasks.operators.pandas_rows import PandasOptions
from spark_ckpt.tasks.operators.window_keys import Closing
from spark_ckpt.tasks.rows import StateSchema
from spark_ckpt.tasks.state.group_state import KeyGroupState


@dataclass(frozen=True, slots=True)
class Clock:
    """The two clocks of one micro-batch, in epoch milliseconds; they stand still while it runs."""

    processing_ms: int
    watermark_ms: int | None = None
    """None: the query has no watermark. 0: it has one that has not moved yet."""
    late_ms: int | None = None
    """The watermark that rows are late by: the batch before's. None without one."""


@dataclass(frozen=True, slots=True)
class Binding:
    """What an operator learns only when the job is planned: its name, the watermarked column, what of the grouping the
    watermark closes, Spark's settings.
    """

    name: str = "operator"
    event_time: str | None = None
    options: PandasOptions = field(default_factory=PandasOptions)
    closing: Closing | None = None


class KeyedOperator(Protocol):
    """Applies the rows of one key group to its state. Picklable; one instance may serve many groups,
    in turn.
    """

    schema: StateSchema
    output: StructType
    output_mode: str
    timeout: str

    def bind(self, binding: Binding) -> Self:
        """A copy that knows its name and settings. Raises `GraphInvalid` for a timeout that cannot work."""

    def process(self, rows: pa.Table | None, group: KeyGroupState, clock: Clock) -> Iterator[pa.Table]:
        """Yield output tables of schema `output`.

        `rows` are in arrival order: the user's columns and `ckpt_key_hash`; None when there are none and only
        timeouts are due. All changes of `group` are made when the iterator is exhausted.
        """
