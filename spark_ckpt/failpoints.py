"""Named points at which a test can kill, stop or fail the process. Inactive unless the environment arms them.

`SPARK_CKPT_FAILPOINT="MID_SEND:kill:3,ACKED:raise"` kills the process at the third hit of MID_SEND and raises at the
first hit of ACKED. A fourth field delays the action by that many milliseconds while the program continues
(`COMMITTING:kill:1:2`). `SPARK_CKPT_FAILPOINT_ONCE` names a folder: each point acts once per folder, so that the
restarted process survives. The kill is SIGKILL: nothing is flushed, closed or logged.
"""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from spark_ckpt.errors import ConfigInvalid

VARIABLE = "SPARK_CKPT_FAILPOINT"
ONCE_VARIABLE = "SPARK_CKPT_FAILPOINT_ONCE"


class Failpoint(Enum):
    """Points at which a process can be killed: the states between which a promise has to hold."""

    STAGED = "rows and snapshots of an epoch are durable, the epoch is not committed"
    EPOCH_COMMITTING = "the manifest is about to be committed"
    EPOCH_COMMITTED = "the manifest is committed, nothing is published"
    SENDING_EARLY = "rows of an epoch that is not committed are about to be sent"
    SENT_EARLY = "rows of an epoch that is not committed are in the open transaction, every one acknowledged"
    PUBLISH_INIT = "the publisher fenced its predecessors"
    MARKER_READ = "the sink's marker was read"
    MID_SEND = "a part of the rows was sent (hit once per row group)"
    OFFSETS_SENT = "the marker is in the transaction"
    FLUSHED = "every row is acknowledged by the broker"
    PRE_COMMIT = "all checks passed, the transaction is about to be committed"
    COMMITTING = "the commit request is under way"
    PUBLISH_COMMITTED = "the transaction is committed, the driver does not know it yet"
    ACKED = "the publish was reported, the log has no ack yet"
    REWIND_PREPARING = "a rewind has noted that it begins, nothing is fenced"
    REWIND_FENCED = "a fence is in a checkpoint (hit once per query)"
    REWIND_COPIED = "a new checkpoint was copied next to its query's (hit once per query)"
    REWIND_DRAFTED = "the commits of every table are drafted, the rewind is not decided"
    REWIND_OUTBOX_TAKEN = "a rewind has the lease of an outbox (hit once per outbox)"
    REWIND_DECIDED = "the rewind is decided, nothing of it is public"
    REWIND_TABLE_COMMITTED = "a commit of a table is public (hit once per commit)"
    REWIND_SWAPPED = (
        "a new checkpoint has its query's place, the one before has no name of its own (hit once per query)"
    )
    REWIND_KEPT = "the checkpoint before has a name of its own (hit once per query)"
    REWIND_LOG_SWAPPED = "a file sink's new log has its place, no file was moved on the way back (hit once per folder)"
    REWIND_FILE_MOVED = "a file of a file sink was moved (hit once per file)"
    REWIND_OUTBOX_BRANCHED = "the log of an outbox continues from another epoch (hit once per outbox)"
    REWIND_PUBLISHED = "everything is in its place, and every query is fenced"
    REWIND_UNFENCED = "the fences of a query are gone (hit once per query)"
    ADOPTING = "the store of an outbox is a job's, and the job has no epoch yet"
    REWIND_DONE = "the rewind is noted as done"


class Action(Enum):
    """Action at an armed point."""

    KILL = "kill"
    STOP = "stop"
    RAISE = "raise"


class FailpointHit(RuntimeError):
    """Error of the action `raise`: stands for any unexpected failure at that point."""


@dataclass(slots=True)
class _Armed:
    action: Action
    nth: int
    delay_ms: int
    hits: int = 0


def hit(point: Failpoint) -> None:
    """Report that the program is at `point`. It costs one comparison if nothing is armed."""
    if _armed is not None:
        _reach(_armed, point)


def arm(spec: str) -> None:
    """Arm this process with a specification in the variable's syntax. The empty string disarms it."""
    global _armed
    _armed = parse(spec) if spec else None


@contextmanager
def armed(spec: str) -> Iterator[None]:
    """Arm this process, as by `arm`, until the end of the block."""
    global _armed
    before = _armed
    arm(spec)
    try:
        yield
    finally:
        _armed = before


def parse(spec: str) -> dict[Failpoint, _Armed]:
    """Return the armed points of a specification. Raises `ConfigInvalid`."""
    return dict(_parse_entry(entry.strip()) for entry in spec.split(","))


def _parse_entry(entry: str) -> tuple[Failpoint, _Armed]:
    match = re.fullmatch(r"(\w+):(kill|stop|raise)(?::([1-9]\d*)(?::(\d+))?)?", entry)
    if match is None or match[1] not in Failpoint.__members__:
        raise ConfigInvalid(
            f"failpoint {entry!r} is not POINT:ACTION[:HIT[:DELAY_MS]]",
            hint=f"points: {', '.join(Failpoint.__members__)}; actions: kill, stop, raise",
            variable=VARIABLE,
        )
    return Failpoint[match[1]], _Armed(Action(match[2]), int(match[3] or 1), int(match[4] or 0))


def _reach(armed: dict[Failpoint, _Armed], point: Failpoint) -> None:
    entry = armed.get(point)
    if entry is None:
        return
    entry.hits += 1
    if entry.hits == entry.nth and _first_time(point):
        _act(entry, point)


def _first_time(point: Failpoint) -> bool:
    folder = os.environ.get(ONCE_VARIABLE)
    if not folder:
        return True
    try:
        # Exclusive creation: of several processes at one point only one acts.
        os.close(os.open(Path(folder) / point.name, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except FileExistsError:
        return False
    return True


def _act(entry: _Armed, point: Failpoint) -> None:
    if entry.action is Action.RAISE:
        raise FailpointHit(f"failpoint {point.name}: {point.value}")
    number = signal.SIGKILL if entry.action is Action.KILL else signal.SIGSTOP
    if not entry.delay_ms:
        os.kill(os.getpid(), number)
        return
    timer = threading.Timer(entry.delay_ms / 1000, os.kill, (os.getpid(), number))
    timer.daemon = True  # a program that ends before must not wait for it
    timer.start()


_armed: dict[Failpoint, _Armed] | None = None
# At import: publishers' processes and Python workers inherit the environment.
arm(os.environ.get(VARIABLE, ""))
