"""Checks that declared operators and edges can continue from the state and the rows in flight of an epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from spark_ckpt.coordination.manifests import SPARK_OPERATORS
from spark_ckpt.epochs.records import Manifest, OperatorSnapshot
from spark_ckpt.epochs.restore import LATEST, RestoreTarget
from spark_ckpt.errors import ConfigInvalid, GraphInvalid, StateSchemaChanged
from spark_ckpt.plan.graph import spark_nodes_of
from spark_ckpt.store.ddl import column_names
from spark_ckpt.store.widening import key_differences, value_differences
from spark_ckpt.wording import counted

if TYPE_CHECKING:
    from spark_ckpt.driver.job_plan import JobPlan


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
            hint=f"{_as_it_was_called(snapshot.key_schema, key)}"
            "state columns may be added at the end, and types may widen (docs/changing.md); for anything else give the "
            f"operator a new name, and drop this state: job.start(accept_dropped_operator='{snapshot.operator}'); or use a new "
            "store",
        )


def _as_it_was_called(written: str, declared: str) -> str:
    """Return the advice that keeps the state of keys whose names have another case now; empty without such a key."""
    # `groupBy("K")` on a column `k` once made a key `K` of it.
    before = {name.lower(): name for name in column_names(written)}
    pairs = [(now, before.get(now.lower(), now)) for now in column_names(declared)]
    renamed = "".join(f'.withColumnRenamed("{now}", "{old}")' for now, old in pairs if now != old)
    return f"give the key the case that it had, before groupBy: {renamed}; " if renamed else ""


def check_in_flight(declared: Mapping[str, str], base: Manifest) -> None:
    """Raise `GraphInvalid` or `StateSchemaChanged` if rows in flight at `base` would be lost or would not fit.

    `declared`: schema of every edge, as DDL; a schema may widen.
    """
    for name, cut in base.edges.items():
        # An edge without rows in flight may change or go.
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


def check_spark_state(plan: JobPlan, base: Manifest, restore: RestoreTarget = LATEST) -> None:
    """Raise unless the job can go on with the state of Spark's own operators at `base`, and keep it.

    Spark compares operators and schemas itself, when the query starts. Raises `GraphInvalid`, `ConfigInvalid`.
    """
    state = base.spark_state
    if plan.spark_mode is None:
        if state is not None and SPARK_OPERATORS not in plan.confirmed.dropped_operators:
            raise GraphInvalid(
                f"epoch {base.epoch} has state of Spark's own operators ({', '.join(state.operators)}), the job has none",
                hint="run the program that has them; if their state may go, confirm it: "
                f"{plan.without_operator(SPARK_OPERATORS, restore)}",
            )
        return
    modes = sorted({node.output_mode for node in spark_nodes_of(*plan.ends)})
    if len(modes) > 1:
        raise GraphInvalid(
            f"transform has outputMode {' and '.join(map(repr, modes))} in several places; a query of Spark's has one",
            hint="use one mode, or two jobs joined by ckpt.Edge",
        )
    if len(plan.operators) > 1 and plan.marks:
        raise GraphInvalid(
            f"event time reaches operators of the job ('{plan.marks[0].operator}') in one query with operators of Spark",
            hint="let a stage of its own run the operators of Spark: end a stage before them or after them, "
            ".through('NAME', stage='NAME'), and call job.start_stages(); or keep windows and timeouts inside transform",
        )
    if plan.checkpoint(1).local is None:  # any number: it only names a folder in the same place
        raise ConfigInvalid(
            "the state of Spark's own operators needs Spark's checkpoint on a file system; run_dir is a URL",
            hint="set run_dir to a local or mounted path that driver and executors share; its content is disposable",
        )
    wanted = plan.config.shuffle_partitions
    if state is not None and wanted is not None and wanted != state.partitions:
        raise ConfigInvalid(
            f"the state of Spark's own operators has {state.partitions} partitions, the setting says {wanted}",
            hint=f"drop shuffle_partitions, or run: spark-ckpt rescale STORE --partitions {wanted}",
        )
