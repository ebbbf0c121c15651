"""State as rows for people and programs: selection of columns and keys."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from spark_ckpt.epochs.records import Manifest, OperatorSnapshot, SparkState
from spark_ckpt.errors import ConfigInvalid, EpochNotFound
from spark_ckpt.json_values import plain
from spark_ckpt.store.ddl import column_names
from spark_ckpt.store.widening import value_differences, widened

if TYPE_CHECKING:
    from spark_ckpt.store.store import Store

CHANGED_IN = "ckpt_epoch"
TIMEOUT = "ckpt_timeout_ms"
_INTERNAL = "ckpt_"


def snapshot_of(manifest: Manifest, operator: str) -> OperatorSnapshot:
    """Return the operator's snapshot in an epoch. Raises `EpochNotFound`, which lists the operators that exist."""
    snapshot = manifest.operators.get(operator)
    if snapshot is None and sparks_operator(manifest, operator) is not None:
        raise EpochNotFound(
            f"operator '{operator}' of epoch {manifest.epoch} is Spark's own, and this needs one of the job's",
            operators=", ".join(sorted(manifest.operators)) or "none",
            hint="choose one of these, if there is one; spark-ckpt state STORE OPERATOR reads the state of Spark's own",
        )
    if snapshot is None:
        known = ", ".join([*sorted(manifest.operators), *_names(manifest.spark_state)]) or "none"
        raise EpochNotFound(
            f"epoch {manifest.epoch} has no state of operator '{operator}'", operators=known, hint="choose one of these"
        )
    return snapshot


def sparks_operator(manifest: Manifest, operator: str) -> tuple[SparkState, int] | None:
    """Return the state of Spark's own operators and the number of the one with this name, or NUMBER:NAME.

    None if the epoch has no such operator, or one of the job's own with the name. Raises `EpochNotFound` for a name that
    several operators have.
    """
    state = manifest.spark_state
    if state is None or operator in manifest.operators:
        return None
    names = _names(state)
    found = [number for number, each in enumerate(names) if operator in (each, state.operators[number])]
    if len(found) > 1:
        raise EpochNotFound(
            f"epoch {manifest.epoch} has several operators '{operator}'",
            operators=", ".join(names),
            hint="name one with its number",
        )
    return (state, found[0]) if found else None


def _names(state: SparkState | None) -> list[str]:
    return [] if state is None else [f"{number}:{each}" for number, each in enumerate(state.operators)]


def visible(state: pa.Table, snapshot: OperatorSnapshot) -> pa.Table:
    """Return key and state columns, the epoch of the last change, and the timeout if any row has one; sorted by key."""
    names = [name for name in state.column_names if not name.startswith(_INTERNAL)]
    names.append(CHANGED_IN)
    if state.column(TIMEOUT).null_count < state.num_rows:
        names.append(TIMEOUT)
    return _sorted(state.select(names), column_names(snapshot.key_schema))


def with_keys(state: pa.Table, snapshot: OperatorSnapshot, wanted: Mapping[str, str]) -> pa.Table:
    """Return the rows whose key columns have these values, given as text. Raises `ConfigInvalid`."""
    keys = column_names(snapshot.key_schema)
    for name, text in wanted.items():
        if name not in keys:
            raise ConfigInvalid(
                f"'{name}' is no key of operator '{snapshot.operator}'", hint=f"its keys: {snapshot.key_schema}"
            )
        state = state.filter(_equals(state, name, text))
    return state


def _as_in(state: pa.Table, snapshot: OperatorSnapshot, other: OperatorSnapshot) -> pa.Table:
    """Return the rows in the columns and types of the other snapshot, if state widened from one to the other."""
    written, declared = snapshot.state_schema, other.state_schema
    return state if value_differences(written, declared) else widened(state, written, declared)


def _equals(state: pa.Table, name: str, text: str) -> pa.Array:
    kind = state.schema.field(name).type
    try:
        return pc.equal(state.column(name), pa.scalar(text).cast(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise ConfigInvalid(f"'{text}' is no {kind} for key '{name}'", hint="write it as the state shows it") from error


def _sorted(state: pa.Table, keys: Sequence[str]) -> pa.Table:
    try:
        return state.sort_by([(name, "ascending") for name in keys])
    except (pa.ArrowNotImplementedError, pa.ArrowTypeError, pa.ArrowInvalid):
        return state  # a key without an order (a struct, say) keeps the order of the files


Keyed = Mapping[str, tuple[Mapping[str, object], Mapping[str, object]]]
"""Rows by the text of their key: (key columns, state columns)."""


def keyed_to_compare(store: Store, operator: str, epoch: int, other: int, wanted: Mapping[str, str]) -> Keyed:
    """Return the operator's keys at an epoch, for a comparison with `other`. `wanted`: values of key columns, as text.

    A column that only widened between the two counts as equal. Raises `EpochNotFound`, `EpochDamaged`, `ConfigInvalid`.
    """
    snapshot, compared = (snapshot_of(store.log.manifest(each), operator) for each in (epoch, other))
    state = _as_in(store.state(operator).read(epoch), snapshot, compared)
    return keyed(visible(with_keys(state, snapshot, wanted), snapshot), column_names(snapshot.key_schema))


def keyed(table: pa.Table, keys: Sequence[str]) -> Keyed:
    """Return rows by key. NaN equals NaN: values are compared as JSON, which makes nested values comparable, too."""
    found = {}
    for row in table.to_pylist():
        # A state without any timeout has no column for them, so a key without one has none in both.
        values = {
            name: plain(value)
            for name, value in row.items()
            if name != CHANGED_IN and (name != TIMEOUT or value is not None)
        }
        key = {name: values.pop(name) for name in keys}
        found[str(list(key.values()))] = (key, values)
    return found


def counted_rows(table: pa.Table) -> Keyed:
    """Return rows by their whole content, of which none changes: for keys with several rows. Equal rows are numbered."""
    found: dict[str, tuple[Mapping[str, object], Mapping[str, object]]] = {}
    times: Counter[str] = Counter()
    for row in table.to_pylist():
        values = {name: plain(value) for name, value in row.items()}
        text = str(list(values.values()))
        times[text] += 1
        found[f"{text} {times[text]}"] = (values, {})
    return found
