"""Whether an operator, as the job declares it, can go on from the state that an epoch has of it."""

from __future__ import annotations

from spark_ckpt.errors import StateSchemaChanged
from spark_ckpt.store.records import OperatorSnapshot
from spark_ckpt.store.widening import key_differences, state_differences


def check_state(snapshot: OperatorSnapshot, key: str, state: str, epoch: int) -> None:
    """Raise `StateSchemaChanged` if keys or values of the snapshot have no place in the declared columns (DDL)."""
    found = [
        *(f"key column {each}" for each in key_differences(snapshot.key_schema, key)),
        *(f"state column {each}" for each in state_differences(snapshot.state_schema, state)),
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
