"""The coordinator of all snapshot protocols: names a snapshot, requests it, counts answers, then commits or aborts it.

    STARTING -> IDLE <-> OPEN

One snapshot has three steps: its id is written (`NAMING`), answers arrive (`COLLECTING`), the decision is written
(`DECIDING`). Rules, all of section 1 of the recovery literature's common model:

- An id is durable before it is sent to any process. It is never used again, also not after an abort or a crash (G3).
- The decision is one record. It is durable before it is sent to any process (G2), and recovery uses it alone.
- A snapshot that is not complete in time is aborted. All processes receive the abort, since they may hold channels.
- A crash of the coordinator abandons open snapshots. Its successor repeats the newest decision, for processes that
  missed it, and continues with the next id.

Protocols differ in the processes they ask (`asked`), the number of open snapshots (`limit`) and the rule of
completeness.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar

from checkpoint_protocols import record_fields
from checkpoint_protocols.graph import COORDINATOR
from checkpoint_protocols.ids import Epoch, Incarnation, ProcessId, TimerId
from checkpoint_protocols.incarnation import Age, RollbackTable, age
from checkpoint_protocols.machine import Cell, Effect, Event, rows
from checkpoint_protocols.message_machine import MessageMachine
from checkpoint_protocols.recovery import Birth, Failure, Key, Part, Record, Records, RecoveryPlan, checkpoint_key
from checkpoint_protocols.vocabulary import (
    Commanded,
    Envelope,
    Erase,
    Note,
    Received,
    SetTimer,
    Stored,
    StoreRecord,
    TimerElapsed,
)

# -- Durable records of the snapshot protocols, and the plan that follows from them.
#
# The deciding record is the coordinator's `commit`: a recovery goes back to the newest valid one. The protocol chooses
# the processes that go back: all, or the failed ones and their ancestors.


Replay = Callable[[ProcessId, Epoch, Records], tuple[Envelope, ...]]
"""Messages that a process receives before anything new when it goes back to a snapshot."""


def record_key(table: str, *parts: int | str) -> Key:
    """Return the key of a durable record. Numbers are padded, so that keys sort as numbers."""
    return (table, *(f"{part:012d}" if isinstance(part, int) else part for part in parts))


def messages_in(record: Record) -> tuple[Envelope, ...]:
    """Return the messages that a record keeps, in their order. Raises `ProtocolViolation` if there are other values."""
    return record_fields.envelopes(record.get("messages", ()))


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
    written_in = Incarnation(record_fields.number(record["incarnation"]))
    # The newest messages in the cut `number` were sent at `number - 1`. If a recovery undid them, it undid the cut.
    last = Epoch(number - 1)
    return all(age(process, written_in, last, now, table) is not Age.UNDONE for process in processes)


def decided(failure: Failure) -> Epoch:
    """Return the snapshot that a recovery can go back to: the newest valid decision, 0 for the initial state."""
    # The row of the new incarnation does not exist yet: this plan makes it.
    before = Incarnation(failure.incarnation - 1)
    records = failure.records.get(COORDINATOR, {})
    return newest_commit(records, before, failure.table, failure.graph.processes)


def everybody_back(failure: Failure, replay: Replay) -> RecoveryPlan:
    """Return a plan in which all processes go back to the newest decision. If only the coordinator failed, all continue."""
    workers = frozenset(failure.graph.processes)
    return back_to(failure, decided(failure), workers if failure.failed & workers else (), replay)


def back_to(failure: Failure, number: Epoch, processes: Collection[ProcessId], replay: Replay) -> RecoveryPlan:
    """Return a plan in which `processes` go back to snapshot `number`; the others keep their current state."""
    because = f"{', '.join(sorted(failure.failed))} failed; snapshot {number} is the newest that is complete"
    parts = {p: _part(p, number, failure.records.get(p, {}), replay, because) for p in processes}
    # Processes that keep their state undo nothing, so a partial recovery's row names only the others. Their messages stay valid.
    everybody = set(processes) == set(failure.graph.processes)
    return RecoveryPlan(failure.incarnation, number if everybody else dict.fromkeys(processes, number), parts)


def _part(process: ProcessId, number: Epoch, records: Records, replay: Replay, because: str) -> Part:
    # Snapshot 0 is the initial state, which has no record.
    if not number:
        return Part(None, initial=True, because=because)
    return Part(checkpoint_key(number), replay(process, number, records), because=because)


def nothing_in_flight(process: ProcessId, number: Epoch, records: Records) -> tuple[Envelope, ...]:
    """Return no messages: the channels of an aligned cut are empty."""
    return ()


def kept_with_checkpoint(process: ProcessId, number: Epoch, records: Records) -> tuple[Envelope, ...]:
    """Return the channel states that were written in one record with the process's state."""
    return messages_in(records.get(checkpoint_key(number), {}))


BEGIN, ACK, REFUSE, COMMIT, ABORT = "begin", "ack", "refuse", "commit", "abort"
"""Control messages.

- `BEGIN` goes to the asked processes.
- `ACK` and `REFUSE` come from each process: its record is durable, or could not be written.
- `COMMIT` and `ABORT` go to all processes.
"""

PERIODIC, TIMEOUT = "checkpoint", "timeout"


class SnapshotCoordinatorPhase(Enum):
    """Phase of the coordinator."""

    STARTING = "before its first event"
    IDLE = "no snapshot is under way"
    OPEN = "at least one is"


class SnapshotStep(Enum):
    """Step of one snapshot."""

    NAMING = "its id is being written"
    COLLECTING = "answers are coming in"
    DECIDING = "the decision is being written"


@dataclass
class Open:
    """One snapshot under way. `balance` is for protocols that count messages."""

    missing: set[ProcessId]
    step: SnapshotStep = SnapshotStep.NAMING
    timeout: TimerId | None = None
    balance: int = 0


P = SnapshotCoordinatorPhase

_EVENTS = (Commanded, Received, TimerElapsed, Stored)


class SnapshotCoordinator(MessageMachine[SnapshotCoordinatorPhase]):
    """Begins and decides snapshots. Subclasses change `limit`, `asked`, `MESSAGES` and `_complete`."""

    PHASES = SnapshotCoordinatorPhase
    AT_REST = (P.IDLE,)
    EVENTS = _EVENTS
    TABLE = rows(
        {
            P.STARTING: {Commanded: "_on_start"},
            P.IDLE: {TimerElapsed: "_on_timer"},
            P.OPEN: {TimerElapsed: "_on_timer", Received: "_on_received", Stored: "_on_stored"},
        },
        _EVENTS,
    )
    MESSAGES: ClassVar[Mapping[str, Cell]] = {ACK: "_on_ack", REFUSE: "_on_refuse"}
    """Handler of each message kind; other kinds are invalid."""

    limit = 1
    """Greatest number of open snapshots."""

    def __init__(self, birth: Birth) -> None:
        super().__init__(P.STARTING, birth)
        known = birth.checkpoint or {}
        self.workers = birth.graph.processes
        self.old_keys = [key for key in birth.records if key[0] in ("begun", "commit")]
        self.committed: int = newest_commit(birth.records, birth.incarnation, birth.table, birth.graph.processes)
        # A number counts as used once its record was begun, also without a decision: its barriers may still travel (G3).
        self.newest = max(
            [record_fields.number(known.get("index", 0)), self.committed, *(int(key[1]) for key in self.old_keys)]
        )
        self.open: dict[int, Open] = {}
        self._timers = 0
        self._periodic: TimerId | None = None

    def record(self) -> Record:
        """Return the state for the next incarnation. Open snapshots are not in it: they end with this incarnation."""
        return {"incarnation": self.incarnation, "index": self.newest, "committed": self.committed}

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        self._ensure((self.phase is P.OPEN) == bool(self.open), "snapshots are under way iff open")
        self._ensure(len(self.open) <= self.limit, "no more are open than may be")
        self._ensure(all(self.committed < number <= self.newest for number in self.open), "ids grow")
        self._ensure(
            all(bool(opened.missing) or opened.step is not SnapshotStep.NAMING for opened in self.open.values()),
            "no process answers before it is asked",
        )

    def asked(self) -> Iterable[ProcessId]:
        """Return the processes that receive the begin of a snapshot: the sources, whose markers inform the others."""
        return self.graph.sources

    def _complete(self, opened: Open) -> bool:
        return not opened.missing

    # -- at the door ---------------------------------------------------------------------------------------------

    def _stale(self, event: Event) -> str | None:
        match event:
            case Received(message=message) if not self.is_collecting(message.index):
                return f"snapshot {message.index} is not under way any more"
            case TimerElapsed(timer=timer) if timer not in self._awaited():
                return "set again since, or its snapshot is over"
            case Stored(token=token) if int(token.split()[1]) not in self.open:
                return "that snapshot is over"
        return None

    def _door(self, event: Event) -> list[Effect] | None:
        turned_away = super()._door(event)
        if turned_away is None or not isinstance(event, Stored) or not event.ok:
            return turned_away
        # The record became durable after a newer decision, whose own erasure came too early for it.
        what, number = event.token.split()
        return [*turned_away, Erase((record_key(what, int(number)),))]

    def is_collecting(self, number: int) -> bool:
        """Return true while acknowledgements of that snapshot count."""
        return number in self.open and self.open[number].step is SnapshotStep.COLLECTING

    def _awaited(self) -> set[TimerId | None]:
        return {self._periodic, *(opened.timeout for opened in self.open.values())}

    # -- beginning -----------------------------------------------------------------------------------------------

    def _on_start(self, event: Commanded) -> list[Effect]:
        self.phase = P.IDLE
        # The last incarnation may have failed between the decision and its messages.
        again = self._send_control_to_all(COMMIT, self.committed) if self.committed else []
        return [*again, *self._collect_garbage(), self._next_period()]

    def _on_timer(self, event: TimerElapsed) -> list[Effect]:
        if event.timer != self._periodic:
            return self._on_timeout(event)
        # A snapshot that takes longer than the interval delays the next one. It is not aborted for it, or a slow store would
        # never complete any.
        if len(self.open) >= self.limit:
            return [self._next_period()]
        return [*self._name(), self._next_period()]

    def _name(self) -> list[Effect]:
        self.newest += 1
        self.open[self.newest] = Open(set(self.workers))
        self.phase = P.OPEN
        return [self._write("begun", self.newest)]

    def _begin(self, number: int) -> list[Effect]:
        opened = self.open[number]
        opened.step = SnapshotStep.COLLECTING
        # The time for answers begins with the request, so a slow write of the id does not use it up.
        timer = self._timer(TIMEOUT, self.settings.timeout_ms)
        opened.timeout = timer.timer
        return [*(self._send_control(process, BEGIN, number) for process in self.asked()), timer]

    def _next_period(self) -> SetTimer:
        timer = self._timer(PERIODIC, self.settings.interval_ms)
        self._periodic = timer.timer
        return timer

    def _timer(self, name: str, delay_ms: int) -> SetTimer:
        self._timers += 1
        number = TimerId(self._timers)
        return SetTimer(name, delay_ms, number, TimerElapsed(name, number, 0))

    # -- collecting ----------------------------------------------------------------------------------------------

    def _on_received(self, event: Received) -> list[Effect]:
        handler = self.MESSAGES.get(event.message.kind)
        if not isinstance(handler, str):
            raise self._invalid(event, "no process sends that to a coordinator")
        effects: list[Effect] = getattr(self, handler)(event.message)
        return effects

    def _on_ack(self, message: Envelope) -> list[Effect]:
        self.open[message.index].missing.discard(message.source)
        return self._decide_if_complete(message.index)

    def _on_refuse(self, message: Envelope) -> list[Effect]:
        # One refusal ends the snapshot at once: it can never be complete, and processes hold inputs until they hear of its end.
        return self._abort(message.index, f"{message.source}: {message.body}")

    def _decide_if_complete(self, number: int) -> list[Effect]:
        opened = self.open[number]
        if not self._complete(opened):
            return []
        # From here on only the answer about this record ends the snapshot (`_on_timeout`).
        opened.step = SnapshotStep.DECIDING
        return [self._write("commit", number)]

    # -- deciding ------------------------------------------------------------------------------------------------

    def _on_stored(self, event: Stored) -> list[Effect]:
        what, number = event.token.split()
        if not event.ok:
            # The record is not there (`Stored`), so this abort contradicts no decision, unlike one at a timeout.
            return self._abort(int(number), f"{what} could not be written")
        return self._begin(int(number)) if what == "begun" else self._commit(int(number))

    def _commit(self, number: int) -> list[Effect]:
        self.committed = number
        # A newer cut replaces every older one completely, also those that are still open.
        for older in [each for each in self.open if each <= number]:
            del self.open[older]
        self._update_phase()
        garbage = self._collect_garbage()
        return [Note("complete", str(number)), *self._send_control_to_all(COMMIT, number), *garbage]

    def _on_timeout(self, event: TimerElapsed) -> list[Effect]:
        number = next(each for each, opened in self.open.items() if opened.timeout == event.timer)
        # The decision may be durable already, so an abort could contradict it.
        if self.open[number].step is SnapshotStep.DECIDING:
            return []
        return self._abort(number, "no answer in time")

    def _abort(self, number: int, why: str) -> list[Effect]:
        # An id that is still being written was never sent, so no process holds an input for it.
        asked = self.open.pop(number).step is not SnapshotStep.NAMING
        self._update_phase()
        return [Note("aborted", f"{number}: {why}"), *(self._send_control_to_all(ABORT, number) if asked else [])]

    def _update_phase(self) -> None:
        self.phase = P.OPEN if self.open else P.IDLE

    def _send_control_to_all(self, kind: str, number: int) -> list[Effect]:
        return [self._send_control(process, kind, number) for process in self.workers]

    # -- records -------------------------------------------------------------------------------------------------

    def _write(self, what: str, number: int) -> StoreRecord:
        key = record_key(what, number)
        self.old_keys.append(key)
        # A recovery to before a decision undoes the decision. It never undoes the use of an id (G3): index 0 is below
        # every row.
        undone_with = number if what == "commit" else 0
        record: Record = {"incarnation": self.incarnation, "index": undone_with}
        return StoreRecord(key, record, f"{what} {number}")

    def _collect_garbage(self) -> list[Effect]:
        # Recovery uses the newest decision only. It also proves that its id was used, so its own `begun` goes as well.
        old = [key for key in self.old_keys if int(key[1]) < self.committed + (key[0] == "begun")]
        self.old_keys = [key for key in self.old_keys if key not in old]
        return [Erase(tuple(old))] if old else []
