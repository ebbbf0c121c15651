"""A join of two streams, checked on the user's line, and its operator (`stream_join`)."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import ArrayType, BooleanType, StructType

from spark_ckpt.config import DurationText, checked_duration_ms
from spark_ckpt.errors import ConfigInvalid, GraphInvalid
from spark_ckpt.plan.input_plan import InputPlan
from spark_ckpt.tasks.operators.stream_join import LEFT_ROWS, PRESENT, RIGHT_ROWS, StreamJoin
from spark_ckpt.tasks.operators.vectorized import VectorizedOperator

# True: rows of the left side stay without a match
_HOWS = {"inner": False, "left": True, "leftouter": True, "left_outer": True}


_SPARKS = "Spark's join takes it: left.transform(lambda rows, others: rows.join(others, condition, how), right)"


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """A join that fits both sides' schemas; see `join_plan`. `left` and `right` are the columns other than the keys."""

    keys: tuple[str, ...]
    key_types: StructType
    left: StructType
    right: StructType
    keeps_left: bool
    ttl_ms: int | None

    def operator(self, sides: InputPlan) -> VectorizedOperator:
        """Return the operator on both sides, which are the inputs LEFT and RIGHT of a co-group."""
        state = StructType().add(LEFT_ROWS, ArrayType(_kept(self.left))).add(RIGHT_ROWS, ArrayType(_kept(self.right)))
        output = StructType([*self.key_types, *self.left, *self.right])
        # expiry is by processing time, as far as the inputs are read (`driver/input_clock`)
        timeout = GroupStateTimeout.NoTimeout if self.ttl_ms is None else GroupStateTimeout.ProcessingTimeTimeout
        join = StreamJoin(self.keys, tuple(self.left.names), tuple(self.right.names), self.keeps_left, self.ttl_ms)
        return VectorizedOperator(
            join, sides.schema, self.keys, output, state, timeout=timeout, inputs=sides.named, ttl_ms=self.ttl_ms
        )


def join_plan(left: StructType, right: StructType, on: object, how: str, ttl: DurationText | None) -> JoinPlan:
    """Check a join of two streams.

    - `on`: names of columns that both have.
    - `how`: "inner", or "left" with a `ttl` ("1 hour").

    Raises `GraphInvalid`, and `ConfigInvalid` for a `ttl` that is no duration.
    """
    keys = _key_names(on)
    for side, schema in (("left", left), ("right", right)):
        if missing := [key for key in keys if key not in schema.names]:
            raise GraphInvalid(f"join: the {side} stream has no column '{missing[0]}'", hint=schema.simpleString())
    for key in keys:
        if left[key].dataType != right[key].dataType:
            kinds = f"{left[key].dataType.simpleString()} and {right[key].dataType.simpleString()}"
            raise GraphInvalid(f"join: '{key}' is {kinds} on the two sides", hint="cast one of them")
    ours, theirs = (StructType([field for field in schema if field.name not in keys]) for schema in (left, right))
    if both := sorted(set(ours.names) & set(theirs.names)):
        raise GraphInvalid(f"join: both streams have a column '{both[0]}'", hint="rename or drop it on one side")
    keeps_left = _keeps_left(how)
    if keeps_left and ttl is None:
        raise GraphInvalid(
            "join: a left join of two streams needs a ttl",
            hint='a row without a match is emitted when its key expires: join(..., how="left", ttl="1 hour")',
        )
    return JoinPlan(keys, StructType([left[key] for key in keys]), ours, theirs, keeps_left, _ttl_ms(ttl))


def _key_names(on: object) -> tuple[str, ...]:
    names = [on] if isinstance(on, str) else on
    if not isinstance(names, list | tuple) or not names or not all(isinstance(name, str) for name in names):
        raise GraphInvalid(
            "join: two streams are joined on columns of the same name in both",
            hint='name them: join(other, on="k") or on=["k", "day"]; a condition on other columns goes into a filter after it; '
            + _SPARKS,
        )
    return tuple(dict.fromkeys(names))


def _keeps_left(how: str) -> bool:
    if how not in _HOWS:
        raise GraphInvalid(
            f"join: how='{how}' is not for two streams",
            hint=f'"inner" or "left"; swap the sides for "right"; {_SPARKS}',
        )
    return _HOWS[how]


def _ttl_ms(ttl: DurationText | None) -> int | None:
    if ttl is None:
        return None
    given = checked_duration_ms("join: ttl", ttl)
    if given <= 0:
        raise ConfigInvalid("join: ttl is not positive", hint="no ttl keeps all rows for ever")
    return given


def _kept(columns: StructType) -> StructType:
    # a struct needs a field, and a row without other columns still counts
    return columns if columns.fields else StructType().add(PRESENT, BooleanType())
