"""`spark-ckpt handover`: the driver takes a final epoch and ends, a standby takes over."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri, seconds_of
from spark_ckpt.cli.output import print_json, print_line
from spark_ckpt.cli.stores import advice_for, open_store
from spark_ckpt.connector import Json
from spark_ckpt.coordination.messages import Outcome
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.errors import HandoverFailed
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.holder import provably_dead, runs_here
from spark_ckpt.store.standbys import Standbys

_POLL_S = 0.05
_FIRST_EPOCH_S = 15.0
HEARD_S = 20.0
"""Seconds to wait for a standby's note. A standby writes it every 2 s, except during the
first run of the job's plan.
"""


def handover(
    store: StoreUri,
    timeout: Annotated[str, typer.Option("--timeout", help="Longest wait, such as 90s or 5m.")] = "2m",
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Hand a running job over to a standby: a final epoch, the lease is freed, the standby takes over.

    Refused if no driver runs the job or no standby waits. Prints the gap between the old driver's last epoch and the
    new driver's first one, by this process's clock.
    """
    wait_s = seconds_of(timeout, "--timeout")
    opened = open_store(store, storage_option)
    # Refused before the request is in the log: a driver that reads it ends, and without a standby the job would stand still.
    before = opened.log.state()
    with advice_for(opened):
        _refuse(before, Standbys(opened.location))
    opened.log.ask_handover(before.incarnation)
    watch = _Watch(opened.log, before)
    if not watch.until_begun(time.monotonic() + wait_s):
        raise _not_begun(watch.log_state, before, wait_s)
    _refuse_same_driver(watch.log_state, before)
    watch.until_first_epoch(time.monotonic() + _FIRST_EPOCH_S)
    gap_s = watch.gap_s
    if as_json:
        began: dict[str, Json] = {"incarnation": watch.log_state.incarnation, "holder": str(watch.log_state.holder)}
        print_json({**began, "final_epoch": watch.log_state.base, "gap_s": None if gap_s is None else round(gap_s, 3)})
        return
    print_line(
        f"incarnation {watch.log_state.incarnation} continues from epoch {watch.log_state.base}: {watch.log_state.holder}"
    )
    known = "it has had no row yet" if gap_s is None else f"{gap_s:.1f} s between the two drivers' epochs"
    print_line(known)


class _Watch:
    """Follows the changes of the log, with this process's own clock."""

    def __init__(self, log: EpochLog, before: LogState) -> None:
        self._log = log
        self._before = before
        self._final_s = time.monotonic()
        self._first_s: float | None = None
        self.log_state = before
        self._final = before.latest

    def until_begun(self, deadline_s: float) -> bool:
        """Wait until another incarnation has begun. Return False at the deadline."""
        return self._until(lambda: self.log_state.incarnation > self._before.incarnation, deadline_s)

    def until_first_epoch(self, deadline_s: float) -> None:
        """Wait for its first epoch, until the deadline; an idle job has none."""
        self._until(lambda: self._first_s is not None, deadline_s)

    @property
    def gap_s(self) -> float | None:
        """Seconds from the last epoch of the old driver to the first of the new one; None before that."""
        return None if self._first_s is None else self._first_s - self._final_s

    def _until(self, holds: Callable[[], bool], deadline_s: float) -> bool:
        while not holds() and time.monotonic() < deadline_s:
            self._look()
            time.sleep(0 if holds() else _POLL_S)
        return holds()

    def _look(self) -> None:
        self.log_state = self._log.state()
        newest = self.log_state.by_id.get(self.log_state.latest)
        if newest is None or newest.epoch == self._final:
            return
        # Each epoch of the old driver moves the beginning of the gap, the first one of its successor ends it.
        if newest.incarnation == self._before.incarnation:
            self._final, self._final_s = newest.epoch, time.monotonic()
        elif self._first_s is None:
            self._first_s = time.monotonic()


def _is_heard(standbys: Standbys) -> bool:
    """Return True if a standby is alive: its process runs on this host, or it renews its note."""
    # A note alone proves nothing: a standby that died on another host leaves its note.
    known, deadline_s = {(note.holder, note.told_ms) for note in standbys.waiting()}, time.monotonic() + HEARD_S
    if any(runs_here(holder) for holder, _ in known):
        return True
    while time.monotonic() < deadline_s:
        if {(note.holder, note.told_ms) for note in standbys.waiting()} - known:
            return True
        time.sleep(_POLL_S)
    return False


def _refuse(log_state: LogState, standbys: Standbys) -> None:
    if log_state.kind == "outbox":
        raise HandoverFailed(
            "an outbox has no standby",
            holder=log_state.holder,
            hint="start the query on the other machine: the newest driver wins, and the query of this one ends with CKPT_FENCED",
        )
    if log_state.holder is None or log_state.is_free or provably_dead(log_state.holder):
        raise HandoverFailed("no driver runs the job", hint="there is nothing to hand over: start the job")
    if not _is_heard(standbys):
        raise HandoverFailed(
            "no standby waits: the job would stand still",
            holder=log_state.holder,
            hint="start the same program once more with job.start(standby=True), then hand over; to stop the job, stop its driver",
        )


def _refuse_same_driver(log_state: LogState, before: LogState) -> None:
    """Raise if the driver's incarnation failed before its end: then its run has begun the next one, without the request."""
    ended = next((each for each in log_state.incarnations if each.incarnation == before.incarnation), None)
    if ended is not None and log_state.holder == before.holder and ended.why not in ("", Outcome.STOPPED.value):
        raise HandoverFailed(
            f"the driver failed before it had handed over, and continues by itself: {ended.why}",
            holder=log_state.holder,
            hint="run the command again",
        )


def _not_begun(log_state: LogState, before: LogState, timeout: float) -> HandoverFailed:
    if log_state.is_free:
        return HandoverFailed(
            f"the driver has ended, but no standby has begun within {timeout:g} s",
            hint="see the standbys' logs, or start the job; it continues from its last epoch",
        )
    return HandoverFailed(
        f"the driver has not ended within {timeout:g} s",
        holder=before.holder,
        hint="it may still commit its final epoch: see spark-ckpt lease, or stop it",
    )
