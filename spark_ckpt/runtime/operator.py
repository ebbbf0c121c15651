"""What the stage's key-group function needs from an operator, whatever the user wrote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, Self

import pyarrow as pa
from pyspark.sql.types import StructType

from spark_ckpt.runtime.group_state import KeyGroupState
from spark_ckpt.runtime.pandas_rows import PandasOptions
from spark_ckpt.runtime.rows import StateSchema


@dataclass(frozen=True, slots=True)
class Clock:
    """The two clocks of one micro-batch, in epoch milliseconds; they stand still while it runs."""

    processing_ms: int
    watermark_ms: int | None = None
    """None: the query has no watermark. 0: it has one that has not moved yet."""


@dataclass(frozen=True, slots=True)
class Binding:
    """What an operator learns only when the job is planned: its name, the watermarked column, Spark's
    settings.
    """

    name: str = "operator"
    event_time: str | None = None
    options: PandasOptions = field(default_factory=PandasOptions)


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
