"""Schema widening: the schemas that may replace the one that state or in-flight rows were written with.

Every old value must keep its value in the new type. Types widen as in Delta's type widening; structs and rows may get
fields and columns at their ends. Nullability is ignored: all columns of state and edges are nullable. The relation is
transitive: a value that fits a schema fits every schema that may replace it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pyarrow as pa

from spark_ckpt.store.ddl import column_names, column_types, type_of, types_inside

_DIGITS: Mapping[pa.DataType, int] = {pa.int8(): 10, pa.int16(): 10, pa.int32(): 10, pa.int64(): 20}
"""Digits before the point that a decimal needs for every value. Small integers are stored as `int`."""
_INTEGERS = tuple(_DIGITS)
# No entry for int64: float64 does not hold each of its values.
_WIDER: Mapping[pa.DataType, tuple[pa.DataType, ...]] = {
    pa.int8(): (pa.int16(), pa.int32(), pa.int64(), pa.float64()),
    pa.int16(): (pa.int32(), pa.int64(), pa.float64()),
    pa.int32(): (pa.int64(), pa.float64()),
    pa.float32(): (pa.float64(),),
    pa.date32(): (pa.timestamp("us"),),
}


def value_differences(written: str, declared: str) -> list[str]:
    """Return the reasons, one line each, that columns `written` (DDL) of state or an edge cannot become `declared`.

    An empty list means that they can.
    """
    return _differences(written, declared, widens=True)


def key_differences(written: str, declared: str) -> list[str]:
    """Return the differences between key columns, one line each. No difference is allowed."""
    new = [f"{name} is new" for name in column_names(declared) if name not in column_names(written)]
    return [*_differences(written, declared, widens=False), *new]


def types_change(written: str, declared: str) -> bool:
    """Return True if a column of both has another type, so that files must be rewritten. A new column needs no rewrite."""
    before, now = column_types(written), column_types(declared)
    return any(now.get(name, type_) != type_ for name, type_ in before.items())


def widened(table: pa.Table, written: str, declared: str) -> pa.Table:
    """Return state rows written with the columns `written` in the columns of `declared`, which must be wider."""
    before = column_types(written)
    for name, type_ in column_types(declared).items():
        kind = type_of(type_)
        if name not in table.column_names:
            table = table.append_column(name, pa.nulls(table.num_rows, kind))
        elif before.get(name, type_) != type_:
            table = table.set_column(table.column_names.index(name), name, table.column(name).cast(kind))
    return table


def _differences(written: str, declared: str, *, widens: bool) -> list[str]:
    before, now = column_types(written), column_types(declared)
    found = [f"{name} is gone" for name in before if name not in now]
    compared = _step if widens else _kept
    found += [why for name in before if name in now for why in compared(name, before[name], now[name])]
    if not found and list(now)[: len(before)] != list(before):
        found = [f"the order was {', '.join(before)}, is {', '.join(now)}"]
    return found


def _kept(name: str, before: str, now: str) -> Iterator[str]:
    if before != now:
        yield f"{name} was {before}, is {now}: a key's type decides its key group"


def _step(path: str, before: str, now: str) -> Iterator[str]:
    """Yield the reasons that values of type `before` cannot become `now`.

    Paths inside types are Delta's: `tags.element`, `sums.value`.
    """
    if before == now:
        return
    inside, declared = types_inside(before), types_inside(now)
    if inside is None or declared is None or inside.kind != declared.kind:
        if not _holds(type_of(now), type_of(before)):
            yield f"{path} was {before}, is {now}{_why(before, now)}"
        return
    if list(declared.types)[: len(inside.types)] != list(inside.types):
        yield f"the fields of {path} were {', '.join(inside.types)}, are {', '.join(declared.types)}"
        return
    for name, type_ in inside.types.items():
        yield from _step(f"{path}.{name}", type_, declared.types[name])


def _holds(wide: pa.DataType, narrow: pa.DataType) -> bool:
    if pa.types.is_decimal(wide) and pa.types.is_decimal(narrow):
        # The digits after the point and those before it must both fit.
        return bool(wide.scale >= narrow.scale and wide.precision - wide.scale >= narrow.precision - narrow.scale)
    if pa.types.is_decimal(wide):
        return narrow in _INTEGERS and wide.precision - wide.scale >= _DIGITS[narrow]
    return wide in _WIDER.get(narrow, ())


def _why(before: str, now: str) -> str:
    numbers = all(_is_number(type_of(each)) for each in (before, now))
    if numbers:
        return f", which does not hold every {before}"
    if (before, now) == ("date", "timestamp"):
        return ", whose midnight depends on a time zone; timestamp_ntz has none"
    return ""


def _is_number(type_: pa.DataType) -> bool:
    return bool(pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_))
