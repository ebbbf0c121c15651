"""Coordinated checkpoints by message sequence numbers (P6d): all processes that a checkpoint depends on take one, or none does.

Seed 004, "Recording Message Sequence Numbers"; Koo and Toueg 1987. Erratum E15: the seed has neither the two phases nor
the rule that a participant sends nothing between them. Without either, the resulting checkpoints have orphans.

    initiate       tentative checkpoint; no more sends; REQUEST(last received) to every process received from since the
                   permanent one
    REQUEST(L)     nothing up to L was sent since the permanent one: yes.  In another instance: no.
                   Else do as the initiator does, and vote after all own requests are answered
    all yes        the initiator stores the decision and sends it to all; tentative becomes permanent, sends resume
    a no, timeout  the initiator aborts the instance; each process forwards the abort to those that it sent a request
    failure        restore the permanent one; a process that received an undone message restores its own too, and so on

Instances are named `initiator/incarnation/index`. Points that the seed leaves open:

- The decision is one record of the initiator (G2). It names all participants, which the votes collect. It stays until
  every participant has its checkpoint durable as permanent. Until then a tentative checkpoint of a decided instance
  counts as permanent in any recovery. A process that an instance left tentative asks the initiator: no record, no
  checkpoint.
- Control messages overtake each other. A vote that arrives after the abort of its instance is answered with the abort.
  A process never joins an instance twice, or an older one of an initiator than it knows. Otherwise two processes in a
  loop could become each other's parents, and wait for each other for ever.
- The two phases of a rollback are the host's: `plan` is the agreement, its durable row the decision.
- Messages in transit across the checkpoints are not in them: channels must be readable again.
- A sink shows the rows of its permanent checkpoint (G6).

Messages carry the number of the newest checkpoint, tentative or not, that was taken before the send. Restoring
checkpoint k undoes every message with number k or more.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import ClassVar

from checkpoint_protocols.graph import Graph, channel_between
from checkpoint_protocols.ids import ChannelId, Epoch, ProcessId, TimerId
from checkpoint_protocols.machine import Drop, Effect, rows
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.message_worker import PERIODIC, WORKER_EVENTS, WORKING, MessageWorker, erase_before
from checkpoint_protocols.record_fields import as_counts, counts, items, mapping, number
from checkpoint_protocols.recovery import (
    Birth,
    Failure,
    Key,
    Needs,
    Part,
    Protocol,
    Record,
    Records,
    RecoveryPlan,
    checkpoint_key,
    checkpoints,
)
from checkpoint_protocols.vocabulary import (
    OUT,
    AppSent,
    CaptureState,
    CheckpointKind,
    Commanded,
    Deliver,
    Erase,
    Hold,
    Json,
    Note,
    Received,
    Release,
    SetTimer,
    Stored,
    StoreRecord,
    TimerElapsed,
)

# -- An instance of coordinated checkpointing: its name, the share of one process, and the record that decides it.


TENTATIVE, PERMANENT = CheckpointKind.TENTATIVE.value, CheckpointKind.PERMANENT.value
"""Values of `kind` in a checkpoint record."""

Counts = dict[ChannelId, int]


@dataclass(slots=True)
class Tentative:
    """A checkpoint under way. `sent` and `received` are its counts; `parent` requested it, None at the initiator."""

    index: int
    instance: str
    parent: ProcessId | None
    cohort: tuple[ProcessId, ...]
    sent: Counts
    received: Counts
    pending: set[ProcessId] = field(default_factory=set)
    participants: set[str] = field(default_factory=set)
    stored: bool = False
    agreed: bool = True
    record: Record | None = None
    """The captured record. None in an incarnation that began tentative: the record is durable then, or the instance was
    never decided.
    """

    def as_record(self) -> dict[str, Json]:
        """Return the state for a next incarnation as JSON. Votes are not included, since they are void by then."""
        return {
            "index": self.index,
            "instance": self.instance,
            "parent": self.parent,
            "cohort": list(self.cohort),
            "sent": as_counts(self.sent),
            "received": as_counts(self.received),
        }

    @classmethod
    def of(cls, record: Mapping[str, Json]) -> Tentative:
        """Return the checkpoint that `as_record` wrote."""
        parent = record["parent"]
        return cls(
            number(record["index"]),
            str(record["instance"]),
            None if parent is None else ProcessId(str(parent)),
            tuple(ProcessId(str(name)) for name in items(record["cohort"])),
            counts(record["sent"]),
            counts(record["received"]),
        )


def instance_of(event: Received) -> str:
    """Return the instance that a protocol message belongs to."""
    return str(mapping(event.message.body)["instance"])


def initiator_of(instance: str) -> ProcessId:
    """Return the process that began the instance `initiator/incarnation/index`."""
    return ProcessId(instance.rpartition("/")[0].rpartition("/")[0])


def place_of(instance: str) -> tuple[int, int]:
    """Return the instance's incarnation and index. Among an initiator's instances, later is greater."""
    _, incarnation, index = instance.rsplit("/", 2)
    return int(incarnation), int(index)


def commit_key(instance: str) -> Key:
    """Return the key of the initiator's decision record for the instance."""
    return ("commit", instance)


def decisions(records: Records) -> dict[str, set[ProcessId]]:
    """Return the participants of every decided instance that is not finished."""
    return {
        key[1]: {ProcessId(str(name)) for name in items(record["participants"])}
        for key, record in records.items()
        if key[0] == "commit"
    }


# -- One process of coordinated checkpointing. See `coordinated` for the protocol, its seed and the corrections.


PATIENCE = "decision"
REQUEST, VOTE, DECIDE, DONE, ASK = "request", "vote", "decide", "done", "ask"


class CoordinatedPhase(Enum):
    """Progress of the instance that this process takes part in."""

    BORN = "the incarnation has not begun"
    FREE = "in none"
    ASKING = "tentative; its own record or votes of its cohort are missing"
    VOTED = "tentative; the decision is missing"
    DECIDING = "the initiator's decision is being stored"


P = CoordinatedPhase

_TENTATIVE = {Received: "_on_received", TimerElapsed: "_on_timer_while_tentative", Stored: "_on_stored"}


class CoordinatedWorker(MessageWorker[CoordinatedPhase]):
    """One process. `attempt` numbers its checkpoints; `permanent` is the newest that counts."""

    PHASES = CoordinatedPhase
    AT_REST = (P.FREE,)
    TABLE = rows(
        {
            P.BORN: {Commanded: "_on_start"},
            P.FREE: WORKING,
            P.ASKING: _TENTATIVE,
            P.VOTED: _TENTATIVE,
            P.DECIDING: _TENTATIVE,
        },
        WORKER_EVENTS,
    )
    MESSAGES: ClassVar[dict[str, dict[CoordinatedPhase, str]]] = {
        # kind      in no instance             asking                     voted                      deciding
        APP: {P.FREE: "_take", P.ASKING: "_take", P.VOTED: "_take", P.DECIDING: "_take"},
        REQUEST: {P.FREE: "_join", P.ASKING: "_join_another", P.VOTED: "_join_another", P.DECIDING: "_join_another"},
        VOTE: {P.FREE: "_undo_late", P.ASKING: "_count", P.VOTED: "_undo_late", P.DECIDING: "_undo_late"},
        DECIDE: {P.FREE: "_resolved", P.ASKING: "_hear", P.VOTED: "_hear", P.DECIDING: "_resolved"},
        DONE: {P.FREE: "_finish", P.ASKING: "_finish", P.VOTED: "_finish", P.DECIDING: "_finish"},
        ASK: {P.FREE: "_answer", P.ASKING: "_answer", P.VOTED: "_answer", P.DECIDING: "_answer"},
    }

    def __init__(self, birth: Birth) -> None:
        super().__init__(P.BORN, birth)
        self.initiates = self.me in _initiators(birth)
        self.attempt = self.permanent = 0
        self.received: Counts = {}
        self.sent_then: Counts = {}
        self.received_then: Counts = {}
        self.tentative: Tentative | None = None
        self.newest: dict[ProcessId, tuple[int, int]] = {}
        """Newest instance joined or known as aborted, per initiator. Only of this incarnation, since requests end with theirs.
        """
        if birth.checkpoint is not None:
            self._continue(birth.checkpoint)
        self.kept = {number(record["index"]) for record in checkpoints(birth.records).values()}
        self.decided = decisions(birth.records)
        self.marking: dict[int, Record] = {}
        self._unmarked: dict[int, Record] = {
            index: record for index, record in checkpoints(birth.records).items() if record["kind"] == TENTATIVE
        }

    def _continue(self, record: Record) -> None:
        self.attempt = number(record["index"])
        self.permanent = number(record["permanent"])
        self.sent, self.received = counts(record["sent"]), counts(record["received"])
        self.sent_then, self.received_then = counts(record["sent_then"]), counts(record["received_then"])
        under_way = record["tentative"]
        self.tentative = None if under_way is None else Tentative.of(mapping(under_way))

    def record(self) -> Record:
        """Return the current state as a record. A checkpoint's record has this checkpoint as the permanent one."""
        return {
            "incarnation": self.incarnation,
            "index": self.attempt,
            "permanent": self.permanent,
            "sent": as_counts(self.sent),
            "received": as_counts(self.received),
            "sent_then": as_counts(self.sent_then),
            "received_then": as_counts(self.received_then),
            "tentative": self.tentative.as_record() if self.tentative else None,
        }

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        self._ensure((self.phase is P.FREE) == (self.tentative is None), "tentative iff in an instance")
        self._ensure(self.permanent <= self.attempt, "permanent ones were taken")
        self._ensure(
            self.tentative is None or self.tentative.sent == self.sent,
            "nothing is sent between a tentative checkpoint and its decision",
        )

    # -- an incarnation begins -------------------------------------------------------------------------------------------

    def _on_start(self, event: Commanded) -> list[Effect]:
        self.phase = P.FREE if self.tentative is None else P.VOTED
        again: list[Effect] = [self._set_timer(), *self._mark_again(), *self._show(), *self._resume_tentative()]
        for instance in list(self.decided):
            again += [
                *self._announce(instance),
                *([] if self._is_marking(instance) else self._finished(instance, self.me)),
            ]
        return again

    def _mark_again(self) -> list[Effect]:
        # The decision is used already, by an earlier incarnation or by the recovery, and its record stays until this
        # mark is durable. With a durable mark, its writer may have failed before it erased the older ones.
        unmarked = self._unmarked.get(self.permanent)
        return [self._mark(self.permanent, unmarked)] if unmarked else self._erase_before(self.permanent)

    def _resume_tentative(self) -> list[Effect]:
        tentative = self.tentative
        if tentative is None:
            return []
        if tentative.parent is not None:
            initiator = initiator_of(tentative.instance)
            # E15 holds until the decision is known, and an incarnation begins with open gates. Only the initiator's
            # record counts now.
            return [Hold(OUT), self._send_control(initiator, ASK, self.attempt, {"instance": tentative.instance})]
        # Votes of the last incarnation are void, so an undecided instance of this initiator is aborted.
        return self._make(tentative) if tentative.instance in self.decided else self._undo(tentative)

    # -- messages of the application -----------------------------------------------------------------------------

    def _on_received(self, event: Received) -> list[Effect]:
        return self._call(self.MESSAGES.get(event.message.kind, {}).get(self.phase), event)

    def _take(self, event: Received) -> list[Effect]:
        before = self.received.get(event.channel, 0)
        if event.message.seq != before + 1:
            raise self._invalid(event, f"the channel is FIFO and reliable, and message {before} was the newest")
        self.received[event.channel] = event.message.seq
        return [Deliver(event)]

    def _on_sent(self, event: AppSent) -> list[Effect]:
        return [self._send_app(event.channel, event.body, self.attempt)]

    # -- phase one: tentative checkpoints ------------------------------------------------------------------------

    def _on_timer(self, event: TimerElapsed) -> list[Effect]:
        if event.name != PERIODIC:
            return [Drop(event, "that instance is over")]
        return [*(self._initiate() if self.initiates else []), self._set_timer()]

    def _initiate(self) -> list[Effect]:
        # A checkpoint of an unchanged state would only cost messages and writes.
        if (self.sent, self.received) == (self.sent_then, self.received_then):
            return []
        # The timer has the checkpoint's number, which `_on_timer_while_tentative` compares: it must not abort a later instance.
        number_of_it = TimerId(self.attempt + 1)
        elapsed = TimerElapsed(PATIENCE, number_of_it, 0)
        patience = SetTimer(PATIENCE, self.settings.timeout_ms, number_of_it, elapsed)
        return [*self._take_tentative(f"{self.me}/{self.incarnation}/{number_of_it}", None), patience]

    def _take_tentative(self, instance: str, parent: ProcessId | None) -> list[Effect]:
        """Capture first, then send a request to every process that sent messages since the permanent checkpoint."""
        self._learn(instance)
        # The number is used up, also by an instance that is aborted: messages that are sent later carry it (G3).
        self.attempt += 1
        cohort = self._cohort()
        self.tentative = Tentative(
            self.attempt, instance, parent, cohort, dict(self.sent), dict(self.received), set(cohort), {self.me}
        )
        self.phase = P.ASKING
        record = self.tentative.record = self._checkpoint_record(self.tentative)
        return [
            CaptureState(Epoch(self.attempt), CheckpointKind.TENTATIVE),
            *self._hold_sends(),
            StoreRecord(checkpoint_key(self.attempt), record, f"tentative {self.attempt}"),
            *(self._request(peer, instance) for peer in cohort),
        ]

    def _hold_sends(self) -> list[Effect]:
        # A message sent between the phases could become an orphan (erratum E15).
        return [Hold(OUT)]

    def _cohort(self) -> tuple[ProcessId, ...]:
        # Seed 004, "Recording Message Sequence Numbers": the checkpoint depends on those that sent since the last permanent one,
        # on no other.
        new = (c for c in self.graph.inputs[self.me] if self.received.get(c, 0) > self.received_then.get(c, 0))
        return tuple(self.graph.ends[channel][0] for channel in new)

    def _request(self, peer: ProcessId, instance: str) -> Effect:
        last = self.received[channel_between(peer, self.me)]
        return self._send_control(peer, REQUEST, self.attempt, {"instance": instance, "last": last})

    def _checkpoint_record(self, tentative: Tentative) -> Record:
        """Return the current record as it will be when this checkpoint is the permanent one."""
        return {
            **self.record(),
            "permanent": tentative.index,
            "sent_then": as_counts(tentative.sent),
            "received_then": as_counts(tentative.received),
            "tentative": None,
            "instance": tentative.instance,
            "kind": TENTATIVE,
        }

    def _join(self, event: Received) -> list[Effect]:
        instance = instance_of(event)
        needed = self._is_needed(event)
        # A request that arrives after the abort of its instance is refused. Two processes of a loop that join again
        # would become each other's parents, and wait for each other.
        if needed and self._is_new(instance):
            return self._take_tentative(instance, event.message.source)
        return [self._vote(event.message.source, instance, agreed=not needed)]

    def _is_new(self, instance: str) -> bool:
        # An initiator runs one instance at a time, so a later one proves that those before are over.
        return place_of(instance) > self.newest.get(initiator_of(instance), (0, 0))

    def _learn(self, instance: str) -> None:
        if self._is_new(instance):
            self.newest[initiator_of(instance)] = place_of(instance)

    def _join_another(self, event: Received) -> list[Effect]:
        # One tentative checkpoint cannot follow the decisions of two instances, so the second instance gets a no.
        agreed = self._mine(event) is not None or not self._is_needed(event)
        return [self._vote(event.message.source, instance_of(event), agreed)]

    def _is_needed(self, event: Received) -> bool:
        """Return True if the requester received a message that was sent since the permanent checkpoint."""
        channel = channel_between(self.me, event.message.source)
        # Everything that the requester received is in this process's permanent checkpoint otherwise, so no orphan can arise.
        return number(mapping(event.message.body)["last"]) > self.sent_then.get(channel, 0)

    def _vote(self, peer: ProcessId, instance: str, agreed: bool, participants: Collection[str] = ()) -> Effect:
        body: dict[str, Json] = {"instance": instance, "agreed": agreed, "participants": sorted(participants)}
        return self._send_control(peer, VOTE, self.attempt, body)

    def _count(self, event: Received) -> list[Effect]:
        tentative = self._mine(event)
        if tentative is None:
            return self._undo_late(event)
        body = mapping(event.message.body)
        tentative.pending.discard(event.message.source)
        tentative.agreed = tentative.agreed and body["agreed"] is True
        tentative.participants.update(str(name) for name in items(body["participants"]))
        return self._when_all_voted(tentative)

    def _undo_late(self, event: Received) -> list[Effect]:
        # The voter joined on a request whose instance is aborted here, and would hold its sends for ever.
        return [self._decision(event.message.source, instance_of(event), make=False)]

    def _when_all_voted(self, tentative: Tentative) -> list[Effect]:
        # A vote promises that this process's own checkpoint survives a crash.
        if tentative.pending or not tentative.stored:
            return []
        if tentative.parent is not None:
            self.phase = P.VOTED
            participants = tentative.participants
            return [self._vote(tentative.parent, tentative.instance, tentative.agreed, participants)]
        return self._decide(tentative) if tentative.agreed else self._undo(tentative)

    def _mine(self, event: Received) -> Tentative | None:
        """Return the checkpoint under way if the message belongs to it, else None."""
        tentative = self.tentative
        return tentative if tentative is not None and tentative.instance == instance_of(event) else None

    # -- phase two: the decision ---------------------------------------------------------------------------------

    def _decide(self, tentative: Tentative) -> list[Effect]:
        self.phase = P.DECIDING
        # The one record that decides (G2): a failure of this process aborts the instance before it is durable, and not
        # after.
        record: dict[str, Json] = {
            "incarnation": self.incarnation,
            "index": tentative.index,
            "participants": sorted(tentative.participants),
        }
        return [StoreRecord(commit_key(tentative.instance), record, f"decision {tentative.index}")]

    def _on_timer_while_tentative(self, event: TimerElapsed) -> list[Effect]:
        if event.name == PERIODIC:
            return [self._set_timer()]
        tentative = self.tentative
        # Only an initiator that still collects votes may abort; later the decision may be durable.
        if self.phase is P.ASKING and tentative and tentative.parent is None and tentative.index == event.timer:
            return self._undo(tentative)
        return [Drop(event, "that instance has all its votes, or is over")]

    def _announce(self, instance: str) -> list[Effect]:
        return [self._decision(peer, instance, make=True) for peer in sorted(self.decided[instance] - {self.me})]

    def _decision(self, peer: ProcessId, instance: str, make: bool) -> Effect:
        return self._send_control(peer, DECIDE, self.attempt, {"instance": instance, "make": make})

    def _hear(self, event: Received) -> list[Effect]:
        tentative = self._mine(event)
        if tentative is None:
            return self._resolved(event)
        if mapping(event.message.body)["make"] is not True:
            return self._undo(tentative)
        if self.phase is not P.VOTED:
            raise self._invalid(event, "this process has not voted")
        return self._make(tentative)

    def _resolved(self, event: Received) -> list[Effect]:
        if mapping(event.message.body)["make"] is not True:
            self._learn(instance_of(event))
            return [Drop(event, "not tentative in that instance")]
        if self._is_marking(instance_of(event)):
            return [Drop(event, "known; the mark is being stored")]
        # The mark is durable, and the confirmation was lost with an incarnation: the initiator keeps its record until
        # it has all.
        return [self._send_control(event.message.source, DONE, self.attempt, {"instance": instance_of(event)})]

    def _make(self, tentative: Tentative) -> list[Effect]:
        record = tentative.record or self._unmarked[tentative.index]
        self.permanent = tentative.index
        self.sent_then, self.received_then = tentative.sent, tentative.received
        self.tentative = None
        self.phase = P.FREE
        # Sends resume before the mark is durable. Until then the decision record makes the tentative checkpoint count as
        # permanent.
        return [self._mark(self.permanent, record), *self._show(), Release(OUT)]

    def _undo(self, tentative: Tentative) -> list[Effect]:
        self.tentative = None
        self.phase = P.FREE
        # Each process informs those that it asked: before all votes are in, no process knows all participants.
        told = [self._decision(peer, tentative.instance, make=False) for peer in tentative.cohort]
        # A record that is still being written is erased when its `Stored` comes (`_tentative_stored`).
        erased = Erase((checkpoint_key(tentative.index),))
        return [Note("aborted", tentative.instance), *told, erased, Release(OUT)]

    def _answer(self, event: Received) -> list[Effect]:
        # Votes of an earlier incarnation are void, so an instance without a record can no longer be decided.
        return [self._decision(event.message.source, instance_of(event), make=instance_of(event) in self.decided)]

    def _show(self) -> list[Effect]:
        """Publish all rows of the permanent checkpoint."""
        return self._publish(sum(self.received_then.values()), f"{self.me}/{self.permanent}")

    # -- durable records, and those that are erased ------------------------------------------------------------------

    def _mark(self, index: int, record: Record) -> Effect:
        self.marking[index] = {**record, "kind": PERMANENT}
        return StoreRecord(checkpoint_key(index), self.marking[index], f"permanent {index}")

    def _on_stored(self, event: Stored) -> list[Effect]:
        what, _, index = event.token.partition(" ")
        handlers = {TENTATIVE: self._tentative_stored, "decision": self._decision_stored, PERMANENT: self._marked}
        return handlers[what](int(index), event.ok)

    def _tentative_stored(self, index: int, ok: bool) -> list[Effect]:
        tentative = self.tentative
        # The instance was aborted during the write, so no recovery may find this record.
        if tentative is None or tentative.index != index:
            return [Erase((checkpoint_key(index),))]
        tentative.stored = True
        tentative.agreed = tentative.agreed and ok
        return self._when_all_voted(tentative)

    def _decision_stored(self, index: int, ok: bool) -> list[Effect]:
        tentative = self.tentative
        assert tentative is not None  # noqa: S101 - nothing but this answer ends DECIDING
        if not ok:
            return self._undo(tentative)
        self.decided[tentative.instance] = {ProcessId(name) for name in tentative.participants}
        return [Note("complete", tentative.instance), *self._announce(tentative.instance), *self._make(tentative)]

    def _marked(self, index: int, ok: bool) -> list[Effect]:
        record = self.marking.pop(index)
        if not ok:
            return [self._mark(index, record)]
        self.kept.add(index)
        # Marks become durable in any order. While the newest is being written, this one is the newest that a recovery
        # finds marked.
        newest = index if self.permanent in self.marking else self.permanent
        return [*self._erase_before(newest), *self._say_done(str(record["instance"]))]

    def _erase_before(self, newest: int) -> list[Effect]:
        return erase_before(self.kept, newest)

    def _is_marking(self, instance: str) -> bool:
        return any(record["instance"] == instance for record in self.marking.values())

    def _say_done(self, instance: str) -> list[Effect]:
        if initiator_of(instance) == self.me:
            return self._finished(instance, self.me)
        return [self._send_control(initiator_of(instance), DONE, self.attempt, {"instance": instance})]

    def _finish(self, event: Received) -> list[Effect]:
        return self._finished(instance_of(event), event.message.source)

    def _finished(self, instance: str, participant: ProcessId) -> list[Effect]:
        """Erase the decision when no checkpoint depends on it any more."""
        waiting = self.decided.get(instance, set())
        waiting.discard(participant)
        # While a participant's mark is missing, this record is all that makes its tentative checkpoint count.
        if waiting or self.decided.pop(instance, None) is None:
            return []
        return [Erase((commit_key(instance),))]


def _initiators(birth: Birth) -> Collection[ProcessId]:
    chosen = birth.settings.options.get("initiators")
    return initiators(birth.graph) if chosen is None else {ProcessId(str(name)) for name in items(chosen)}


def initiators(graph: Graph) -> frozenset[ProcessId]:
    """Return the default initiators: all sinks, and more processes until requests can reach every process.

    Requests travel upstream, so each process must be upstream of some initiator.
    """
    chosen = frozenset(graph.sinks)
    while missed := [process for process in graph.processes if process not in graph.upstream_of(chosen)]:
        chosen |= {missed[-1]}
    return chosen


def plan(failure: Failure) -> RecoveryPlan:
    """Return the plan: failed processes restore their permanent checkpoints, and so does each receiver of undone messages."""
    decided = {name for records in failure.records.values() for name in decisions(records)}
    permanent = {process: _permanent(failure.records[process], decided) for process in failure.graph.processes}
    back = _all_who_go_back(failure, permanent)
    parts = {process: _part(process, permanent[process], back) for process in failure.graph.processes}
    row = {process: Epoch(_index(permanent[process])) for process in back}
    return RecoveryPlan(failure.incarnation, row, parts)


def _permanent(records: Records, decided: Collection[str]) -> Record | None:
    """Return the newest checkpoint that counts, or None."""
    # A tentative checkpoint of a decided instance counts: its process may have failed between the decision and its
    # mark.
    standing = [
        each for each in checkpoints(records).values() if each["kind"] == PERMANENT or each["instance"] in decided
    ]
    return standing[-1] if standing else None


def _index(permanent: Record | None) -> int:
    return 0 if permanent is None else number(permanent["index"])


def _all_who_go_back(failure: Failure, permanent: Mapping[ProcessId, Record | None]) -> dict[ProcessId, str]:
    """Return all processes that go back, each with the reason.

    A process goes back iff it received a message that a process that goes back has not sent at its checkpoint.
    """
    back = {process: "it failed" for process in failure.graph.processes if process in failure.failed}
    # The loop also visits the receivers that it appends: going back spreads along the channels.
    for process in (queue := list(back)):
        for channel in failure.graph.outputs[process]:
            receiver = failure.graph.ends[channel][1]
            if receiver not in back and _has_orphans(channel, permanent[process], failure.survivors[receiver]):
                back[receiver] = f"it received from {process} what that has not sent any more"
                queue.append(receiver)
    return back


def _has_orphans(channel: ChannelId, sender: Record | None, receiver: Record) -> bool:
    sent = counts(sender["sent"]).get(channel, 0) if sender else 0
    return counts(receiver["received"]).get(channel, 0) > sent


def _part(process: ProcessId, permanent: Record | None, back: Mapping[ProcessId, str]) -> Part:
    if process not in back:
        return Part(None, because="nothing it received is undone")
    key = checkpoint_key(_index(permanent)) if permanent else None
    return Part(key, initial=key is None, because=back[process])


PROTOCOL = Protocol(
    name="coordinated",
    title="All processes that a checkpoint depends on take one with it, in two phases",
    source="seed 004, Recording Message Sequence Numbers (Koo and Toueg 1987), with the phases the seed omits",
    needs=Needs(replayable=True),
    worker=CoordinatedWorker,
    plan=plan,
)
