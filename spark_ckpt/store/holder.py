"""The process that holds a lease, and proof that it is dead before its lease expires."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import Holder

_PROC = Path("/proc")
# proc(5): a zombie (Z) has ended, and only its parent has not asked for its exit code yet.
_DEAD_STATES = "ZX"


def current_holder(name: str = "") -> Holder:
    """Return this process as a holder. Without /proc the proofs are empty, and a dead holder's lease has to expire."""
    pid = os.getpid()
    _, started = _state_and_start(pid) or ("", 0)
    return Holder(host=socket.gethostname(), boot_id=boot_id(), pid=pid, pid_start=started, name=name)


def provably_dead(holder: Holder) -> bool:
    """Return True if `holder` cannot run any more: it was a process of this kernel, and is gone or replaced by another
    process.
    """
    # Process numbers of another host, boot or container name other processes.
    here = current_holder()
    if not holder.boot_id or not holder.pid_start or (holder.host, holder.boot_id) != (here.host, here.boot_id):
        return False
    found = _state_and_start(holder.pid)
    # Another start time: the kernel has given the number to another process.
    return _gone(holder.pid) if found is None else found[0] in _DEAD_STATES or found[1] != holder.pid_start


def runs_here(holder: Holder) -> bool:
    """Return True if `holder` is a running process of this kernel."""
    here = current_holder()
    return (
        bool(here.boot_id) and (holder.host, holder.boot_id) == (here.host, here.boot_id) and not provably_dead(holder)
    )


def runs(log_state: LogState, now_ms: int) -> bool:
    """Return True if the newest driver may run: its lease holds. `now_ms`: ms since 1970 UTC.

    The driver of an outbox renews no lease while it waits for rows. It may run until its process is known to be gone.
    """
    if log_state.kind == "outbox":
        return not log_state.is_free and log_state.holder is not None and not provably_dead(log_state.holder)
    return log_state.lease_expires_ms > now_ms


def _gone(pid: int) -> bool:
    # /proc may hide other users' processes (hidepid); signal 0 finds them.
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


def boot_id() -> str:
    """Return an id of the host's boot and of its process numbers; an empty text where there is none."""
    # Process numbers mean something only within one boot and one pid namespace (containers share the kernel's boot id).
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{(_PROC / 'self/ns/pid').readlink()}"
    except OSError:
        return ""


def _state_and_start(pid: int) -> tuple[str, int] | None:
    """Return state letter and start time (clock ticks since boot) of a process; None if there is none."""
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command's name, in parentheses, may contain spaces and parentheses, so split after the last one.
    fields = text.rpartition(")")[2].split()
    return fields[0], int(fields[19])  # state is field 3 of proc(5), starttime field 22
