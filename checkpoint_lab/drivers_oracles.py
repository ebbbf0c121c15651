"""What must hold where several drivers want one job.

Judged from outside: the world knows who lives, who stands still and whom the store answers, and exact time. A row's incarnation and
order are the log's.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from checkpoint_lab.drivers_node import Commit, DriverNode, Times
from checkpoint_lab.violations import Violation
from spark_ckpt.store.log_table import LogRow

LEADERS = ("incarnation", "epoch", "heartbeat", "released")
"""Rows of whoever leads the job."""


class Replaced(Violation):
    """A row of an incarnation that was replaced counts, or a number is used again."""

    ORACLE = "D1"


class TooEarly(Violation):
    """A driver was replaced that had neither returned its lease nor been silent for its term."""

    ORACLE = "D2"


class Returned(Violation):
    """Something counts of an incarnation that has returned its lease."""

    ORACLE = "D3"


class TooLate(Violation):
    """A lease is silent for longer than the bound, and a standby watches."""

    ORACLE = "D4"


class NotAtOnce(Violation):
    """A lease that was returned, or whose holder is gone before a standby's eyes, is not taken at once."""

    ORACLE = "D5"


@dataclass
class Ledger:
    """What the rows so far say: the newest incarnation, and those that have returned their lease."""

    newest: int = 0
    returned: int = 0

    @property
    def is_free(self) -> bool:
        """Nobody has the lease."""
        return self.newest == self.returned

    def take_in(self, row: LogRow) -> None:
        """One more row. D1, D3."""
        if row.kind not in LEADERS:
            return
        if self.returned and row.incarnation == self.returned:
            raise Returned(f"{row.kind} of incarnation {row.incarnation}, which has returned its lease")
        wanted = self.newest + (row.kind == "incarnation")
        if row.incarnation != wanted:
            raise Replaced(f"{row.kind} of incarnation {row.incarnation} where {wanted} was to come")
        self.newest = row.incarnation
        if row.kind == "released" and not json.loads(row.brief)["keeps"]:
            self.returned = self.newest


@dataclass(frozen=True, slots=True)
class Since:
    """When the newest row of the lease came, the store was last back, a process last died."""

    row: int = 0
    back: int = 0
    death: int = 0


@dataclass(frozen=True, slots=True)
class Lease:
    """As it is, whatever anybody believes. `holder`: None if that process is over; `host`: where it is or was."""

    incarnation: int
    free: bool
    host: str
    holder: DriverNode | None
    since: Since


def judge_takeover(commit: Commit, by: DriverNode, before: Lease, now: int) -> None:
    """An incarnation has begun. D2; whoever goes by a wall clock, or by nothing, is not held to it."""
    if before.free or before.incarnation == commit.incarnation or (commit.token is None and not commit.incarnation):
        return
    holder, silent = before.holder, now - before.since.row
    if holder is None and before.host == by.host:
        return
    if silent * by.rate < (by.times.lease_ms - 1) * 100:
        raise TooEarly(f"{by.name} replaces incarnation {before.incarnation} after {silent} ms of silence", (by.name,))
    if holder is not None and _renews_in_time(holder, before.since, now):
        raise TooEarly(f"{by.name} replaces {holder.name}, which renews in time", (by.name, holder.name))


def _renews_in_time(holder: DriverNode, since: Since, now: int) -> bool:
    """It has been able to all the time, and has done it, or has not had the time to since the store is back.

    Whoever stood still, or was cut off, has been silent by itself: what it does next comes after that.
    """
    if not holder.able or holder.awake_since > since.row or holder.wants_to_renew(now):
        return False
    return holder.last_renewal or (now - since.back) * holder.rate < holder.times.again_ms * 100


def judge_silence(nodes: Iterable[DriverNode], lease: Lease, now: int) -> None:
    """Time has passed. D4, D5."""
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
    """At least so much time has passed when its clock has counted that; and one for each rounding."""
    return -(-(local_ms + 1) * 100 // node.rate) + 2
