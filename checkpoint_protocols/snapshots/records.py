"""Durable records of the snapshot protocols, and the plan that follows from them.

The deciding record is the coordinator's `commit`: a recovery goes back to the newest valid one. The protocol chooses
the processes that go back: all, or the failed ones and their ancestors.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

from checkpoint_protocols.graph import COORDINATOR
from checkpoint_protocols.ids import Epoch, Incarnation, ProcessId
from checkpoint_protocols.incarnation import Age, RollbackTable, age
from checkpoint_protocols.recovery import Failure, Key, Part, Plan, Record, Records, checkpoint_key
from checkpoint_protocols.vocabulary import Envelope, Json

Replay = Callable[[ProcessId, Epoch, Records], tuple[Envelope, ...]]
"""Messages that a process receives before anything new when it goes back to a snapshot."""


def record_key(table: str, *parts: int | str) -> Key:
    """Return the key of a durable record. Numbers are padded, so that keys sort as numbers."""
    return (table, *(f"{part:012d}" if isinstance(part, int) else part for part in parts))


def number_in(record: Record, name: str) -> int:
    """Return a number of a record, 0 if it is absent."""
    value = record.get(name, 0)
    return value if isinstance(value, int) else 0


def counts_in(record: Record, name: str) -> dict[str, int]:
    """Return a table of numbers by name, empty if it is absent."""
    value = record.get(name)
    return dict(value) if isinstance(value, dict) else {}


def messages_in(record: Record) -> tuple[Envelope, ...]:
    """Return the messages that a record keeps, in their order."""
    kept: Json = record.get("messages", ())
    assert isinstance(kept, list | tuple)  # noqa: S101 - machines write nothing else
    return tuple(Envelope.of(each) for each in kept)


def newest_commit(records: Records, now: Incarnation, table: RollbackTable, processes: Iterable[ProcessId]) -> Epoch:
    """Return the newest decided snapshot that no recovery up to `now` has undone; 0 if there is none.

    `records` are the coordinator's.
    """
    commits = {int(key[1]): record for key, record in records.items() if key[0] == "commit"}
    standing = [n for n, record in commits.items() if _stands(n, record, now, table, processes)]
    return Epoch(max(standing, default=0))


def _stands(
    number: int, record: Record, now: Incarnation, table: RollbackTable, processes: Iterable[ProcessId]
) -> bool:
    """Return True if the decision is still valid.

    The newest messages in a cut at `number` were sent at `number - 1`. No recovery may have undone that index.
    """
    written_in = Incarnation(number_in(record, "incarnation"))
    last = Epoch(number - 1)
    return all(age(process, written_in, last, now, table) is not Age.UNDONE for process in processes)


def decided(failure: Failure) -> Epoch:
    """Return the snapshot that a recovery can go back to: the newest valid decision, 0 for the initial state."""
    before = Incarnation(failure.incarnation - 1)
    records = failure.records.get(COORDINATOR, {})
    return newest_commit(records, before, failure.table, failure.graph.processes)


def everybody_back(failure: Failure, replay: Replay) -> Plan:
    """Return a plan in which all processes go back to the newest decision. If only the coordinator failed, all continue."""
    workers = frozenset(failure.graph.processes)
    return back_to(failure, decided(failure), workers if failure.failed & workers else (), replay)


def back_to(failure: Failure, number: Epoch, processes: Collection[ProcessId], replay: Replay) -> Plan:
    """Return a plan in which `processes` go back to snapshot `number`; the others keep their current state."""
    because = f"{', '.join(sorted(failure.failed))} failed; snapshot {number} is the newest that is complete"
    parts = {p: _part(p, number, failure.records.get(p, {}), replay, because) for p in processes}
    everybody = set(processes) == set(failure.graph.processes)
    return Plan(failure.incarnation, number if everybody else dict.fromkeys(processes, number), parts)


def _part(process: ProcessId, number: Epoch, records: Records, replay: Replay, because: str) -> Part:
    if not number:
        return Part(None, initial=True, because=because)
    return Part(checkpoint_key(number), replay(process, number, records), because=because)


def nothing_in_flight(process: ProcessId, number: Epoch, records: Records) -> tuple[Envelope, ...]:
    """Return no messages: the channels of an aligned cut are empty."""
    return ()


def kept_with_checkpoint(process: ProcessId, number: Epoch, records: Records) -> tuple[Envelope, ...]:
    """Return the channel states that were written in one record with the process's state."""
    return messages_in(records.get(checkpoint_key(number), {}))
