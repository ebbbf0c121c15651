"""Oracles for several drivers that compete for one job.

They judge from outside: the world knows which processes live, which are paused, which ones the store answers, and the
exact time. Incarnations and the order of rows are the log's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from checkpoint_lab.drivers_node import Commit, DriverNode, Times
from checkpoint_lab.violations import Violation
from spark_ckpt.store.log_table import LogRow

LEADERS = ("incarnation", "epoch", "heartbeat", "released")
"""Kinds of rows of the leading driver."""


class Replaced(Violation):
    """A row of a replaced incarnation counts, or a number is used again."""

    ORACLE = "D1"


class TooEarly(Violation):
    """A driver was replaced that had neither returned its lease nor been silent for its term."""

    ORACLE = "D2"


class Returned(Violation):
    """A row counts of an incarnation that has returned its lease."""

    ORACLE = "D3"


class TooLate(Violation):
    """A lease is silent for longer than the bound while a standby watches."""

    ORACLE = "D4"


class NotAtOnce(Violation):
    """A standby does not at once take a lease that was returned, or whose holder died on its host."""

    ORACLE = "D5"


@dataclass
class Ledger:
    """State of the lease after the rows so far: the newest incarnation, and the newest returned one."""

    newest: int = 0
    returned: int = 0

    @property
    def is_free(self) -> bool:
        """True if no driver has the lease."""
        return self.newest == self.returned

    def take_in(self, row: LogRow) -> None:
        """Judge and apply one more row. D1, D3."""
        if row.kind not in LEADERS:
            return
        if self.returned and row.incarnation == self.returned:
            raise Returned(f"{row.kind} of incarnation {row.incarnation}, which has returned its lease")
        # only an incarnation row may raise the number, by one
        wanted = self.newest + (row.kind == "incarnation")
        if row.incarnation != wanted:
            raise Replaced(f"{row.kind} of incarnation {row.incarnation} where {wanted} was to come")
        self.newest = row.incarnation
        if row.kind == "released" and not json.loads(row.brief)["keeps"]:
            self.returned = self.newest


@dataclass(frozen=True, slots=True)
class Since:
    """Times of the newest row of the lease, of the store's last recovery, and of the last death of a process."""

    row: int = 0
    back: int = 0
    death: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """The true state of the lease.

    `holder`: None if its process is dead; `host`: the holder's host, also after its death.
    """

    incarnation: int
    free: bool
    host: str
    holder: DriverNode | None
    since: Since


def judge_takeover(commit: Commit, by: DriverNode, before: Lease, now: int) -> None:
    """D2: judge a new incarnation. A start by a wall clock, or without any check, is exempt."""
    if before.free or before.incarnation == commit.incarnation or (commit.token is None and not commit.incarnation):
        return
    holder, silent = before.holder, now - before.since.row
    # the standby saw the process die on its own host
    if holder is None and before.host == by.host:
        return
    # the standby measures the term by its own clock; 1 ms for its rounding
    if silent * by.rate < (by.times.lease_ms - 1) * 100:
        raise TooEarly(f"{by.name} replaces incarnation {before.incarnation} after {silent} ms of silence", (by.name,))
    if holder is not None and _renews_in_time(holder, before.since, now):
        raise TooEarly(f"{by.name} replaces {holder.name}, which renews in time", (by.name, holder.name))


def _renews_in_time(holder: DriverNode, since: Since, now: int) -> bool:
    """Return True if the holder renews in time.

    It could act all the time, and has renewed, or has had no time to renew since the store is back. A holder that was
    paused or cut off was silent by itself: its next steps come after that.
    """
    if not holder.able or holder.awake_since > since.row or holder.wants_to_renew(now):
        return False
    return holder.last_renewal or (now - since.back) * holder.rate < holder.times.again_ms * 100


def judge_silence(nodes: Iterable[DriverNode], lease: Lease, now: int) -> None:
    """D4, D5: judge the time that has passed."""
    for node in nodes:
        if not (node.able and node.waits):
            continue
        waited = now - max(lease.since.row, node.able_since)
        gone = lease.holder is None and lease.host == node.host
        nobodys = waited if lease.free else min(waited, now - lease.since.death) if gone else 0
        if nobodys > _bound(node, node.times.read_ms):
            raise NotAtOnce(f"{node.name} has watched for {waited} ms a lease that is nobody's", (node.name,))
        if waited > _bound(node, _term(node.times)):
            raise TooLate(f"{node.name} has watched for {waited} ms a lease that is silent", (node.name,))


def _term(times: Times) -> int:
    return times.lease_ms + times.margin_ms + 2 * times.read_ms


def _bound(node: DriverNode, local_ms: int) -> int:
    """Return the longest exact time in which its clock counts `local_ms`, plus one for each rounding."""
    return -(-(local_ms + 1) * 100 // node.rate) + 2
