"""Records of the index-based protocols, and the restore decision.

A checkpoint is stored under the lowest index it serves and names the highest. An idle process that jumps from 3 to 6
takes one checkpoint for 4, 5 and 6. Recovery to index r undoes everything from r on, so no index is above r then. An
older checkpoint that served up to 6 then serves up to r.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from checkpoint_protocols.ids import Epoch, Incarnation, ProcessId
from checkpoint_protocols.incarnation import Age, Line, RollbackTable, age
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.receipts import Receipts
from checkpoint_protocols.record_fields import envelopes, number
from checkpoint_protocols.recovery import Birth, Failure, Key, Part, Plan, Record, Records, checkpoint_key, checkpoints
from checkpoint_protocols.vocabulary import Envelope

LOG = "log"


@dataclass(frozen=True, slots=True)
class Kept:
    """A durable checkpoint: it serves the indices `low` to `high`; `delivered` messages were delivered before it."""

    low: int
    high: int
    delivered: int


def log_key(message: Envelope) -> Key:
    """Return the key of a logged message. It depends on the message only."""
    return (LOG, message.source, f"{message.incarnation:06d}", f"{message.seq:012d}")


def kept_in(records: Records, table: RollbackTable) -> list[Kept]:
    """Return a process's durable checkpoints, oldest first."""
    return [
        Kept(low, clipped(record, table), number(record["delivered"])) for low, record in checkpoints(records).items()
    ]


def clipped(record: Record, table: RollbackTable) -> int:
    """Return the index that a state has in the newest incarnation: every recovery since lowers it to its line."""
    return min(number(record["index"]), _limit(record, table))


def local_part(records: Records, table: RollbackTable, incarnation: Incarnation, now: Record) -> Part:
    """Decide a survivor's part (Manivannan and Singhal): stay below the line, else restore the checkpoint that serves it.

    `table` includes the new row. A survivor may have missed recoveries, so the lowest line of all since `now` counts.
    """
    line = _limit(now, table)
    if number(now["index"]) < line:
        return Part(None, because=f"index {now['index']} is below {line}: nothing of it is undone")
    return _go_back(_up_to(records, line), table, incarnation)


def plan(failure: Failure) -> Plan:
    """Return the plan: all processes go to one index, the newest that every failed process has stored."""
    newest = {process: _newest(failure, process) for process in failure.failed}
    line = Epoch(min(newest.values()))
    table = {**failure.table, failure.incarnation: line}
    parts = {process: _part_of_failed(failure, process, table, line) for process in failure.failed}
    return Plan(failure.incarnation, line, parts)


def rejoin(decided: Plan, birth: Birth) -> Part:
    """Return a survivor's own decision, at the news of the recovery."""
    assert birth.checkpoint is not None  # noqa: S101 - who hears of a recovery has a now
    table = {**birth.table, decided.incarnation: decided.row}
    return local_part(birth.records, table, decided.incarnation, birth.checkpoint)


def _newest(failure: Failure, process: ProcessId) -> int:
    kept = kept_in(failure.records[process], failure.table)
    return kept[-1].high if kept else 0


def _part_of_failed(failure: Failure, process: ProcessId, table: RollbackTable, line: Epoch) -> Part:
    part = _go_back(_up_to(failure.records[process], line), table, failure.incarnation)
    return replace(part, because=f"failed: index {line} is the newest that all who failed have stored")


def _up_to(records: Records, line: int) -> Records:
    """Return the records without checkpoints that serve only indices above the line."""
    return {key: record for key, record in records.items() if key[0] != "checkpoint" or int(key[1]) <= line}


def _go_back(records: Records, table: RollbackTable, incarnation: Incarnation) -> Part:
    """Restore the newest checkpoint in `records`, then replay every logged message that it lacks and that was not undone."""
    known = checkpoints(records)
    low = max(known, default=None)
    state: Record = {} if low is None else known[low]
    replay = tuple(_replayed(logged(records), state, table, incarnation))
    if low is None:
        return Part(None, replay, initial=True, because="nothing is stored that serves the line")
    return Part(checkpoint_key(low), replay, because=f"its checkpoint from {low} on serves the line")


def logged(records: Records) -> list[Envelope]:
    """Return the messages of the log, oldest incarnation first."""
    return [message for key in sorted(records) if key[0] == LOG for message in envelopes(records[key]["messages"])]


def _replayed(
    log: Iterable[Envelope], state: Record, table: RollbackTable, incarnation: Incarnation
) -> Iterable[Envelope]:
    received = Receipts(state.get("received"))
    waiting = {log_key(message) for message in envelopes(state.get("waiting", ()))}
    for message in log:
        verdict = age(message.source, message.incarnation, Epoch(message.index), incarnation, table)
        if verdict is not Age.UNDONE and message not in received and log_key(message) not in waiting:
            yield message


def _limit(record: Mapping[str, object], table: RollbackTable) -> int:
    """Return the lowest line of all recoveries since the record was written."""
    written = record["incarnation"]
    assert isinstance(written, int)  # noqa: S101 - every record carries it
    return min((_one(row) for recovery, row in table.items() if recovery > written), default=2**62)


def _one(row: Line) -> int:
    if isinstance(row, Mapping):
        raise ProtocolViolation("indices are comparable: the row is one index for all")
    return row
