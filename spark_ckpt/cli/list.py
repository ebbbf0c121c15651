"""`spark-ckpt list`: the epochs that can be restored."""

from __future__ import annotations

from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri
from spark_ckpt.cli.output import Id, iso, print_facts, print_json, print_line, print_table, seconds, size, utc
from spark_ckpt.cli.stores import open_store, status_of
from spark_ckpt.connector import Json
from spark_ckpt.errors import CkptError, EpochDamaged, EpochNotFound, FormatUnknown
from spark_ckpt.store.epoch_log import EpochLog, wall_ms
from spark_ckpt.store.records import EpochBrief
from spark_ckpt.store.tail import Tail


def list_epochs(store: StoreUri, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """List the epochs of a store, oldest first, with savepoints and who runs the job."""
    opened = open_store(store, storage_option)
    tail = opened.log.tail()
    if as_json:
        print_json({"store": opened.location.uri, **_fields(opened.log, tail)})
        return
    print_facts({"job": tail.job, "store": opened.location.uri, "driver": driver_of(tail)})
    print_line()
    if tail.epochs:
        print_epochs(opened.log, tail)
    else:
        print_line("no epochs yet; the job takes the first one when it starts")


def print_epochs(log: EpochLog, tail: Tail) -> None:
    """One line per epoch."""
    columns = ("epoch", "status", "taken", "took", "rows in", "rows out", "state", "reason", "incarnation", "savepoint")
    shown = len(columns) - (not tail.savepoints)
    print_table(columns[:shown], [_row(log, tail, brief)[:shown] for brief in tail.epochs])


def state_bytes(log: EpochLog, epoch: int) -> int | CkptError:
    """What the state of an epoch weighs; why its manifest cannot be read, if it cannot."""
    try:
        operators = log.manifest(epoch).operators.values()
    except (EpochDamaged, EpochNotFound, FormatUnknown) as error:
        return error
    return sum(file.size_bytes for each in operators for file in each.files)


def _fields(log: EpochLog, tail: Tail) -> dict[str, Json]:
    return {
        "job": tail.job,
        "store_id": tail.store_id,
        "incarnation": tail.incarnation,
        "latest": tail.latest,
        "driver": driver_fields(tail),
        "acked": dict(tail.acked),
        "savepoints": dict(tail.savepoints),
        "epochs": [epoch_fields(log, tail, brief) for brief in tail.epochs],
    }


def epoch_fields(log: EpochLog, tail: Tail, brief: EpochBrief) -> dict[str, Json]:
    """One epoch of `list --json`. `damage`: why its manifest cannot be read, null if it can."""
    weight = state_bytes(log, brief.epoch)
    damage = str(weight) if isinstance(weight, CkptError) else None
    return {
        "epoch": brief.epoch,
        "status": status_of(tail, brief),
        "incarnation": brief.incarnation,
        "base": brief.base,
        "created": iso(brief.created_ms),
        "duration_ms": brief.duration_ms,
        "reason": brief.reason,
        "rows_in": brief.rows_in,
        "rows_out": brief.rows_out,
        "state_bytes": None if isinstance(weight, CkptError) else weight,
        "damage": damage,
        "savepoints": _savepoints(tail, brief.epoch),
    }


def driver_of(tail: Tail) -> str:
    """Who runs the job, in words."""
    if tail.holder is None:
        return "none yet"
    if tail.lease_expires_ms <= wall_ms():
        return f"none; the last was {tail.holder}"
    return f"{tail.holder}, lease until {utc(tail.lease_expires_ms)}"


def driver_fields(tail: Tail) -> Json:
    """Who runs the job, for JSON; None if nobody ever did."""
    if tail.holder is None:
        return None
    return {
        "host": tail.holder.host,
        "pid": tail.holder.pid,
        "holds_lease": tail.lease_expires_ms > wall_ms(),
        "lease_until": iso(tail.lease_expires_ms) if tail.lease_expires_ms else None,
    }


def _row(log: EpochLog, tail: Tail, brief: EpochBrief) -> tuple[object, ...]:
    weight = state_bytes(log, brief.epoch)
    return (
        Id(brief.epoch),
        status_of(tail, brief),
        utc(brief.created_ms),
        seconds(brief.duration_ms),
        brief.rows_in,
        brief.rows_out,
        "damaged" if isinstance(weight, CkptError) else size(weight),
        brief.reason,
        Id(brief.incarnation),
        ", ".join(_savepoints(tail, brief.epoch)) or None,
    )


def _savepoints(tail: Tail, epoch: int) -> list[str]:
    return sorted(name for name, at in tail.savepoints.items() if at == epoch)
