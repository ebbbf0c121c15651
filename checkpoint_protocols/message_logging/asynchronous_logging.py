"""Asynchronous logging: deliver at once, log in batches, compute from dependency vectors the recoverable state (P6g).

Seed 004, "Asynchronous Logging" and "One Approach to Recovery Using Asynchronous Logging"; Johnson and Zwaenepoel 1990,
optimistic logging. An interval is the work of a process between two receipts; it depends only on the process's state.

    receive m      received before: drop.  k += 1; ddv[sender] = max(ddv[sender], m.index); log (m, k, ddv) in memory;
                   deliver
    send m         m.index = k; m.seq counts on, from a new beginning in every incarnation that received something new
    timer          store the receipts in memory as one batch; every few times a checkpoint instead
    stored         report the intervals that are stable now, with their vectors, to the coordinator
    coordinator    RV: the greatest recoverable state (see `RecoveryVector`); send every process its part of it
    RV[me]         a sink shows its rows up to there; erase records older than the checkpoint below it
    failure        the failed lose intervals that are not stable, survivors keep their memory; all go to the greatest
                   line; rebuild from checkpoint and receipts, then continue from the channels

Corrections and additions:

- E9: see `RecoveryVector`.
- The seed does not cover messages that a replay sends again. They have their old numbers, and receivers drop them. New
  work after the replay has numbers of its own, so it is never mistaken for undone work.
- A host may take several messages in one batch and request its sends at the end. So receipts log the ends of batches;
  a replay ends its batches there again, and no process goes back to the middle of one (`volatile_log`). Without this a replay
  that batched otherwise gave the same record another number, and its receiver took it in twice.
- Sources receive nothing: their interval is always 0 and never undone; they read their input again.
- A process that is in its replay at the next recovery goes back to its durable state. A part of its replay may have
  existed only in the memory that it left.
- RV is not stored. It follows from the stable intervals, which workers report again at the begin of every incarnation.

Option `checkpoint_every`: batches from one checkpoint to the next (4).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum

from checkpoint_protocols.checkpoints.recovery_line import Candidate, recovery_line
from checkpoint_protocols.graph import COORDINATOR, Graph
from checkpoint_protocols.ids import Epoch, Incarnation, ProcessId
from checkpoint_protocols.machine import Drop, Effect, ProtocolViolation, rows
from checkpoint_protocols.message_logging.volatile_log import (
    RECEIVED_IN,
    Ddv,
    Rebuildable,
    Receipt,
    RecoveryVector,
    batch_key,
    batches_in,
    key_of,
    rebuildable,
    receipts_in,
)
from checkpoint_protocols.message_worker import PERIODIC, WORKER_EVENTS, WORKING, MessageWorker, ReportedCoordinator
from checkpoint_protocols.record_fields import as_counts, by_process, counts, items, number
from checkpoint_protocols.recovery import (
    Birth,
    Failure,
    Key,
    Needs,
    Option,
    Part,
    Protocol,
    Record,
    Records,
    RecoveryPlan,
    checkpoint_key,
)
from checkpoint_protocols.vocabulary import (
    AppSent,
    CaptureState,
    CheckpointKind,
    Commanded,
    Deliver,
    Erase,
    Json,
    Note,
    Received,
    Send,
    Stored,
    StoreRecord,
    TimerElapsed,
)

STABLE = "stable"
"""Worker to coordinator: [[interval, ddv], ...]."""
RECOVERABLE = "recoverable"
"""Coordinator to worker: index is RV of the worker."""
NUMBERS_PER_INCARNATION = 2**32
"""Messages that a channel can carry in one incarnation."""


class FlushPhase(Enum):
    """Background writes of a worker."""

    IDLE = "nothing"
    FLUSHING = "a batch or a checkpoint is being stored"


P = FlushPhase


class AsynchronousWorker(MessageWorker[FlushPhase]):
    """One process. `interval` counts receipts; `memory` holds those that are not on disk."""

    PHASES = FlushPhase
    AT_REST = (P.IDLE,)
    TABLE = rows(
        {
            P.IDLE: {
                Commanded: "_on_start",
                Received: "_on_received",
                AppSent: "_on_sent",
                TimerElapsed: "_on_timer",
            },
            P.FLUSHING: {**WORKING, TimerElapsed: "_on_timer_while_flushing"},
        },
        WORKER_EVENTS,
    )

    def __init__(self, birth: Birth) -> None:
        super().__init__(P.IDLE, birth)
        now: Mapping[str, Json] = birth.checkpoint or {}
        self.interval = number(now.get("index", 0))
        self.received_in = number(now.get("received_in", 1))
        self.sent = counts(now.get("sent", {}))
        self.received = counts(now.get("received", {}))
        self.ddv: Ddv = by_process(now.get("ddv", {}))
        self.recoverable = number(now.get("recoverable", 0))
        self.target = _target(birth, self.interval)
        self.memory = {receipt.interval: receipt for receipt in receipts_in(now or {"log": []})}
        self._durable = rebuildable(self.me, birth.records, birth.incarnation, birth.table)
        self._batches = batches_in(birth.records)
        self._needless = _older(birth.records) if self.is_source else _undone(birth.records, self._durable)
        self._flushes = 0
        self._flushing: list[Receipt] = []
        self._saving: Record | None = None
        self._saved_work = self._stored_position()

    def record(self) -> Record:
        """Return a checkpoint or the current state as a record.

        `target`: end of the replay; `position` names the checkpoint; `received_in`: the newest receipt's incarnation;
        `log`: the receipts in memory.
        """
        return {
            "incarnation": self.incarnation,
            "index": self.interval,
            "target": self.target,
            "position": self._position(),
            "received_in": self.received_in,
            "sent": as_counts(self.sent),
            "received": as_counts(self.received),
            "ddv": as_counts(self.ddv),
            "recoverable": self.recoverable,
            "log": [self._between_batches(receipt).as_record() for receipt in self.memory.values()],
        }

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        flushing = bool(self._flushing) or self._saving is not None
        self._ensure(flushing == (self.phase is P.FLUSHING), "something is being stored iff flushing")
        self._ensure(self.shown <= max(self.interval, self.target), "only delivered rows are shown")
        self._ensure(list(self.memory) == sorted(self.memory), "receipts are kept in order")

    def _position(self) -> int:
        """Count the inputs that the state depends on: receipts; at a source, the messages it sent."""
        return sum(self.sent.values()) if self.is_source else self.interval

    def _stored_position(self) -> int:
        """Return the position on disk. A record that was being stored at the end of the last incarnation may be lost."""
        if not self.is_source:
            return max(self._durable.intervals)
        return max((number(record["position"]) for record in self._durable.checkpoints.values()), default=0)

    # -- begin, send, receive ----------------------------------------------------------------------------------------

    def _on_start(self, event: Commanded) -> list[Effect]:
        known = {k: ddv for k, ddv in self._durable.intervals.items() if k}
        erased: list[Effect] = [Erase(self._needless)] if self._needless else []
        return [self._set_timer(), *([self._report(known)] if known else ()), *erased]

    def _on_sent(self, event: AppSent) -> list[Effect]:
        self._end_batch()
        # Numbers depend on the newest receipt's incarnation, so that a replay repeats them and new work never does.
        begin = (self.received_in - 1) * NUMBERS_PER_INCARNATION
        self.sent[event.channel] = max(self.sent.get(event.channel, 0), begin)
        return [self._send_app(event.channel, event.body, self.interval)]

    def _on_received(self, event: Received) -> list[Effect]:
        message = event.message
        if message.kind == RECOVERABLE:
            return self._learn(message.index)
        # A sender's replay repeats its sends with their old numbers; the seed does not say how a receiver tells them from new
        # ones.
        if message.seq <= self.received.get(event.channel, 0):
            return [Drop(event, "it was received before: a replay sent it again")]
        self.received[event.channel] = message.seq
        self.interval += 1
        # A replayed receipt keeps its first incarnation: the sends that follow it must get the numbers of then.
        self.received_in = number(message.header.get(RECEIVED_IN, 0)) if event.replayed else self.incarnation
        # A new mapping, since receipts in memory keep the older ones.
        self.ddv = {**self.ddv, message.source: max(self.ddv.get(message.source, 0), message.index)}
        # A replayed receipt that is already on disk needs no second copy.
        if self.interval not in self._durable.receipts:
            self.memory[self.interval] = Receipt(self.interval, self.received_in, self.ddv, message, event.more)
        return [Deliver(event), *self._show()]

    def _end_batch(self) -> None:
        """Note that the batch ended with the newest receipt: messages after it may have been dropped."""
        newest = self.memory.get(self.interval)
        if newest is not None:
            self.memory[self.interval] = self._between_batches(newest)

    def _between_batches(self, receipt: Receipt) -> Receipt:
        """Return the receipt as it is known when no batch is under way."""
        return replace(receipt, more=receipt.more and receipt.interval < self.interval)

    # -- flush -------------------------------------------------------------------------------------------------------

    def _on_timer(self, event: TimerElapsed) -> list[Effect]:
        timer = self._set_timer()
        self._end_batch()
        if self._position() <= self._saved_work:
            return [timer]
        self._saved_work = self._position()
        self._flushes += 1
        self.phase = P.FLUSHING
        every = number(self.settings.options.get("checkpoint_every", 4))
        # A source has no receipts to log, so its checkpoint stores its position.
        if not self.memory or self._flushes % every == 0:
            self._saving = {**self.record(), "log": []}
            return [timer, CaptureState(Epoch(self._position()), CheckpointKind.BASIC), self._store()]
        self._flushing = list(self.memory.values())
        return [timer, self._store()]

    def _on_timer_while_flushing(self, event: TimerElapsed) -> list[Effect]:
        return [self._set_timer()]

    def _store(self) -> StoreRecord:
        if self._saving is not None:
            return StoreRecord(checkpoint_key(number(self._saving["position"])), self._saving, PERIODIC)
        first = self._flushing[0].interval
        record: Record = {
            "incarnation": self.incarnation,
            "index": first,
            "log": [receipt.as_record() for receipt in self._flushing],
        }
        return StoreRecord(batch_key(first), record, PERIODIC)

    def _on_stored(self, event: Stored) -> list[Effect]:
        if not event.ok:
            return [self._store()]
        self.phase = P.IDLE
        if self._saving is not None:
            return self._checkpoint_stored(self._saving)
        stable, self._flushing = self._flushing, []
        self._durable.add(stable)
        self._batches[stable[0].interval] = stable[-1].interval
        self._forget_up_to(stable[-1].interval)
        # The end of a batch is stable, an interval inside it is not: no recovery may stop there.
        return [Note("logged", str(len(stable))), self._report(_ends(stable))]

    def _checkpoint_stored(self, saved: Record) -> list[Effect]:
        self._saving = None
        interval = number(saved["index"])
        before = self._durable.checkpoints.get(interval)
        self._durable.checkpoints[interval] = saved
        self._forget_up_to(interval)
        if self.is_source:
            # A source's interval is always 0 and no line is below it, so its newer checkpoint replaces the older at
            # once.
            return [Erase((key_of(before),))] if before else []
        return [self._report({interval: by_process(saved["ddv"])}), *self._erase()]

    def _forget_up_to(self, interval: int) -> None:
        self.memory = {k: receipt for k, receipt in self.memory.items() if k > interval}

    # -- the recoverable state ---------------------------------------------------------------------------------------

    def _report(self, stable: Mapping[int, Ddv]) -> Send:
        body: Json = [[k, as_counts(ddv)] for k, ddv in stable.items()]
        return self._send_control(COORDINATOR, STABLE, self.interval, body)

    def _learn(self, recoverable: int) -> list[Effect]:
        # Control messages overtake each other, so an older RV may come later.
        self.recoverable = max(self.recoverable, recoverable)
        return [*self._show(), *self._erase()]

    def _show(self) -> list[Effect]:
        # G6: intervals up to RV are never undone. A replay may not have reached RV yet.
        last = min(self.recoverable, self.interval)
        return self._publish(last, f"{self.me}@{last}")

    def _erase(self) -> list[Effect]:
        # No recovery goes below RV, so nothing is rebuilt from an older checkpoint (O12).
        base = self._durable.base_of(self.recoverable)
        old = [k for k in self._durable.checkpoints if k < base]
        batches = [first for first, last in self._batches.items() if last <= base]
        keys = (*(key_of(self._durable.checkpoints.pop(k)) for k in old), *map(batch_key, batches))
        for first in batches:
            del self._batches[first]
        return [Erase(keys)] if keys else []


class StablePhase(Enum):
    """The coordinator is always ready: an interval that it does not know yet is not in RV."""

    READY = "counts"


class RecoveryCoordinator(ReportedCoordinator[StablePhase]):
    """Coordinator that keeps RV. It begins with 0 in every incarnation; workers report the stable intervals."""

    PHASES = StablePhase
    AT_REST = (StablePhase.READY,)
    TABLE = rows({StablePhase.READY: {Commanded: "_on_start", Received: "_on_stable"}}, ReportedCoordinator.EVENTS)

    def __init__(self, birth: Birth) -> None:
        super().__init__(StablePhase.READY, birth)
        self.vector = RecoveryVector()
        self._told: dict[ProcessId, int] = {}

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        self._ensure(self.vector.consistent, "the recovery vector has no orphan message")
        back = [process for process, interval in self._told.items() if self.vector.of(process) < interval]
        self._ensure(not back, "RV never moves back")

    def _on_stable(self, event: Received) -> list[Effect]:
        for interval, ddv in map(items, items(event.message.body)):
            self.vector.add(event.message.source, number(interval), by_process(ddv))
        moved = {p: k for p, k in self.vector.rv.items() if k > self._told.get(p, 0)}
        if not moved:
            return []
        self._told.update(moved)
        rv = " ".join(f"{process}:{interval}" for process, interval in sorted(self.vector.rv.items()))
        return [Note("complete", rv), *(self._send_control(process, RECOVERABLE, k) for process, k in moved.items())]


def _ends(receipts: Iterable[Receipt]) -> Mapping[int, Ddv]:
    """Return the vectors of the intervals that end a batch."""
    return {each.interval: each.ddv for each in receipts if not each.more}


# -- recovery ------------------------------------------------------------------------------------------------------------


def plan(failure: Failure) -> RecoveryPlan:
    """Return the plan: all processes go to the greatest line over stable intervals and survivors' memory."""
    known = {process: _known(failure, process) for process in failure.graph.processes}
    candidates = {process: _candidates(failure.graph, process, known[process].intervals) for process in known}
    # Channels can be read again, so no message is lost and only orphans count.
    line = recovery_line(candidates, failure.graph.ends, failure.failed).chosen
    reached = {process: candidate.index or 0 for process, candidate in line.items()}
    leaving = [p for p in known if p in failure.failed or _must_leave(failure.survivors[p], reached[p])]
    # Sources have interval 0 only, which is never undone, so they have no row.
    row = {p: Epoch(reached[p] + 1) for p in leaving if failure.graph.inputs[p]}
    parts = {p: _part(failure, p, known[p], reached[p]) for p in leaving}
    return RecoveryPlan(failure.incarnation, row, parts)


def _known(failure: Failure, process: ProcessId) -> Rebuildable:
    # The row of the new incarnation does not exist yet: this plan makes it.
    before = Incarnation(failure.incarnation - 1)
    found = rebuildable(process, failure.records[process], before, failure.table)
    if process in failure.survivors:
        found.add(receipts_in(failure.survivors[process]))
    return found


def _candidates(graph: Graph, process: ProcessId, intervals: Mapping[int, Ddv]) -> list[Candidate]:
    """Return the intervals in the solver's terms: sent up to the interval, received up to its vector."""
    outputs, inputs = graph.outputs[process], graph.inputs[process]
    return [
        Candidate(k, dict.fromkeys(outputs, k), {c: ddv.get(graph.ends[c][0], 0) for c in inputs})
        for k, ddv in intervals.items()
    ]


def _must_leave(now: Record, reached: int) -> bool:
    # A survivor in its replay goes back as well: the rest of the replay may hold receipts that exist nowhere else.
    return not reached == number(now["index"]) >= number(now["target"])


def _older(records: Records) -> tuple[Key, ...]:
    # More than one is left if the newest became durable after its writer failed, which erased nothing then.
    return tuple(sorted(key for key in records if key[0] == "checkpoint")[:-1])


def _undone(records: Records, durable: Rebuildable) -> tuple[Key, ...]:
    # An undone interval's number is used again, and its checkpoint must not count as the newer one.
    kept = {key_of(record) for record in durable.checkpoints.values()}
    return tuple(sorted(key for key in records if key[0] == "checkpoint" and key not in kept))


def _target(birth: Birth, interval: int) -> int:
    row = birth.table.get(birth.incarnation, {})
    if not isinstance(row, Mapping):
        raise ProtocolViolation("intervals of different processes are not comparable: a row has one per process")
    # The row names the first undone interval. A process without a row replays nothing.
    return row.get(birth.me, interval + 1) - 1


def _part(failure: Failure, process: ProcessId, known: Rebuildable, interval: int) -> Part:
    base = known.checkpoints.get(known.base_of(interval))
    why = "it failed" if process in failure.failed else "its newest intervals follow from undone ones"
    because = f"{why}; {interval} is the newest that can be recovered"
    key = key_of(base) if base is not None else None
    return Part(key, known.replay_to(interval), initial=key is None, because=because)


PROTOCOL = Protocol(
    name="asynchronous-logging",
    title="Asynchronous logging with dependency vectors",
    source="seed 004, One Approach to Recovery Using Asynchronous Logging; Johnson and Zwaenepoel 1990",
    needs=Needs(replayable=True, deterministic=True),
    worker=AsynchronousWorker,
    plan=plan,
    coordinator=RecoveryCoordinator,
    options={"checkpoint_every": Option()},
)
