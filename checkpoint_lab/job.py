"""A job in the message world: its processes, channels and truth, and the execution of the machines' effects."""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from checkpoint_lab import oracles
from checkpoint_lab.durable import CHECKPOINT, Item, StateCut, Storage, Surroundings, Write, frame, initial_cut
from checkpoint_lab.faults import Clocks, Faults
from checkpoint_lab.oracles import Truth
from checkpoint_lab.process import (
    GraphApplication,
    Network,
    OutsideSink,
    Process,
    SinkPublication,
    Timer,
    application,
    refuse_no_sink,
)
from checkpoint_lab.violations import Violation
from checkpoint_lab.world import World
from checkpoint_protocols.graph import COORDINATOR, Graph
from checkpoint_protocols.ids import ChannelId, Incarnation, ProcessId
from checkpoint_protocols.incarnation import Line
from checkpoint_protocols.machine import Effect, Event, ProtocolViolation
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Key, Protocol, ProtocolSettings, RecoveryPlan
from checkpoint_protocols.snapshots.coordinator import BEGIN
from checkpoint_protocols.transport import Asked
from checkpoint_protocols.vocabulary import (
    OUT,
    AppSent,
    CaptureState,
    Deliver,
    Drop,
    Envelope,
    Erase,
    Hold,
    Note,
    Received,
    Release,
    Restore,
    Send,
    SetTimer,
    SinkTransaction,
    StoreRecord,
)

_KEPT_MESSAGE = f'"kind":"{APP}"'
"""Text of a record for each message of the application that it keeps (`Envelope.as_record`)."""

# -- Size of the application state in checkpoints, without the protocol's records, by one rule for every protocol.
#
# - A source's state is its offset, which is in its record. The coordinator has no state.
# - Every other process stores its whole application state with each checkpoint: a size that the user chooses, or that
#   the user's job has recorded.
# - A sink also stores the rows that it has received and not published: they must survive its failure.


@dataclass(slots=True)
class StoredSize:
    """Numbers of stored states by process, of messages inside of records, and of rows that sinks staged."""

    states: Counter[ProcessId] = field(default_factory=Counter)
    messages: int = 0
    staged: int = 0
    staged_bytes: int = 0

    def bytes(self, state_bytes: Callable[[ProcessId], int], message_bytes: int | None = None) -> int:
        """Return all bytes of states and staged rows.

        `state_bytes`: size of a process's state. `message_bytes`: size of a row; None: its text in the simulator.
        """
        staged = self.staged_bytes if message_bytes is None else self.staged * message_bytes
        return sum(number * state_bytes(process) for process, number in self.states.items()) + staged


class JobWorld(World):
    """A job without failures; subclasses add failures and recovery."""

    def __init__(
        self,
        protocol: Protocol,
        graph: Graph,
        faults: Faults,
        inputs: int,
        loops: int,
        settings: ProtocolSettings,
        clocks: Clocks,
        surroundings: Surroundings,
    ) -> None:
        if protocol.needs.acyclic and (back := sorted(graph.back_edges)):
            raise ProtocolViolation(f"{protocol.name} needs an acyclic graph, {graph.name} has {back}")
        self.protocol = protocol
        self.graph = graph
        # only deterministic protocols promise the same order, so only they get digests of it
        self.app = self.workload(graph, inputs, loops, protocol.needs.deterministic)
        self.settings = settings
        self.network = Network(graph, protocol.needs)
        self.truth = Truth(protocol.needs, graph)
        names = [*graph.processes, *([COORDINATOR] if protocol.coordinator else [])]
        self.surroundings = surroundings
        self.lossy = bool(faults.control_losses or faults.control_repeats)
        """True if control channels lose or repeat messages and need a transport."""
        self.processes = {
            name: Process(name, number, len(names), clocks.of(name), self.storage_of(name))
            for number, name in enumerate(names)
        }
        self.everybody = tuple(self.processes.values())
        for name in graph.sources:
            self.processes[name].is_source = True
        self.initial = initial_cut(len(names))
        self.now = 0.0
        """Time of the world in ms: that of the latest timer."""
        self.incarnation = Incarnation(1)
        self.table: dict[Incarnation, Line] = {}
        self.plan: RecoveryPlan | None = None
        self.planned_for: frozenset[ProcessId] = frozenset()
        """Processes that were down when the plan was made."""
        self.alarm = False
        """True if a process is down that no plan knows of."""
        self.recovering = False
        """True while a process has not done its part of the plan."""
        self.sinks = {name: OutsideSink(name) for name in graph.sinks}
        """Rows that the outside world has seen, by sink."""
        self.budget = faults
        self.uid = 0
        self.count: dict[str, int] = {}
        self.sent_by_application = self.sent_by_protocol = self.stored = self.stored_bytes = 0
        self.size = StoredSize()

    def workload(self, graph: Graph, inputs: int, loops: int, ordered: bool) -> GraphApplication:
        """Return the application that runs on the graph. A subclass may override it."""
        return application(graph, inputs, loops, ordered)

    @abstractmethod
    def join(self, process: Process) -> None:
        """Perform the process's part of the newest plan, now."""

    @abstractmethod
    def judge_complete(self, process: Process, index: str) -> None:
        """Judge the claim of `process` that checkpoint `index` can be recovered from."""

    @abstractmethod
    def condemn_output(self, wrong: Violation) -> None:
        """Handle the oracle's verdict on rows that a sink published."""

    @abstractmethod
    def judge_shown(self, process: Process, last: int) -> None:
        """Judge the publication of the rows of `process` up to `last`."""

    # -- effects of machines --------------------------------------------------------------------------------------

    def hand(self, process: Process, event: Event) -> None:
        """Hand one event to the machine, carry out its effects in order, then send what the application emits."""
        machine = process.machine
        assert machine is not None  # noqa: S101 - choices of the dead do not exist
        if self.cells is not None:
            self.cells.add((type(machine).__name__, machine.phase.name, type(event).__name__))
        for effect in machine.handle(event):
            self._carry_out(process, effect)
        if process.state.outbox:
            self.hand_out(process)

    def hand_out(self, process: Process) -> None:
        """Send the application's outgoing records in order, as long as the machine does not hold its output."""
        outbox = process.state.outbox
        while outbox and OUT not in process.held and process.machine is not None:
            channel, body = outbox.popleft()
            if self.cells is not None:
                self.cells.add((type(process.machine).__name__, process.machine.phase.name, AppSent.__name__))
            for effect in process.machine.handle(AppSent(channel, body)):
                self._carry_out(process, effect)
            # an effect may have restored the process, which replaces its state and its outbox
            outbox = process.state.outbox

    def _carry_out(self, process: Process, effect: Effect) -> None:
        try:
            perform = _PERFORM[type(effect)]
        except KeyError:
            raise ProtocolViolation(f"{process.name} asks for {effect}, which this host does not know") from None
        perform(self, process, effect)

    def _send(self, process: Process, effect: Send) -> None:
        message, bit = effect.message, 0
        if message.kind == BEGIN:
            oracles.judge_begin(self.truth.begun, message)
        # only messages on the graph's channels and application messages have a bit of the truth
        if effect.channel in self.network.queues or message.kind == APP:
            self._live(process)
            bit = self.truth.register(message, tuple(process.state.clock))
            if message.kind == APP and message.source == process.name:
                process.state.sent |= bit
        if process.transport is not None and effect.channel not in self.network.queues:
            self.carry(process, Asked(message))
        else:
            self.put(process, effect.channel, message, bit)

    def put(self, process: Process, channel: ChannelId, message: Envelope, bit: int = 0) -> None:
        """Put a message on its channel."""
        self.uid += 1
        if message.kind == APP:
            self.sent_by_application += 1
        else:
            self.sent_by_protocol += 1
        self.network.put(channel, Item(self.uid, message, bit))
        if self.moments is not None:
            self.tell(process.name, "send", str(message.body) if message.kind == APP else message.kind, self.uid)

    def carry(self, process: Process, event: Event) -> None:
        """Hand one event to the process's transport; messages that it delivers go to the machine."""
        assert process.transport is not None  # noqa: S101 - callers looked
        for effect in process.transport.handle(event):
            match effect:
                case Send(channel, message):
                    self.put(process, channel, message)
                case Deliver(received):
                    self.hand(process, received)
                case SetTimer():
                    self._set_timer(process, effect)
                case Drop():
                    self.note("drop by transport")

    def _deliver(self, process: Process, effect: Deliver) -> None:
        event = effect.event
        if not isinstance(event, Received):
            raise ProtocolViolation(f"{process.name} delivers {event}, which is no message")
        bit = oracles.judge_delivery(self.truth, self.processes, process, event.message)
        state = process.state
        state.settle(event.message)
        state.received |= bit
        state.taken |= bit
        state.depend_on(self.truth.clocks[bit])
        if process.name in self.sinks:
            oracles.judge_row(self.sinks[process.name].rows, len(state.rows), bit, process)
        state.rows.append(bit)
        if self.moments is not None:
            self.tell(process.name, "deliver", str(event.message.body))
        self.take_in(process, str(event.message.body))

    def take_in(self, process: Process, body: str) -> None:
        """Take one record into the application's state and queue the records that follow from it."""
        state, app = process.state, self.app
        lineage = app.lineage(body)
        self._live(process)
        state.have |= app.bits[lineage]
        state.digest = app.digest(state.digest, lineage)
        self.pass_on(process, body)

    def pass_on(self, process: Process, body: str) -> None:
        """Queue the records that follow from one. A subclass may compute them in another way."""
        state, app = process.state, self.app
        routes = app.routes[app.lineage(body)]
        state.outbox.extend((channel, app.body(child, state.digest)) for channel, child in routes)

    def storage_of(self, name: ProcessId) -> Storage:
        """Return the durable storage of a process. A subclass may override it."""
        return self.surroundings.storage()

    def _live(self, process: Process) -> None:
        # no recovery lowers it: the number of an undone event is never used again, so one bit tells if an event stands
        process.events += 1
        process.state.lived |= 1 << process.events
        process.state.clock[process.number] = process.events

    def _drop(self, process: Process, effect: Drop) -> None:
        self.note("drop")
        event = effect.event
        if isinstance(event, Received) and event.message.kind == APP:
            process.state.settle(event.message)
        if self.moments is not None:
            self.tell(process.name, "drop", effect.why)

    def _hold(self, process: Process, effect: Hold) -> None:
        process.held.add(effect.channel)

    def _release(self, process: Process, effect: Release) -> None:
        process.held.discard(effect.channel)

    def _capture(self, process: Process, effect: CaptureState) -> None:
        # The state is fixed here, after the effects before this one in the list and before those that follow it (G1).
        oracles.judge_capture(process, effect.index)
        process.captures[effect.index] = process.state.cut()
        self.note("capture")
        self.tell(process.name, "capture", f"{effect.index} {effect.kind}")

    def _store(self, process: Process, effect: StoreRecord) -> None:
        cut = None
        if effect.key[0] == CHECKPOINT:
            # a checkpoint may be stored again after its capture is gone: its first write kept the cut
            cut = process.captures.get(int(effect.key[1])) or process.storage.cuts.get(effect.key)
            if cut is None:
                raise ProtocolViolation(f"{process.name} stores {effect.key}, which it never captured")
        framed = frame(effect.record)
        self.stored += 1
        self.stored_bytes += len(framed)
        self.size.messages += framed.count(_KEPT_MESSAGE)
        if cut is not None:
            self._count_state(process, effect.key, cut)
        process.writes.append(Write(effect.key, framed, effect.token, cut))

    def _count_state(self, process: Process, key: Key, cut: StateCut) -> None:
        # A record that is written again, after an error or with another mark, brings no new state with it.
        known = process.storage.cuts.get(key) is cut or any(write.cut is cut for write in process.writes)
        if known or process.is_source or process.name == COORDINATOR:
            return
        self.size.states[process.name] += 1
        sink = self.sinks.get(process.name)
        if sink is not None:
            rows, length = cut.rows
            staged = rows[sink.marker : length]
            self.size.staged += len(staged)
            self.size.staged_bytes += sum(len(str(self.truth.message(bit).body)) for bit in staged)

    def _erase(self, process: Process, effect: Erase) -> None:
        # A successor uses the same keys: an erasure of a replaced incarnation could remove the successor's record.
        if process.storage.fence.admits(process.incarnation):
            process.storage.erase(effect.keys)
        self.tell(process.name, "erase", " ".join("/".join(key) for key in effect.keys))

    def _restore(self, process: Process, effect: Restore) -> None:
        """Do the process's part now: it has met a newer incarnation. Then hand in the event that it met."""
        if process.incarnation < self.incarnation:
            self.join(process)
        self.hand(process, effect.event)

    def _show(self, process: Process, effect: SinkTransaction) -> None:
        """Queue a publication for the sink; the sink performs it in another step (`publish`)."""
        if not 0 <= effect.first <= effect.last <= len(process.state.rows):
            oracles.refuse_rows(process, effect.first, effect.last)
        rows = tuple(process.state.rows[effect.first : effect.last])
        # Judged at the request and not when the rows appear: from here on the sink may perform it at any time (G6).
        self.judge_shown(process, effect.last)
        self.note("shown")
        names = tuple(self.app.lineage(self.truth.message(bit).body) for bit in rows)
        process.publishing.append(SinkPublication(effect.transaction, effect.first, effect.last, rows, names))

    def publish(self, process: Process) -> SinkPublication:
        """Perform the oldest queued publication of the process's sink."""
        publication = process.publishing.pop(0)
        self.show(process, publication)
        return publication

    def show(self, process: Process, publication: SinkPublication) -> None:
        """Add a publication to the sink's record and judge it."""
        sink = self.sinks.get(process.name)
        # an empty publication changes no record and needs no sink
        if publication.rows:
            self.tell(process.name, "publish", f"..{publication.last}")
            if sink is None:
                raise refuse_no_sink(process.name, publication.names)
            wrong = sink.show(self.app, self.protocol.output.keeps_order, publication)
            if wrong is not None:
                self.condemn_output(wrong)

    def _set_timer(self, process: Process, effect: SetTimer) -> None:
        process.timers.append(Timer(process.clock.after(self.now, effect.delay_ms), effect))

    def _remark(self, process: Process, effect: Note) -> None:
        self.note(effect.what)
        self.tell(process.name, effect.what, effect.detail)
        if effect.what == "complete":
            self.judge_complete(process, effect.detail)

    def spend(self, kind: str) -> None:
        """Take one fault of a kind from the budget."""
        self.budget = replace(self.budget, **{kind: getattr(self.budget, kind) - 1})

    def note(self, what: str) -> None:
        """Count one note."""
        self.count[what] = self.count.get(what, 0) + 1


_PERFORM: dict[type[Effect], Callable[..., None]] = {
    Send: JobWorld._send,
    Deliver: JobWorld._deliver,
    Drop: JobWorld._drop,
    Hold: JobWorld._hold,
    Release: JobWorld._release,
    CaptureState: JobWorld._capture,
    StoreRecord: JobWorld._store,
    Erase: JobWorld._erase,
    Restore: JobWorld._restore,
    SinkTransaction: JobWorld._show,
    SetTimer: JobWorld._set_timer,
    Note: JobWorld._remark,
}
