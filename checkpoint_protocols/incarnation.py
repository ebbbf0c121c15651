"""Incarnation numbers: decide if a message of an earlier incarnation still counts (rule G4, seed 004).

Recovery i starts incarnation i and undoes, per process, everything from some index on. That is row i of the rollback
table. A message of an older incarnation may lie below the line of every recovery since. Then it is only delayed, and
dropping it would lose it (erratum E14).

A send is undone as soon as *one* of those rows is at or below its index. So all rows since count: the newest row alone
would accept messages that an earlier recovery has undone.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from checkpoint_protocols.ids import Epoch, Incarnation, ProcessId
from checkpoint_protocols.machine import ProtocolViolation

Line = Epoch | Mapping[ProcessId, Epoch]
"""The index from which a recovery undid sends: one for all processes, or one per process. A process not named kept all.
"""

RollbackTable = Mapping[Incarnation, Line]
"""One row per recovery, keyed by the incarnation it started. The row is durable before that incarnation sends."""


class Age(Enum):
    """Verdict on a message, from its incarnation and index."""

    CURRENT = "sent in this incarnation"
    DELAYED = "sent in an earlier one and never undone: deliver it"
    UNDONE = "its send was rolled back: drop it"
    NEWER = "sent in an incarnation this process has not joined: roll back first"


def age(
    source: ProcessId,
    sent_in: Incarnation,
    index: Epoch,
    now: Incarnation,
    table: RollbackTable,
) -> Age:
    """Judge a message that `source` sent in incarnation `sent_in` at `index`, as seen from incarnation `now`.

    Raises `ProtocolViolation` if a row is missing: guessing would either lose or duplicate the message.
    """
    # The message follows a recovery that this process has not joined. Its state may be one that the recovery undid (G4).
    if sent_in > now:
        return Age.NEWER
    if sent_in == now:
        return Age.CURRENT
    # Any single recovery since the send can have undone it, so every row is checked.
    recoveries = (Incarnation(number) for number in range(sent_in + 1, now + 1))
    undone = [_undoes(_row(table, recovery), source, index) for recovery in recoveries]
    return Age.UNDONE if any(undone) else Age.DELAYED


def _row(table: RollbackTable, recovery: Incarnation) -> Line:
    try:
        return table[recovery]
    except KeyError:
        raise ProtocolViolation(f"the rollback table lacks the row of incarnation {recovery}") from None


def _undoes(line: Line, source: ProcessId, index: Epoch) -> bool:
    # A row names the first undone index. With checkpoints, a message carries the index of the last one before its send:
    # restoring checkpoint k undoes index k, too.
    if not isinstance(line, Mapping):
        return index >= line
    return source in line and index >= line[source]
