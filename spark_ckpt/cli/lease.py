"""`spark-ckpt lease`: the holder of a job's lease, the standbys, and the standby that does maintenance."""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.lease.delegation import SETTINGS
from checkpoint_protocols.lease.messages import Turn
from checkpoint_protocols.lease.rotation import weights
from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri
from spark_ckpt.cli.output import Id, iso, print_facts, print_json, print_line, print_table, utc
from spark_ckpt.cli.stores import open_store
from spark_ckpt.connector import Json
from spark_ckpt.epochs.log_state import LogState, MaintenanceEntry
from spark_ckpt.store.holder import provably_dead
from spark_ckpt.store.stage_folder import in_terms_of_stage
from spark_ckpt.store.standbys import StandbyNote, Standbys


def lease(store: StoreUri, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """Show the job's lease: its holder, since when, the standbys, and which standby does maintenance.

    This command cannot see if a holder on another host is alive; a standby can, by its own clock. Times are from the
    clock of the host that wrote them.
    """
    opened = open_store(store, storage_option)
    log_state, named = opened.log.state(), Standbys(opened.location).named()
    waiting = dict(sorted(named.items(), key=lambda each: (each[1].waits_since_ms, str(each[1].holder))))
    shares = next_shares(log_state, waiting)
    if as_json:
        fields: dict[str, Json] = {
            log_state.kind: log_state.job,
            "store": opened.location.uri,
            "lease": _fields(log_state),
        }
        fields["maintenance"] = _maintenance_fields(log_state, waiting)
        print_json({**fields, "standbys": [_standby_fields(note, shares.get(name)) for name, note in waiting.items()]})
        return
    print_facts(
        {
            log_state.kind: log_state.job,
            "store": opened.location.uri,
            **_facts(log_state),
            **_maintenance_facts(log_state, waiting),
        }
    )
    print_line()
    if waiting:
        columns = (
            "standby",
            "waits since",
            "behind",
            "follows epoch",
            "renewals seen",
            "warm",
            "next maintenance",
            "told",
        )
        print_table(columns, [_row(note, shares.get(name)) for name, note in waiting.items()])
    elif log_state.kind == "outbox":
        print_line("an outbox has no standby: start the query on another machine, and that driver takes over")
    else:
        start = in_terms_of_stage(opened.location, "job.start(standby=True)")
        print_line(f"no standby waits; start one with {start}, see docs/second-driver.md")


def state_of(log_state: LogState) -> str:
    """Return the known state of the lease: "free", "holder gone", "held", or a text for a lease without any holder yet."""
    if log_state.holder is None:
        return "nobody's"
    if log_state.is_free:
        return "free"
    return "holder gone" if provably_dead(log_state.holder) else "held"


def next_shares(log_state: LogState, waiting: Mapping[str, StandbyNote]) -> dict[str, int]:
    """Return each standby's probability of the next checkpoint lease, in percent, as the driver draws it.

    Standbys that take no lease are left out.
    """
    turns = {} if log_state.maintenance is None else log_state.maintenance.lease.turns
    known = {ProcessId(name): Turn(turn.since, turn.ttl_ms) for name, turn in turns.items()}
    # A note without a clock is of a standby that takes no lease.
    takes = {ProcessId(name): note.health for name, note in waiting.items() if note.clock_ms is not None}
    if not takes:
        return {}
    drawn = weights(takes, known, SETTINGS)
    total = sum(drawn.values())
    return {name: round(100 * drawn.get(ProcessId(name), 0) / total) for name in takes}


def _maintenance_facts(log_state: LogState, waiting: Mapping[str, StandbyNote]) -> dict[str, object]:
    """Return the maintenance state in words. The log does not record maintenance by the driver."""
    maintenance = log_state.maintenance
    if maintenance is None:
        return {
            "maintenance": None
            if log_state.holder is None or log_state.kind == "outbox"
            else "the driver's own: no standby has had the checkpoint lease yet"
        }
    who = (
        waiting[maintenance.lease.holder].holder
        if maintenance.lease.holder in waiting
        else f"{maintenance.lease.holder}, which is gone"
    )
    lease = f"checkpoint lease {maintenance.token} since {utc(maintenance.since_ms)}, for {maintenance.lease.ttl_ms / 1000:g} s"
    return {
        "maintenance": f"{who}, {lease}; {_state_of_turn(maintenance)}",
        "damage": maintenance.ended.damage if maintenance.ended else None,
    }


def _state_of_turn(maintenance: MaintenanceEntry) -> str:
    if maintenance.ended is None:
        return "not reported as done"
    if maintenance.ended.failure:
        return f"given back: {maintenance.ended.failure}"
    return f"done up to epoch {maintenance.ended.epoch} at {utc(maintenance.ended_ms)}"


def _maintenance_fields(log_state: LogState, waiting: Mapping[str, StandbyNote]) -> Json:
    maintenance = log_state.maintenance
    if maintenance is None:
        return None
    note, ended = waiting.get(maintenance.lease.holder), maintenance.ended
    return {
        "token": maintenance.token,
        "standby": maintenance.lease.holder,
        "host": None if note is None else note.holder.host,
        "pid": None if note is None else note.holder.pid,
        "since": iso(maintenance.since_ms),
        "ttl_ms": maintenance.lease.ttl_ms,
        "ended": None if ended is None else iso(maintenance.ended_ms),
        "epoch": None if ended is None or ended.failure else ended.epoch,
        "failure": (ended.failure or None) if ended else None,
        "damage": (ended.damage or None) if ended else None,
    }


def _facts(log_state: LogState) -> dict[str, object]:
    if log_state.holder is None:
        return {"lease": "no driver has held it yet"}
    return {
        "holder": log_state.holder,
        "since": f"{utc(log_state.since_ms)}, incarnation {log_state.incarnation}",
        "lease": _lease(log_state),
        "newest epoch": Id(log_state.latest),
        "handover": "asked for" if log_state.handover_asked else None,
    }


def _lease(log_state: LogState) -> str:
    last = utc(log_state.renewed_ms)
    if log_state.kind == "outbox":
        return f"{state_of(log_state)}; the newest driver wins at once, the last commit or begin was at {last}"
    return f"{state_of(log_state)}; {log_state.lease_ms / 1000:g} s from each renewal, the last at {last}"


def _fields(log_state: LogState) -> Json:
    if log_state.holder is None:
        return None
    return {
        "state": state_of(log_state),
        "holder": {"host": log_state.holder.host, "pid": log_state.holder.pid},
        "incarnation": log_state.incarnation,
        "since": iso(log_state.since_ms),
        "lease_ms": log_state.lease_ms,
        "renewed": iso(log_state.renewed_ms),
        "latest": log_state.latest,
        "handover_asked": log_state.handover_asked,
    }


def _row(note: StandbyNote, share: int | None) -> tuple[object, ...]:
    since, told, turn = utc(note.waits_since_ms), utc(note.told_ms), "-" if share is None else f"{share} %"
    return (str(note.holder), since, Id(note.lease_of), Id(note.epoch), note.renewals, note.warm, turn, told)


def _standby_fields(note: StandbyNote, share: int | None) -> Json:
    return {
        "host": note.holder.host,
        "pid": note.holder.pid,
        "waits_since": iso(note.waits_since_ms),
        "told": iso(note.told_ms),
        "lease_of": note.lease_of,
        "epoch": note.epoch,
        "renewals": note.renewals,
        "warm": note.warm,
        "next_maintenance_percent": share,
    }
