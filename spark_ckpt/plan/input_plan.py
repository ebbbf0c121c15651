"""Several grouped streams as the named inputs of one operator.

They are checked on the user's line, and converted to rows of one shape.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, StructType, TimestampType

from spark_ckpt.epochs.names import valid_name
from spark_ckpt.errors import GraphInvalid
from spark_ckpt.spark_internals.column_names import column_of
from spark_ckpt.tasks.operators.named_inputs import PRESENT, NamedInput
from spark_ckpt.tasks.rows import RESERVED_PREFIX, arrow_schema, check_not_reserved

TIME = f"{RESERVED_PREFIX}time"
"""A row's event time, independent of its column's name in the input; null in rows of inputs without a watermark."""


@dataclass(frozen=True, slots=True)
class GroupedInput:
    """A stream's rows and the columns that it is grouped by."""

    schema: StructType
    keys: tuple[str, ...]

    @property
    def values(self) -> StructType:
        """Columns other than the key."""
        own = StructType([field for field in self.schema if field.name not in self.keys])
        # a struct needs a field, also if the input has key columns only
        return own if own.fields else StructType().add(PRESENT, BooleanType())


@dataclass(frozen=True, slots=True)
class InputPlan:
    """Inputs that fit together; see `input_plan`.

    `keys` are the operator's key columns, with the names of the first input.
    """

    inputs: Mapping[str, GroupedInput]
    keys: tuple[str, ...]

    @property
    def named(self) -> tuple[NamedInput, ...]:
        """The inputs in the form that tasks use."""
        return tuple(
            NamedInput(name, arrow_schema(each.schema), dict(zip(each.keys, self.keys, strict=True)))
            for name, each in self.inputs.items()
        )

    @property
    def schema(self) -> StructType:
        """Schema of the operator's rows: its key, and a struct per input."""
        first = next(iter(self.inputs.values()))
        rows = StructType([first.schema[key] for key in self.keys])
        for tag, each in zip(self.named, self.inputs.values(), strict=True):
            rows = rows.add(tag.tag, each.values)
        return rows

    def tagged(self, name: str, frame: DataFrame, times: Mapping[str, str]) -> DataFrame:
        """Return the rows of the input `name` in the operator's form.

        `times` is the event time's column of each input that has one.
        """
        own = self.inputs[name]
        keys = [column_of(mine).alias(key) for mine, key in zip(own.keys, self.keys, strict=True)]
        # null for the other inputs: so tasks tell the inputs of the rows apart
        tags = [
            (_struct(each) if tag.name == name else F.lit(None).cast(each.values)).alias(tag.tag)
            for tag, each in zip(self.named, self.inputs.values(), strict=True)
        ]
        time = column_of(times[name]) if name in times else F.lit(None).cast(TimestampType())
        # every input yields the same columns in the same order, so that a union by position fits
        return frame.select(*keys, *tags, *([time.alias(TIME)] if times else []))


def input_plan(inputs: Mapping[str, GroupedInput]) -> InputPlan:
    """Check that grouped streams can be the inputs of one operator.

    Raises `GraphInvalid`, `ConfigInvalid` for a bad name.
    """
    if len(inputs) < 2:
        raise GraphInvalid(
            "cogroup needs two inputs or more", hint='cogroup({"orders": orders.groupBy("id"), "payments": ...})'
        )
    _check_names(list(inputs))
    (first, pattern), *others = inputs.items()
    for name, each in inputs.items():
        _check_columns(name, each)
    for name, each in others:
        _check_keys(first, pattern, name, each)
    return InputPlan(dict(inputs), pattern.keys)


def _check_names(names: list[str]) -> None:
    seen: dict[str, str] = {}
    for name in names:
        valid_name("input", name)
        # names are part of column names, which Spark compares without case
        if name.lower() in seen:
            raise GraphInvalid(
                f"cogroup: the inputs '{seen[name.lower()]}' and '{name}' have one name",
                hint="case does not tell them apart",
            )
        seen[name.lower()] = name


def _check_columns(name: str, grouped: GroupedInput) -> None:
    check_not_reserved(grouped.schema.names, f" of input '{name}'")
    if len(set(grouped.keys)) < len(grouped.keys):
        raise GraphInvalid(f"cogroup: input '{name}' is grouped by one column twice: {', '.join(grouped.keys)}")


def _check_keys(first: str, pattern: GroupedInput, name: str, grouped: GroupedInput) -> None:
    if len(grouped.keys) != len(pattern.keys):
        raise GraphInvalid(
            f"cogroup: input '{first}' is grouped by {', '.join(pattern.keys)}, '{name}' by {', '.join(grouped.keys)}",
            hint="group all inputs by the same key, its columns in the same order",
        )
    for wanted, key in zip(pattern.keys, grouped.keys, strict=True):
        kinds = [each.dataType.simpleString() for each in (pattern.schema[wanted], grouped.schema[key])]
        if kinds[0] != kinds[1]:
            raise GraphInvalid(
                f"cogroup: key '{wanted}' of input '{first}' is {kinds[0]}, '{key}' of '{name}' is {kinds[1]}",
                hint="cast one of them: groupBy only brings equal keys together",
            )


def _struct(grouped: GroupedInput) -> Column:
    return F.struct(*[F.lit(True).alias(name) if name == PRESENT else column_of(name) for name in grouped.values.names])
