"""Checks that declared operators and edges can continue from the state and the rows in flight of an epoch."""

from __future__ import annotations

from collections.abc import Mapping

from spark_ckpt.epochs.records import Manifest, OperatorSnapshot
from spark_ckpt.errors import GraphInvalid, StateSchemaChanged
from spark_ckpt.store.widening import key_differences, value_differences
from spark_ckpt.wording import counted


def check_state(snapshot: OperatorSnapshot, key: str, state: str, epoch: int) -> None:
    """Raise `StateSchemaChanged` if keys or values of the snapshot do not fit the declared columns (DDL)."""
    found = [
        *(f"key column {each}" for each in key_differences(snapshot.key_schema, key)),
        *(f"state column {each}" for each in value_differences(snapshot.state_schema, state)),
    ]
    if found:
        raise StateSchemaChanged(
            f"operator '{snapshot.operator}' was written with key {snapshot.key_schema} and state {snapshot.state_schema}",
            declared=f"key {key} and state {state}",
            difference="; ".join(found),
            epoch=epoch,
            hint="state columns may be added at the end, and types may widen (docs/changing.md); anything else needs a new "
            "operator name or a new store",
        )


def check_in_flight(declared: Mapping[str, str], base: Manifest) -> None:
    """Raise `GraphInvalid` or `StateSchemaChanged` if rows in flight at `base` would be lost or would not fit.

    `declared`: schema of every edge, as DDL; a schema may widen.
    """
    for name, cut in base.edges.items():
        if not cut.files or declared.get(name) == cut.row_schema:
            continue
        rows = counted(cut.produced - cut.consumed, "row")
        if name not in declared:
            raise GraphInvalid(
                f"epoch {base.epoch} has {rows} in flight on edge '{name}', which the job no longer has",
                hint="run the job once more with the edge until nothing is in flight (availableNow=True), then drop it",
            )
        found = value_differences(cut.row_schema, declared[name])
        if found:
            raise StateSchemaChanged(
                f"epoch {base.epoch} has {rows} in flight on edge '{name}' with {cut.row_schema}",
                declared=declared[name],
                difference="; ".join(f"column {each}" for each in found),
                epoch=base.epoch,
                hint="columns may be added at the end, and types may widen (docs/changing.md); for anything else run the job as it"
                " was until nothing is in flight (availableNow=True)",
            )
