"""Uncoordinated checkpointing: processes save independently, and a dependency graph finds the line (P6c).

Seed 004, "Uncoordinated Checkpointing" and "How Do We Find The Recovery Line?"; Wang and Fuchs 1993. Channels can be
read again from a checkpoint's position (Kafka). So no message in transit is lost, and only orphans count.

    send m         m.index = interval
    receive m      seen[sender] = max(seen[sender], m.index); deliver
    timer          checkpoint interval + 1: state, counters, seen; interval += 1
    stored         report to the coordinator
    coordinator    line = the state that would remain if all failed now: sinks show the rows before it; every process
                   erases checkpoints that no single failure can need
    failure        the intervals that the failed had not saved are lost, with everything that follows from them in
                   the graph; every process goes to the begin of its earliest undone interval, or stays

Corrections and additions:

- E7: the seed's edges point from receiver to sender, and the two directions do not compose. Here they point from sender
  to receiver. The seed's cascade of broadcasts has no rule for its end; here one place makes the plan.
- E14, G4: the table of all recoveries drops messages whose send was undone.
- Dependencies are counted from the beginning, so a checkpoint that a crash kept from being stored leaves no gap.
- Checkpoint 0, the initial state, is never erased: the domino effect may end only there.

Option `forcing`: `"none"`, or `"hmnr"`. With `"hmnr"` a checkpoint precedes some deliveries, so that no checkpoint is
useless (see `Forcing`). Then there is no domino effect. Recovery is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise

from checkpoint_protocols.graph import COORDINATOR
from checkpoint_protocols.ids import Epoch, ProcessId
from checkpoint_protocols.machine import Effect, rows
from checkpoint_protocols.message_worker import WORKER_EVENTS, WORKING, MessageWorker, ReportedCoordinator
from checkpoint_protocols.record_fields import as_counts, by_process, counts, items, mapping, number, receipts
from checkpoint_protocols.recovery import (
    Birth,
    Failure,
    Needs,
    Option,
    Part,
    Protocol,
    Record,
    RecoveryPlan,
    checkpoint_key,
    checkpoints,
)
from checkpoint_protocols.vocabulary import (
    AppSent,
    CaptureState,
    CheckpointKind,
    Commanded,
    Deliver,
    Envelope,
    Erase,
    Json,
    Note,
    Received,
    Send,
    Stored,
    StoreRecord,
    TimerElapsed,
)

# -- Checkpoints forced by messages so that none is useless: the rule of Helary, Mostefaoui, Netzer and Raynal (HMNR).
#
# A checkpoint is useless if a zigzag of messages leads from it back to before it: no line can contain it. One more
# checkpoint before certain deliveries breaks every such cycle. Index-based checkpointing forces at every higher index of
# a sender. This rule forces less and pays with O(N) numbers per message. A forced checkpoint precedes the delivery if one
# of these holds:
#
# - The sender's clock is larger than mine. In addition, as far as the sender knows, a process I sent to since my
#   checkpoint has a smaller clock than the sender.
# - The sender's past contains my newest checkpoint and a later checkpoint of another process: a cycle through me.


Flags = dict[ProcessId, bool]


class Forcing:
    """Knowledge of one process. All fields are per process of the graph; `clock` grows with checkpoints and receipts.

    `sent_to`: since my checkpoint. `greater`: my clock is larger than theirs, as far as I know. `saved`: their newest
    checkpoint in my past. `taken`: a checkpoint lies on a path from that one to me.
    """

    def __init__(self, me: ProcessId, processes: Iterable[ProcessId], record: Json = None) -> None:
        self.me = me
        self._everybody = tuple(processes)
        self._others = tuple(process for process in self._everybody if process != me)
        self.clock = 0
        self.saved = dict.fromkeys(self._everybody, 0)
        self.sent_to: Flags = {}
        self.greater: Flags = {}
        self.taken: Flags = {}
        if record is None:
            self.checkpoint(0)
        else:
            self._read(mapping(record))

    def checkpoint(self, index: int) -> None:
        """Record my checkpoint `index`."""
        self.sent_to = dict.fromkeys(self._everybody, False)
        self.greater = {process: process != self.me for process in self._everybody}
        self.taken = {process: process != self.me for process in self._everybody}
        self.clock += 1
        self.saved[self.me] = index

    def send(self, target: ProcessId) -> Mapping[str, Json]:
        """Return the header of a message to `target`, and record the send."""
        self.sent_to[target] = True
        # Receivers do not use `sent_to`, so it stays local.
        return {field: value for field, value in self.as_record().items() if field != "sent_to"}

    def must_come_first(self, header: Mapping[str, Json]) -> bool:
        """Return True if a checkpoint has to precede the delivery of the message with this header."""
        greater, taken, saved = mapping(header["greater"]), mapping(header["taken"]), mapping(header["saved"])
        ahead = number(header["clock"]) > self.clock
        zigzag = ahead and any(self.sent_to[process] and greater[process] for process in self._everybody)
        cycle = saved[self.me] == self.saved[self.me] and bool(taken[self.me])
        return zigzag or cycle

    def learn(self, header: Mapping[str, Json]) -> None:
        """Merge the header of a message that is being delivered."""
        self._learn_clock(number(header["clock"]), mapping(header["greater"]))
        saved, taken = mapping(header["saved"]), mapping(header["taken"])
        for process in self._others:
            theirs = number(saved[process])
            if theirs > self.saved[process]:
                self.saved[process], self.taken[process] = theirs, bool(taken[process])
            elif theirs == self.saved[process]:
                # Two paths from the same checkpoint: a checkpoint on one of them is enough.
                self.taken[process] = self.taken[process] or bool(taken[process])

    def _learn_clock(self, clock: int, greater: Mapping[str, Json]) -> None:
        if clock > self.clock:
            self.clock = clock
            self.greater = {process: process != self.me and bool(greater[process]) for process in self._everybody}
        elif clock == self.clock:
            # At equal clocks the sender may know of a process that has caught up with this one.
            self.greater = {process: mine and bool(greater[process]) for process, mine in self.greater.items()}

    def as_record(self) -> dict[str, Json]:
        """Return the knowledge as JSON, for a checkpoint."""
        flags = {"sent_to": self.sent_to, "greater": self.greater, "taken": self.taken}
        found: dict[str, Json] = {name: {str(p): flag for p, flag in each.items()} for name, each in flags.items()}
        return {**found, "clock": self.clock, "saved": as_counts(self.saved)}

    def _read(self, record: Mapping[str, Json]) -> None:
        self.clock = number(record["clock"])
        self.saved = by_process(record["saved"])
        self.sent_to, self.greater, self.taken = (
            {ProcessId(p): bool(flag) for p, flag in mapping(record[name]).items()}
            for name in ("sent_to", "greater", "taken")
        )


# -- The interval dependency graph of uncoordinated checkpoints (seed 004, "Uncoordinated Checkpointing").
#
# A node is the work of a process between two checkpoints. An edge says "if that is undone, so is this". Edges lead from
# an interval to the next of its process. They also lead from the interval that *sent* a message to the one that received
# it. The seed draws the second kind from receiver to sender. That is the edge for lost messages that cannot be sent
# again; over channels that can be read again it does not exist (erratum E7).
#
# Checkpoint k begins interval k; 0 is the initial state. Each process stores its own edges with every checkpoint: per
# sender, the newest interval it has received from so far. Later intervals are undone with earlier ones, so the newest is
# enough. It is counted from the beginning, so a checkpoint in between may be erased.


Node = tuple[ProcessId, int]
"""A process, and the checkpoint that begins the interval."""

Seen = Mapping[ProcessId, int]
"""Newest interval of each sender that the process received from."""

NOTHING_SEEN: Seen = {}


@dataclass(frozen=True, slots=True)
class Marks:
    """Known state of one process: `seen` at each of its checkpoints, oldest first, and the current one if known."""

    checkpoints: Mapping[int, Seen] = field(default_factory=lambda: {0: NOTHING_SEEN})
    now: Seen | None = None

    def begin_of(self, interval: int) -> int:
        """Return the newest kept checkpoint at or before `interval`; some in between may be erased."""
        return max(index for index in self.checkpoints if index <= interval)

    def intervals(self) -> Iterator[tuple[int, Seen, Seen]]:
        """Yield each interval with `seen` at its begin and its end. The last interval needs a known `now`."""
        states: Sequence[tuple[int, Seen]] = sorted(self.checkpoints.items())
        ends = [*(seen for _, seen in states[1:]), *(() if self.now is None else (self.now,))]
        for (index, before), after in zip(states, ends, strict=False):
            yield index, before, after


class IntervalGraph:
    """Dependencies between intervals. `edges` lead from a node to the nodes that are undone with it."""

    def __init__(self, marks: Mapping[ProcessId, Marks]) -> None:
        self.marks = marks
        self.edges: dict[Node, set[Node]] = {}
        for process, own in marks.items():
            self._connect(process, own)

    def undone(self, lost: Sequence[Node]) -> dict[ProcessId, int]:
        """Return the earliest interval per process that is reachable from the lost ones. A process not named keeps all."""
        reached, new = set(lost), list(lost)
        while new:
            for node in self.edges.get(new.pop(), ()):
                if node not in reached:
                    reached.add(node)
                    new.append(node)
        earliest: dict[ProcessId, int] = {}
        # In falling order, the last entry per process is its earliest interval.
        for process, index in sorted(reached, reverse=True):
            earliest[process] = index
        return earliest

    def needed(self) -> dict[ProcessId, set[int]]:
        """Return the checkpoints that some recovery can still need (Wang and Fuchs, theorem 3): the lines of all single
        failures.

        A failure loses the work of a process since its newest known checkpoint. An interval that other processes
        already received from, and whose end is not known here, is a loss of its own.
        """
        # The initial state is the one line that always exists (seed 004), and the domino effect may end only there.
        kept = {process: {0, max(own.checkpoints)} for process, own in self.marks.items()}
        for node in self._open():
            for process, index in self.undone([node]).items():
                if index in self.marks[process].checkpoints:
                    kept[process].add(index)
        return kept

    def _open(self) -> list[Node]:
        newest = {process: max(own.checkpoints) for process, own in self.marks.items()}
        # Other processes may depend on work whose checkpoint is not reported yet. It is lost with its process like the rest.
        known = {*newest.items(), *self.edges}
        return [(process, index) for process, index in known if index >= newest[process]]

    def _connect(self, process: ProcessId, own: Marks) -> None:
        for index, before, after in own.intervals():
            for sender, interval in after.items():
                if interval > before.get(sender, -1):
                    # E7: from the sender's interval to the receiver's, against the seed's text. Its direction finds lost
                    # messages, not orphans.
                    self._edge(self._node(sender, interval), (process, index))
        indices = sorted(own.checkpoints)
        for index, following in pairwise(indices):
            self._edge((process, index), (process, following))

    def _node(self, sender: ProcessId, interval: int) -> Node:
        """Return the node of an interval. Intervals after the newest known checkpoint stay distinct: later checkpoints
        may separate them.
        """
        own = self.marks[sender]
        return (sender, interval if interval > max(own.checkpoints) else own.begin_of(interval))

    def _edge(self, source: Node, target: Node) -> None:
        self.edges.setdefault(source, set()).add(target)
        process, index = source
        newest = max(self.marks[process].checkpoints)
        # Losing the work since the newest checkpoint loses each later interval, too.
        if index > newest:
            self.edges.setdefault((process, newest), set()).add(source)


REPORT = "report"
"""Worker to coordinator: [[index, seen], ...] of durable checkpoints; its index is the newest reported before."""
LINE = "line"
"""Coordinator to worker. Index: the line's checkpoint there; body: checkpoints to erase."""


class SavingPhase(Enum):
    """Background writes of a worker."""

    WORKING = "nothing"
    SAVING = "checkpoints are being stored"


P = SavingPhase


class UncoordinatedWorker(MessageWorker[SavingPhase]):
    """One process. `interval` is the newest checkpoint, durable or not, and the work since."""

    PHASES = SavingPhase
    AT_REST = (P.WORKING,)
    TABLE = rows(
        {
            P.WORKING: {
                Commanded: "_on_start",
                Received: "_on_received",
                AppSent: "_on_sent",
                TimerElapsed: "_on_timer",
            },
            P.SAVING: {**WORKING, TimerElapsed: "_on_timer_while_saving"},
        },
        WORKER_EVENTS,
    )

    def __init__(self, birth: Birth) -> None:
        super().__init__(P.WORKING, birth)
        now: Mapping[str, Json] = birth.checkpoint or {}
        self.interval = number(now.get("index", 0))
        self.sent = counts(now.get("sent", {}))
        self.received = counts(now.get("received", {}))
        self.seen = _seen_in(now)
        self.delivered = number(now.get("delivered", 0))
        forced = self.settings.options.get("forcing", "none") == "hmnr"
        self.forcing = Forcing(self.me, self.graph.processes, now.get("forcing")) if forced else None
        kept = checkpoints(birth.records)
        self._durable: dict[int, Record] = {i: record for i, record in kept.items() if i <= self.interval}
        self._unchanged = _work_in(self._durable)
        """Work in the newest durable checkpoint. A checkpoint that was being stored at the end of the last incarnation
        may be lost.
        """
        self._saving: dict[int, Record] = {}
        self._reported = 0
        self._waiting = receipts(now.get("waiting", ()))

    def record(self) -> Record:
        """Return the current record. `seen`: newest interval received from, per sender; `waiting`: received and not delivered."""
        return {
            "incarnation": self.incarnation,
            "index": self.interval,
            "sent": as_counts(self.sent),
            "received": as_counts(self.received),
            "seen": as_counts(self.seen),
            "delivered": self.delivered,
            "waiting": [event.message.as_record() for event in self._waiting],
            "forcing": None if self.forcing is None else self.forcing.as_record(),
        }

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        newest = max(self._durable, default=0)
        self._ensure(newest <= self.interval, "what is durable was taken")
        self._ensure(bool(self._saving) == (self.phase is P.SAVING), "something is being stored iff saving")
        self._ensure(self.delivered == sum(self.received.values()), "every message received was delivered")
        self._ensure(self.shown <= self.delivered, "only delivered rows are shown")

    def _on_start(self, event: Commanded) -> list[Effect]:
        waiting, self._waiting = self._waiting, []
        # A forced checkpoint keeps the message that caused it; a recovery may have undone its send since.
        late = [effect for each in waiting for effect in self._door(each) or self._on_received(each)]
        return [self._set_timer(), self._report(sorted(self._durable)), *late]

    def _on_sent(self, event: AppSent) -> list[Effect]:
        target = self.graph.ends[event.channel][1]
        header = self.forcing.send(target) if self.forcing else {}
        return [self._send_app(event.channel, event.body, self.interval, header)]

    def _on_received(self, event: Received) -> list[Effect]:
        message = event.message
        if message.kind == LINE:
            return self._take_line(event)
        expected = self.received.get(event.channel, 0) + 1
        # The channel is a log that is read from the checkpoint's position, so a gap is the host's fault and no loss to repair.
        if message.seq != expected:
            raise self._invalid(event, f"the channel is in order, and {expected} is next")
        # Before the counters: the forced checkpoint must not contain this receipt, or it would not break the cycle.
        forced = self._force(event)
        self.received[event.channel] = expected
        self.seen[message.source] = max(self.seen.get(message.source, 0), message.index)
        self.delivered += 1
        return [*forced, Deliver(event)]

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def _on_timer(self, event: TimerElapsed) -> list[Effect]:
        """Take a checkpoint if there is new work to save."""
        if self._work() == self._unchanged:
            return [self._set_timer()]
        return [self._set_timer(), *self._take(CheckpointKind.BASIC)]

    def _on_timer_while_saving(self, event: TimerElapsed) -> list[Effect]:
        return [self._set_timer()]

    def _force(self, event: Received) -> list[Effect]:
        """Take a checkpoint before the delivery, if the rule requires one. The message is in its record, not in its state."""
        if self.forcing is None:
            return []
        effects: list[Effect] = []
        if self.forcing.must_come_first(event.message.header):
            self._waiting = [event]
            effects = [Note("forced", str(self.interval + 1)), *self._take(CheckpointKind.FORCED)]
            self._waiting = []
        self.forcing.learn(event.message.header)
        return effects

    def _take(self, kind: CheckpointKind) -> list[Effect]:
        self.interval += 1
        self._unchanged = self._work()
        if self.forcing:
            self.forcing.checkpoint(self.interval)
        self._saving[self.interval] = self.record()
        self.phase = P.SAVING
        return [CaptureState(Epoch(self.interval), kind), self._store(self.interval)]

    def _on_stored(self, event: Stored) -> list[Effect]:
        index = int(event.token)
        if not event.ok:
            return [self._store(index)]
        self._durable[index] = self._saving.pop(index)
        self.phase = P.SAVING if self._saving else P.WORKING
        # Reports keep the order of the checkpoints, so an older one in progress delays the newer ones.
        oldest = min(self._saving, default=self.interval + 1)
        ready = [number for number in sorted(self._durable) if self._reported < number < oldest]
        return [self._report(ready)] if ready else []

    def _store(self, index: int) -> StoreRecord:
        return StoreRecord(checkpoint_key(index), self._saving[index], str(index))

    def _work(self) -> tuple[int, int]:
        return sum(self.sent.values()), self.delivered

    # -- the line ------------------------------------------------------------------------------------------------------

    def _report(self, ready: Sequence[int]) -> Send:
        # Each report names its predecessor. An erasure is safe only if no checkpoint before a known one can appear
        # later.
        before, self._reported = self._reported, ready[-1] if ready else self._reported
        body: Json = [[index, mapping(self._durable[index]["seen"])] for index in ready]
        return self._send_control(COORDINATOR, REPORT, before, body)

    def _take_line(self, event: Received) -> list[Effect]:
        old = [number(index) for index in items(event.message.body)]
        if unknown := [index for index in old if index not in self._durable]:
            raise self._invalid(event, f"checkpoints {unknown} are not there to be erased")
        shown = self._show(event.message.index)
        for index in old:
            del self._durable[index]
        erased = tuple(checkpoint_key(index) for index in old)
        return [*shown, Erase(erased)] if old else shown

    def _show(self, line: int) -> list[Effect]:
        # G6: no failure undoes rows before the line. A late, older line may name a checkpoint that is erased; it adds
        # no rows.
        return self._publish(number(self._durable.get(line, {}).get("delivered", 0)), f"{self.me}@{line}")


class GatheringPhase(Enum):
    """Knowledge of the coordinator."""

    GATHERING = "not everybody has reported in this incarnation"
    DECIDING = "everybody has"


G = GatheringPhase


class LineCoordinator(ReportedCoordinator[GatheringPhase]):
    """Coordinator that knows only the durable checkpoints of all workers."""

    PHASES = GatheringPhase
    AT_REST = (G.DECIDING,)
    TABLE = rows(
        {
            G.GATHERING: {Commanded: "_on_start", Received: "_on_first_report"},
            G.DECIDING: {Received: "_on_report"},
        },
        ReportedCoordinator.EVENTS,
    )

    def __init__(self, birth: Birth) -> None:
        super().__init__(G.GATHERING, birth)
        self._seen: dict[ProcessId, dict[int, Seen]] = {}
        self._newest = dict.fromkeys(self.graph.processes, 0)
        self._early: dict[ProcessId, dict[int, Json]] = {process: {} for process in self.graph.processes}
        self.line: Mapping[ProcessId, int] = dict.fromkeys(self.graph.processes, 0)

    def validate(self) -> None:
        """Check the invariants that hold between two events. Raises `InvariantBroken`."""
        everybody = self._seen.keys() == set(self.graph.processes)
        self._ensure(everybody == (self.phase is G.DECIDING), "deciding iff everybody reported")

    def _on_first_report(self, event: Received) -> list[Effect]:
        self._learn(event.message)
        # An erasure computed without some process's dependencies could erase a checkpoint that is still needed.
        if len(self._seen) < len(self.graph.processes):
            return []
        self.phase = G.DECIDING
        return self._decide()

    def _on_report(self, event: Received) -> list[Effect]:
        self._learn(event.message)
        return self._decide()

    def _learn(self, report: Envelope) -> None:
        process, early = report.source, self._early[report.source]
        early[report.index] = report.body
        # Reports overtake each other, so a report waits for its predecessor.
        while (body := early.pop(self._newest[process], None)) is not None:
            mine = self._seen.setdefault(process, {0: NOTHING_SEEN})
            for index, seen in map(items, items(body)):
                mine[number(index)] = by_process(seen)
                self._newest[process] = number(index)

    def _decide(self) -> list[Effect]:
        graph = IntervalGraph({process: Marks(seen) for process, seen in self._seen.items()})
        before, self.line = self.line, self._total(graph)
        needed = graph.needed()
        told: list[Effect] = []
        for process in self.graph.processes:
            old = [index for index in self._seen[process] if index not in needed[process]]
            if old or self.line[process] > before[process]:
                told.append(self._line_for(process, old))
        complete = [Note("complete", _named(self.line))] if self.line != before else []
        return [*complete, *told]

    def _total(self, graph: IntervalGraph) -> Mapping[ProcessId, int]:
        # As if all processes failed now: no recovery goes below this line.
        return graph.undone([(process, max(seen)) for process, seen in self._seen.items()])

    def _line_for(self, process: ProcessId, old: Sequence[int]) -> Send:
        for index in old:
            # Before its process has erased it: if the process fails first, it reports the checkpoint again.
            del self._seen[process][index]
        return self._send_control(process, LINE, self.line[process], list(old))


def plan(
    failure: Failure, graph_of: Callable[[Mapping[ProcessId, Marks]], IntervalGraph] = IntervalGraph
) -> RecoveryPlan:
    """Return the plan that undoes the lost intervals and all that depend on them, and nothing else."""
    marks = {process: _marks(failure, process) for process in failure.graph.processes}
    lost = [
        (process, max(marks[process].checkpoints)) for process in failure.graph.processes if process in failure.failed
    ]
    undone = graph_of(marks).undone(lost)
    row = {process: Epoch(index) for process, index in undone.items()}
    parts = {process: _part(failure, process, row) for process in undone}
    return RecoveryPlan(failure.incarnation, row, parts)


def _marks(failure: Failure, process: ProcessId) -> Marks:
    durable = {int(index): _seen_in(record) for index, record in checkpoints(failure.records[process]).items()}
    # A survivor's work since its newest checkpoint is not lost, and may stay.
    now = failure.survivors.get(process)
    return Marks({0: NOTHING_SEEN, **durable}, None if now is None else _seen_in(now))


def _part(failure: Failure, process: ProcessId, row: Mapping[ProcessId, int]) -> Part:
    senders = {source for source, target in failure.graph.ends.values() if target == process and source in row}
    undone = ", ".join(f"{sender} from {row[sender]}" for sender in sorted(senders))
    why = "it failed" if process in failure.failed else f"it received what is undone: {undone}"
    key = checkpoint_key(row[process]) if row[process] else None
    return Part(key, initial=key is None, because=why)


def _seen_in(record: Record) -> dict[ProcessId, int]:
    """Return the dependencies in a checkpoint record."""
    return by_process(record.get("seen", {}))


def _work_in(durable: Mapping[int, Record]) -> tuple[int, int]:
    """Return the number of messages sent and delivered in the newest of these checkpoints."""
    if not durable:
        return 0, 0
    newest = durable[max(durable)]
    return sum(counts(newest["sent"]).values()), number(newest["delivered"])


def _named(line: Mapping[ProcessId, int]) -> str:
    return " ".join(f"{process}:{index}" for process, index in sorted(line.items()))


PROTOCOL = Protocol(
    name="uncoordinated",
    title="Uncoordinated checkpoints and the maximum recovery line",
    source="seed 004, Uncoordinated Checkpointing; Wang and Fuchs 1993",
    needs=Needs(replayable=True),
    worker=UncoordinatedWorker,
    plan=plan,
    coordinator=LineCoordinator,
    maximal=True,
    options={"forcing": Option(("none", "hmnr"))},
)
