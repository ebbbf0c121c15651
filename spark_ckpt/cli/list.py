"""`spark-ckpt list`: the epochs that can be restored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri, pairs
from spark_ckpt.cli.output import Id, iso, print_facts, print_json, print_line, print_table, seconds, size, utc
from spark_ckpt.cli.readers import readers_of
from spark_ckpt.cli.stores import first_epoch, open_store
from spark_ckpt.connector import Json
from spark_ckpt.epochs.epoch_status import UNPUBLISHED, statuses
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import EpochBrief
from spark_ckpt.errors import CkptError, EpochNotFound, StoreForeign
from spark_ckpt.store.epoch_log import EpochLog, wall_ms
from spark_ckpt.store.existing import existing_store
from spark_ckpt.store.holder import provably_dead, runs
from spark_ckpt.store.location import Location
from spark_ckpt.store.schemes import store_location
from spark_ckpt.store.stage_folder import Stages, read_stages
from spark_ckpt.wording import counted, epochs

_NEWEST = 30
"""Epochs that `list` prints without --all: one screen."""


def list_epochs(
    store: StoreUri,
    every: Annotated[
        bool, typer.Option("--all", help="Print every epoch, not only the newest 30 and savepoints.")
    ] = False,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """List the newest epochs of a store, oldest first, with savepoints and the driver; or the stages of a program.

    `--all` prints every kept epoch, and so does `--json`.
    """
    options = pairs(storage_option, "--storage-option")
    folder = store_location(store, options)
    if (stages := read_stages(folder)) is not None:
        _list_stages(stages, folder, as_json)
        return
    opened = open_store(store, storage_option)
    log_state = opened.log.state()
    if as_json:
        print_json({"store": opened.location.uri, **_fields(opened.log, log_state)})
        return
    print_facts({log_state.kind: log_state.job, "store": opened.location.uri, "driver": driver_of(log_state)})
    print_line()
    if log_state.epochs:
        print_epochs(opened.log, log_state, every)
    else:
        print_line(f"no epochs yet; {first_epoch(log_state)}")
    for reader in readers_of(opened.log, log_state):
        print_line(f"reader of edge {reader.entry.row.edge}: {reader.sentence}")


def _list_stages(known: Stages, folder: Location, as_json: bool) -> None:
    """Print one line for each stage of a program: its senders, newest epoch, driver."""
    states = {stage: _state_of(folder.child(stage)) for stage in known.stages}
    if as_json:
        fields = [_stage_fields(stage, known.stages[stage], log_state) for stage, log_state in states.items()]
        print_json({"job": known.job, "stages": list[Json](fields)})
        return
    print_facts({"job": known.job, "stages": len(states)})
    print_line()
    rows = [
        (
            stage,
            ", ".join(known.stages[stage]) or None,
            Id(log_state.latest),
            utc(log_state.by_id[log_state.latest].created_ms) if log_state.latest else None,
            Id(log_state.incarnation),
            driver_of(log_state),
        )
        for stage, log_state in states.items()
    ]
    print_table(("stage", "reads from", "newest epoch", "taken", "incarnation", "driver"), rows)


def _state_of(stage: Location) -> LogState:
    """Return the log's state of a stage, that of an empty log before its first start."""
    try:
        return existing_store(stage.uri, stage.storage_options).log.state()
    except StoreForeign:
        # A folder with other content is no stage that has yet to start.
        if stage.entries():
            raise
        return LogState()


def _stage_fields(stage: str, senders: Sequence[str], log_state: LogState) -> dict[str, Json]:
    return {
        "stage": stage,
        "reads_from": list(senders),
        "latest": log_state.latest,
        "incarnation": log_state.incarnation,
        "driver": driver_fields(log_state),
    }


def print_epochs(log: EpochLog, log_state: LogState, every: bool = True) -> None:
    """Print one line for each epoch, without `every` only for savepoints and the newest 30; then what sinks lack."""
    status = _statuses(log_state)
    named = set(log_state.savepoints.values())
    newest = {brief.epoch for brief in log_state.epochs[-_NEWEST:]}
    shown = [brief for brief in log_state.epochs if every or brief.epoch in newest | named]
    weights = state_bytes(log, shown)
    rows = [_row(log_state, brief, status[brief.epoch], weights[brief.epoch]) for brief in shown]
    # An outbox has no state and counts no input; its epochs are batches of a query.
    left_out = {"rows in", "state", "reason"} if log_state.kind == "outbox" else {"batch"}
    if not log_state.savepoints:
        left_out.add("savepoint")
    columns = [name for name in rows[0] if name not in left_out]
    print_table(columns, [[row[name] for name in columns] for row in rows])
    _print_unpublished(log_state, status)
    if hidden := len(log_state.epochs) - len(shown):
        print_line(f"{counted(hidden, 'older epoch')} can be restored, too; to print all: spark-ckpt list STORE --all")


def _print_unpublished(log_state: LogState, status: Mapping[int, str]) -> None:
    for sink in log_state.sinks:
        lacking = [epoch for epoch in log_state.unacked(sink) if status.get(epoch) == UNPUBLISHED]
        if lacking and runs(log_state, wall_ms()):
            print_line(
                f"\nsink {sink} has not acknowledged {epochs(lacking)} for longer than {seconds(log_state.lease_ms)}: "
                "see the driver's log for the reason"
            )
        elif lacking:
            print_line(
                f"\nsink {sink} has not acknowledged {epochs(lacking)}: the next start publishes what it continues from, as far as "
                "the sink lacks it"
            )


def state_bytes(log: EpochLog, briefs: Sequence[EpochBrief]) -> dict[int, int | CkptError]:
    """Return the size of each epoch's state in bytes, or the error of reading its manifest. Reads the log once."""
    found = log.readable(brief.epoch for brief in briefs)
    # Retention may have dropped an epoch since the briefs were read, which is no damage.
    dropped = {each.epoch: each.state_bytes or 0 for each in briefs if isinstance(found[each.epoch], EpochNotFound)}
    whole = {epoch: each if isinstance(each, CkptError) else each.state_bytes for epoch, each in found.items()}
    return whole | dropped


def _fields(log: EpochLog, log_state: LogState) -> dict[str, Json]:
    status, weights = _statuses(log_state), state_bytes(log, log_state.epochs)
    return {
        log_state.kind: log_state.job,
        "store_id": log_state.store_id,
        "incarnation": log_state.incarnation,
        "latest": log_state.latest,
        "driver": driver_fields(log_state),
        "acked": dict(log_state.acked),
        "savepoints": dict(log_state.savepoints),
        "readers": [each.fields for each in readers_of(log, log_state)],
        "epochs": [
            epoch_fields(log_state, brief, status[brief.epoch], weights[brief.epoch]) for brief in log_state.epochs
        ],
    }


def _statuses(log_state: LogState) -> Mapping[int, str]:
    now_ms = wall_ms()
    return statuses(log_state, now_ms, runs(log_state, now_ms))


def epoch_fields(log_state: LogState, brief: EpochBrief, status: str, weight: int | CkptError) -> dict[str, Json]:
    """Return one epoch of `list --json`. `damage`: the error of reading its manifest, else null.

    `weight`: size of its state in bytes, or that error.
    """
    damage = str(weight) if isinstance(weight, CkptError) else None
    return {
        "epoch": brief.epoch,
        "status": status,
        "incarnation": brief.incarnation,
        "base": brief.base,
        "created": iso(brief.created_ms),
        "duration_ms": brief.duration_ms,
        "reason": brief.reason,
        "batch": brief.spark_batch.number if brief.spark_batch is not None else None,
        "rows_in": brief.rows_in,
        "rows_out": brief.rows_out,
        "state_bytes": None if isinstance(weight, CkptError) else weight,
        "damage": damage,
        "savepoints": _savepoints(log_state, brief.epoch),
    }


def driver_of(log_state: LogState) -> str:
    """Return the driver of the job or outbox in words."""
    if log_state.holder is None:
        return "none yet"
    if log_state.kind == "outbox":  # its driver renews no lease while it waits for rows
        began = f"{log_state.holder}, began {utc(log_state.since_ms)}"
        return f"none; the last was {began}" if log_state.is_free or provably_dead(log_state.holder) else began
    if log_state.lease_expires_ms <= wall_ms():
        return f"none; the last was {log_state.holder}"
    return f"{log_state.holder}, lease until {utc(log_state.lease_expires_ms)}"


def driver_fields(log_state: LogState) -> Json:
    """Return the driver of the job for JSON; None if there never was one."""
    if log_state.holder is None:
        return None
    return {
        "host": log_state.holder.host,
        "pid": log_state.holder.pid,
        "since": iso(log_state.since_ms),
        "holds_lease": runs(log_state, wall_ms()),
        "lease_until": iso(log_state.lease_expires_ms) if log_state.lease_expires_ms else None,
    }


def _row(log_state: LogState, brief: EpochBrief, status: str, weight: int | CkptError) -> dict[str, object]:
    return {
        "epoch": Id(brief.epoch),
        "batch": Id(brief.spark_batch.number) if brief.spark_batch is not None else None,
        "status": status,
        "taken": utc(brief.created_ms),
        "took": seconds(brief.duration_ms),
        "rows in": brief.rows_in,
        "rows out": brief.rows_out,
        "state": "damaged" if isinstance(weight, CkptError) else size(weight),
        "reason": brief.reason,
        "incarnation": Id(brief.incarnation),
        "savepoint": ", ".join(_savepoints(log_state, brief.epoch)) or None,
    }


def _savepoints(log_state: LogState, epoch: int) -> list[str]:
    return sorted(name for name, at in log_state.savepoints.items() if at == epoch)
