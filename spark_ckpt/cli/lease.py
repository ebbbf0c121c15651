"""`spark-ckpt lease`: who has a job, for how long, and who waits behind."""

from __future__ import annotations

from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri
from spark_ckpt.cli.output import Id, iso, print_facts, print_json, print_line, print_table, utc
from spark_ckpt.cli.stores import open_store
from spark_ckpt.connector import Json
from spark_ckpt.store.holder import provably_dead
from spark_ckpt.store.standbys import StandbyNote, Standbys
from spark_ckpt.store.tail import Tail


def lease(store: StoreUri, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """Who holds the job's lease, since when, and which standbys wait behind.

    Whether a holder on another host is alive cannot be seen from here: a standby sees it, by its own clock. Moments are told by the
    clock of the host that wrote them.
    """
    opened = open_store(store, storage_option)
    tail, waiting = opened.log.tail(), Standbys(opened.location).waiting()
    if as_json:
        fields: dict[str, Json] = {"job": tail.job, "store": opened.location.uri, "lease": _fields(tail)}
        print_json({**fields, "standbys": [_standby_fields(note) for note in waiting]})
        return
    print_facts({"job": tail.job, "store": opened.location.uri, **_facts(tail)})
    print_line()
    if waiting:
        columns = ("standby", "waits since", "behind", "follows epoch", "renewals seen", "warm", "told")
        print_table(columns, [_row(note) for note in waiting])
    else:
        print_line("no standby waits; start one with job.start(standby=True), see docs/second-driver.md")


def state_of(tail: Tail) -> str:
    """What is known here of the lease: "nobody's", "free", "holder gone" or "held"."""
    if tail.holder is None:
        return "nobody's"
    if tail.is_free:
        return "free"
    return "holder gone" if provably_dead(tail.holder) else "held"


def _facts(tail: Tail) -> dict[str, object]:
    if tail.holder is None:
        return {"lease": "nobody has had it yet"}
    return {
        "holder": tail.holder,
        "since": f"{utc(tail.since_ms)}, incarnation {tail.incarnation}",
        "lease": f"{state_of(tail)}; {tail.lease_ms / 1000:g} s from each renewal, the last at {utc(tail.renewed_ms)}",
        "newest epoch": Id(tail.latest),
        "handover": "asked for" if tail.handover_asked else None,
    }


def _fields(tail: Tail) -> Json:
    if tail.holder is None:
        return None
    return {
        "state": state_of(tail),
        "holder": {"host": tail.holder.host, "pid": tail.holder.pid},
        "incarnation": tail.incarnation,
        "since": iso(tail.since_ms),
        "lease_ms": tail.lease_ms,
        "renewed": iso(tail.renewed_ms),
        "latest": tail.latest,
        "handover_asked": tail.handover_asked,
    }


def _row(note: StandbyNote) -> tuple[object, ...]:
    since, told = utc(note.waits_since_ms), utc(note.told_ms)
    return (str(note.holder), since, Id(note.lease_of), Id(note.epoch), note.renewals, note.warm, told)


def _standby_fields(note: StandbyNote) -> Json:
    return {
        "host": note.holder.host,
        "pid": note.holder.pid,
        "waits_since": iso(note.waits_since_ms),
        "told": iso(note.told_ms),
        "lease_of": note.lease_of,
        "epoch": note.epoch,
        "renewals": note.renewals,
        "warm": note.warm,
    }
