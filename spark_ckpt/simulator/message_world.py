"""The world of protocols over plain messages: processes, channels, stores, timers, failures, recoveries.

Choices (processes and channels by name, others by position):

| choice | what happens |
|---|---|
| `read, p` | source `p` reads its next input |
| `deliver, channel, i` | the i-th message on the channel is handed to the machine; i is 0 on FIFO channels |
| `replay, p` | the next message of the plan's replay |
| `stored, p, i, how` | the i-th write of `p` ends: `ok`, `failed`, `torn` |
| `reply, p, i` | the sink answers |
| `timer, p, i` | a timer of `p` runs out |
| `crash, p` `recover` `restore, p` | a failure; everybody's part is decided; one process does its part |
| `pause, p` `resume, p` `cut, p, q` `heal, p, q` `lose, channel, i` `repeat, channel, i` | other faults and their ends |
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable
from dataclasses import replace

from spark_ckpt.protocol.graph import COORDINATOR, Graph
from spark_ckpt.protocol.ids import ChannelId, Incarnation, ProcessId
from spark_ckpt.protocol.incarnation import Line
from spark_ckpt.protocol.machine import Effect, Event, ProtocolViolation
from spark_ckpt.protocol.message_machine import APP
from spark_ckpt.protocol.recovery import Birth, Plan, Protocol, Record, Settings
from spark_ckpt.protocol.vocabulary import (
    OUT,
    AppSent,
    Capture,
    Commanded,
    Deliver,
    Drop,
    Erase,
    Hold,
    Note,
    Received,
    Release,
    Restore,
    Send,
    SetTimer,
    SinkOp,
    SinkReplied,
    SinkTransaction,
    Store,
    Stored,
    TimerElapsed,
)
from spark_ckpt.simulator import oracles, recovering
from spark_ckpt.simulator.application import application
from spark_ckpt.simulator.durable import CHECKPOINT, Write, frame
from spark_ckpt.simulator.faults import NO_FAULTS, Clocks, Faults
from spark_ckpt.simulator.network import Link, Network
from spark_ckpt.simulator.process import PERIODIC, Process, Timer
from spark_ckpt.simulator.state import Item, State, initial_cut
from spark_ckpt.simulator.truth import Truth
from spark_ckpt.simulator.violations import TooEarly
from spark_ckpt.simulator.world import Choice, World

FIRST = Incarnation(1)


class MessageWorld(World):
    """One job under one protocol. `inputs` per source, `loops` around back edges."""

    def __init__(
        self,
        protocol: Protocol,
        graph: Graph,
        faults: Faults = NO_FAULTS,
        inputs: int = 3,
        loops: int = 1,
        settings: Settings | None = None,
        clocks: Clocks | None = None,
    ) -> None:
        if protocol.needs.acyclic and graph.back_edges:
            raise ProtocolViolation(
                f"{protocol.name} needs an acyclic graph, {graph.name} has {sorted(graph.back_edges)}"
            )
        clocks = clocks or Clocks()
        self.protocol = protocol
        self.graph = graph
        self.app = application(graph, inputs, loops, protocol.needs.deterministic)
        self.settings = settings or Settings()
        self.network = Network(graph, protocol.needs)
        self.truth = Truth(protocol.needs)
        names = [*graph.processes, *([COORDINATOR] if protocol.coordinator else [])]
        self.processes = {name: Process(name, number, len(names), clocks.of(name)) for number, name in enumerate(names)}
        self.initial = initial_cut(len(names))
        self.everybody = tuple(self.processes.values())
        self.sources = tuple(self.processes[name] for name in graph.sources)
        self.now = 0.0
        self.incarnation = FIRST
        self.table: dict[Incarnation, Line] = {}
        self.plan: Plan | None = None
        self.planned_for: frozenset[ProcessId] = frozenset()
        """Who was down when the plan was made."""
        self.alarm = False
        """Somebody is down whom no plan knows of."""
        self.recovering = False
        self.shown: dict[ProcessId, list[int]] = {name: [] for name in graph.processes}
        self.budget = faults
        self.uid = 0
        self.count: dict[str, int] = {}
        for process in self.everybody:
            self._begin(process, None)

    # -- what can happen -----------------------------------------------------------------------------------------

    def choices(self) -> list[Choice]:
        """Work: reads, deliveries, replays, writes that succeed, recovery."""
        found: list[Choice] = []
        for process in self.everybody:
            if process.works:
                self._work_of(process, found)
            elif process.machine is None and process.writes and not process.frozen:
                found.extend(("stored", process.name, number, "ok") for number in range(len(process.writes)))
        self._deliveries(found)
        if self.recovering or self.alarm:
            self._recovery(found)
        return found

    def _work_of(self, process: Process, found: list[Choice]) -> None:
        name = process.name
        if process.writes:
            found.extend(("stored", name, number, "ok") for number in range(len(process.writes)))
        if process.replies:
            found.extend(("reply", name, number) for number in range(len(process.replies)))
        if process.replay and recovering.channel_of(process.replay[0]) not in process.held:
            found.append(("replay", name))
        elif process.state.cursor < self.app.inputs and process in self.sources and not process.state.outbox:
            found.append(("read", name))

    def _deliveries(self, found: list[Choice]) -> None:
        network, processes = self.network, self.processes
        for channel, queue in network.queues.items():
            if not queue or (network.cut and network.links[channel] in network.cut):
                continue
            process = processes[network.targets[channel]]
            if process.works and channel not in process.held and not process.replay:
                if network.fifo:
                    found.append(("deliver", channel, 0))
                else:
                    found.extend(("deliver", channel, position) for position in range(len(queue)))
        for channel, queue in network.controls.items():
            if queue and network.links[channel] not in network.cut and processes[network.targets[channel]].works:
                found.extend(("deliver", channel, position) for position in range(len(queue)))

    def _recovery(self, found: list[Choice]) -> None:
        if self.alarm:
            found.append(("recover",))
        found.extend(("restore", process.name) for process in self.everybody if self._can_restore(process))

    def _can_restore(self, process: Process) -> bool:
        if self.plan is None or process.incarnation == self.incarnation or process.paused:
            return False
        return process.machine is not None or process.name in self.planned_for

    def timers(self) -> list[Choice]:
        """All timers of all who work, the earliest first."""
        found = [
            (timer.due, process.number, number, process.name)
            for process in self.everybody
            if process.works
            for number, timer in enumerate(process.timers)
        ]
        return [("timer", name, number) for _, _, number, name in sorted(found)]

    def faults(self) -> list[Choice]:
        """Whatever the budget still pays for, and the ends of pauses and partitions."""
        budget, found = self.budget, list[Choice]()
        if budget.crashes:
            found.extend(("crash", each.name) for each in self.everybody if each.machine is not None)
        if budget.store_errors:
            found.extend(
                ("stored", each.name, number, "failed")
                for each in self.everybody
                if each.works
                for number in range(len(each.writes))
            )
        if budget.torn:
            found.extend(
                ("stored", each.name, number, "torn")
                for each in self.everybody
                if each.machine is None and not each.frozen
                for number in range(len(each.writes))
            )
        self._faults_of_links(found)
        return found

    def _faults_of_links(self, found: list[Choice]) -> None:
        budget, network = self.budget, self.network
        if not network.reliable:
            for channel, queue in network.queues.items():
                if budget.losses:
                    found.extend(("lose", channel, position) for position in range(len(queue)))
                if budget.duplicates:
                    found.extend(("repeat", channel, position) for position in range(len(queue)))
        for process in self.everybody:
            if process.paused:
                found.append(("resume", process.name))
            elif budget.pauses and process.machine is not None:
                found.append(("pause", process.name))
        found.extend(("heal", *sorted(link)) for link in sorted(network.cut, key=sorted))
        if budget.partitions:
            links = dict.fromkeys(network.links.values())
            found.extend(("cut", *sorted(link)) for link in links if link not in network.cut)

    # -- making it happen ----------------------------------------------------------------------------------------

    def do(self, choice: Choice) -> None:
        """See the module's table."""
        self.step += 1
        _DO[str(choice[0])](self, *choice[1:])

    def _do_read(self, name: ProcessId) -> None:
        process = self.processes[name]
        lineage = f"{name}.{process.state.cursor}"
        process.state.cursor += 1
        self.tell(name, "read", lineage)
        self._take_in(process, lineage)
        self._hand_out(process)

    def _do_deliver(self, channel: ChannelId, position: int) -> None:
        process = self.processes[self.network.targets[channel]]
        item = self.network.take(channel, position)
        message = item.message
        if item.bit:
            process.state.taken |= item.bit
            if message.kind == APP:
                process.state.pending[item.bit] = (channel, item)
        if self.moments is not None:
            self.tell(process.name, "receive", message.kind, item.uid)
        self._hand(process, Received(channel, message))

    def _do_replay(self, name: ProcessId) -> None:
        process = self.processes[name]
        message = process.replay.popleft()
        self.tell(name, "replay", str(message.body))
        self._hand(process, Received(recovering.channel_of(message), message, replayed=True))

    def _do_stored(self, name: ProcessId, number: int, how: str) -> None:
        process = self.processes[name]
        write = process.writes.pop(number)
        self.tell(name, "stored" if how == "ok" else how, "/".join(write.key))
        if how == "ok":
            process.storage.write(write)
        elif how == "torn":
            self.budget = replace(self.budget, torn=self.budget.torn - 1)
            process.storage.tear(write)
        else:
            self.budget = replace(self.budget, store_errors=self.budget.store_errors - 1)
        if process.machine is not None:
            self._hand(process, Stored(write.token, how == "ok"))

    def _do_reply(self, name: ProcessId, number: int) -> None:
        process = self.processes[name]
        self._hand(process, process.replies.pop(number))

    def _do_timer(self, name: ProcessId, number: int) -> None:
        process = self.processes[name]
        timer = process.timers.pop(number)
        self.now = max(self.now, timer.due)
        elapsed = timer.setting.elapsed
        if isinstance(elapsed, TimerElapsed):
            elapsed = TimerElapsed(elapsed.name, elapsed.timer, process.clock.local(self.now))
        self.tell(name, "timer", timer.setting.name)
        self._hand(process, elapsed)

    # -- faults --------------------------------------------------------------------------------------------------

    def _do_crash(self, name: ProcessId) -> None:
        self.budget = replace(self.budget, crashes=self.budget.crashes - 1)
        process = self.processes[name]
        process.die()
        self.alarm = True
        self._note("crash")
        self.tell(name, "crash")

    def _do_pause(self, name: ProcessId) -> None:
        self.budget = replace(self.budget, pauses=self.budget.pauses - 1)
        self.processes[name].paused = True
        self.tell(name, "pause")

    def _do_resume(self, name: ProcessId) -> None:
        self.processes[name].paused = False
        self.tell(name, "resume")

    def _do_cut(self, one: str, other: str) -> None:
        self.budget = replace(self.budget, partitions=self.budget.partitions - 1)
        self.network.cut.add(Link((one, other)))
        self.tell(one, "cut", other)

    def _do_heal(self, one: str, other: str) -> None:
        self.network.cut.discard(Link((one, other)))
        self.tell(one, "heal", other)

    def _do_lose(self, channel: ChannelId, position: int) -> None:
        self.budget = replace(self.budget, losses=self.budget.losses - 1)
        item = self.network.take(channel, position)
        self.tell(item.message.target, "lose", str(item.message.body), item.uid)

    def _do_repeat(self, channel: ChannelId, position: int) -> None:
        self.budget = replace(self.budget, duplicates=self.budget.duplicates - 1)
        self.network.repeat(channel, position)

    # -- recovery ------------------------------------------------------------------------------------------------

    def _do_recover(self) -> None:
        """Decide everybody's part, and make it durable: the fence."""
        self.incarnation = Incarnation(self.incarnation + 1)
        failed = self._failed()
        given = recovering.failure(self.graph, self.table, self.incarnation, self.everybody, failed)
        plan = self.protocol.plan(given)
        if plan.incarnation != self.incarnation:
            raise ProtocolViolation(f"the plan is of incarnation {plan.incarnation}, not {self.incarnation}")
        self.table = recovering.with_row(self.table, plan)
        self.plan, self.planned_for = plan, failed
        self.alarm, self.recovering = False, True
        for process in self.everybody:
            if process.name in failed:
                process.machine = None
                process.writes = []
            process.frozen = self.protocol.rejoin is None or process.name in failed
        self._note("recovery")
        self.tell("", "recover", f"{self.incarnation} {dict(plan.row) if isinstance(plan.row, dict) else plan.row}")

    def _failed(self) -> frozenset[ProcessId]:
        """Who is down, and who was told to leave its state and has not: that state is void."""
        down = {each.name for each in self.everybody if each.machine is None}
        void = {
            each.name
            for each in self.everybody
            if self.plan and each.frozen and recovering.moves(self.plan.parts.get(each.name, recovering.KEEP))
        }
        return frozenset(down | void)

    def _do_restore(self, name: ProcessId) -> None:
        process = self.processes[name]
        plan = self.plan
        assert plan is not None  # noqa: S101 - else the choice does not exist
        now = recovering.now(process) if process.machine is not None else None
        part = plan.parts.get(name, recovering.KEEP)
        if self.protocol.rejoin is not None and now is not None:
            part = self.protocol.rejoin(plan, self._birth(process, now))
        checkpoint = self._go_back(process, part.checkpoint, now is None or part.initial) or now
        if part.initial and part.checkpoint is None:
            checkpoint = None
        process.replay.extend(part.replay)
        self.tell(name, "restore", part.because)
        self._begin(process, checkpoint)

    def _go_back(self, process: Process, key: tuple[str, ...] | None, initial: bool) -> Record | None:
        """Load the state that belongs to the part: a checkpoint's, the initial one, or leave that of now."""
        if key is None and not initial:
            return None
        pending = process.state.pending
        cut = process.storage.cuts[key] if key else self.initial
        record = recovering.checkpoint_of(process, key, self.table) if key else None
        process.replay = deque()
        process.state = State.of(cut)
        process.captures = {}
        if record is not None and key is not None and key[0] == CHECKPOINT:
            process.captures[int(key[1])] = cut
        self.network.give_back(pending, cut.taken)
        self.network.read_again(process.name, cut.taken)
        return record

    def _begin(self, process: Process, checkpoint: Record | None) -> None:
        make = self.protocol.coordinator if process.name == COORDINATOR else self.protocol.worker
        assert make is not None  # noqa: S101 - there is no process without a role
        process.begin_life(make(self._birth(process, checkpoint)))
        oracles.judge_restored(self.truth, self.everybody, process)
        if process.name in self.shown:
            oracles.judge_rows(self.shown[process.name], process)
        if self.recovering and all(each.incarnation == self.incarnation for each in self.everybody):
            self.recovering = False
        self._hand(process, Commanded("start", {"local_ms": process.clock.local(self.now)}))

    def _birth(self, process: Process, checkpoint: Record | None) -> Birth:
        return recovering.birth(process, self.graph, self.incarnation, self.table, self.settings, checkpoint)

    # -- what machines ask for -----------------------------------------------------------------------------------

    def _hand(self, process: Process, event: Event) -> None:
        """One event to the machine, its effects in order, and then what the application sends because of them."""
        machine = process.machine
        assert machine is not None  # noqa: S101 - choices of the dead do not exist
        for effect in machine.handle(event):
            self._carry_out(process, effect)
        if process.state.outbox:
            self._hand_out(process)

    def _hand_out(self, process: Process) -> None:
        outbox = process.state.outbox
        while outbox and OUT not in process.held and process.machine is not None:
            channel, body = outbox.popleft()
            for effect in process.machine.handle(AppSent(channel, body)):
                self._carry_out(process, effect)
            outbox = process.state.outbox

    def _carry_out(self, process: Process, effect: Effect) -> None:
        try:
            perform = _PERFORM[type(effect)]
        except KeyError:
            raise ProtocolViolation(f"{process.name} asks for {effect}, which this host does not know") from None
        perform(self, process, effect)

    def _send(self, process: Process, effect: Send) -> None:
        message, bit = effect.message, 0
        if effect.channel in self.network.queues or message.kind == APP:
            self._live(process)
            bit = self.truth.register(message, tuple(process.state.clock))
            if message.kind == APP and message.source == process.name:
                process.state.sent |= bit
        self.uid += 1
        self.network.put(effect.channel, Item(self.uid, message, bit))
        if self.moments is not None:
            self.tell(process.name, "send", str(message.body) if message.kind == APP else message.kind, self.uid)

    def _deliver(self, process: Process, effect: Deliver) -> None:
        event = effect.event
        if not isinstance(event, Received):
            raise ProtocolViolation(f"{process.name} delivers {event}, which is no message")
        bit = oracles.judge_delivery(self.truth, self.processes, process, event.message)
        state = process.state
        state.pending.pop(bit, None)
        state.received |= bit
        state.taken |= bit
        state.depend_on(self.truth.clocks[bit])
        state.rows.append(bit)
        if self.moments is not None:
            self.tell(process.name, "deliver", str(event.message.body))
        self._take_in(process, self.app.lineage(event.message.body))

    def _take_in(self, process: Process, lineage: str) -> None:
        """The application takes in a record and wants to pass it on."""
        state, app = process.state, self.app
        self._live(process)
        state.have |= app.bits[lineage]
        state.digest = app.digest(state.digest, lineage)
        state.outbox.extend((channel, app.body(child, state.digest)) for channel, child in app.routes[lineage])

    def _live(self, process: Process) -> None:
        """One more event of the process, for vector clocks."""
        process.events += 1
        process.state.lived |= 1 << process.events
        process.state.clock[process.number] = process.events

    def _drop(self, process: Process, effect: Drop) -> None:
        self._note("drop")
        event = effect.event
        if isinstance(event, Received) and event.message.kind == APP:
            bit = self.truth.of(event.message)
            if bit is not None:
                process.state.pending.pop(bit, None)
        if self.moments is not None:
            self.tell(process.name, "drop", effect.why)

    def _hold(self, process: Process, effect: Hold) -> None:
        process.held.add(effect.channel)

    def _release(self, process: Process, effect: Release) -> None:
        process.held.discard(effect.channel)

    def _capture(self, process: Process, effect: Capture) -> None:
        process.captures[effect.index] = process.state.cut()
        self._note("capture")
        self.tell(process.name, "capture", f"{effect.index} {effect.kind}")

    def _store(self, process: Process, effect: Store) -> None:
        cut = None
        if effect.key[0] == CHECKPOINT:
            cut = process.captures.get(int(effect.key[1])) or process.storage.cuts.get(effect.key)
            if cut is None:
                raise ProtocolViolation(f"{process.name} stores {effect.key}, which it never captured")
        process.writes.append(Write(effect.key, frame(effect.record), effect.token, cut))

    def _erase(self, process: Process, effect: Erase) -> None:
        process.storage.erase(effect.keys)
        self.tell(process.name, "erase", " ".join("/".join(key) for key in effect.keys))

    def _restore(self, process: Process, effect: Restore) -> None:
        """The process has met a newer incarnation: its part now, then what it met."""
        if process.incarnation < self.incarnation:
            self._do_restore(process.name)
        for event in effect.replay:
            self._hand(process, event)

    def _show(self, process: Process, effect: SinkTransaction) -> None:
        if effect.op is SinkOp.COMMIT:
            shown, rows = self.shown[process.name], process.state.rows
            if effect.first > len(shown) or effect.last > len(rows):
                what = f"{process.name} shows rows {effect.first + 1}..{effect.last} of {len(rows)} after {len(shown)}"
                raise TooEarly(what, [process.name])
            shown.extend(rows[len(shown) : effect.last])
            self._note("shown")
            self.tell(process.name, "publish", f"..{effect.last}")
        if SinkReplied in getattr(process.machine, "EVENTS", ()):
            process.replies.append(SinkReplied(effect.transaction, ok=True))

    def _set_timer(self, process: Process, effect: SetTimer) -> None:
        process.timers.append(Timer(process.clock.after(self.now, effect.delay_ms), effect))

    def _remark(self, process: Process, effect: Note) -> None:
        self._note(effect.what)
        self.tell(process.name, effect.what, effect.detail)

    def _note(self, what: str) -> None:
        self.count[what] = self.count.get(what, 0) + 1

    # -- the end -------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """No more faults."""
        self.budget = NO_FAULTS
        self.network.cut.clear()
        for process in self.everybody:
            process.paused = False

    def drain_choices(self) -> list[Choice]:
        """Work; without any, the earliest timeout. Periodic timers alone are quiescence."""
        found = self.choices()
        if found:
            return found
        timeouts = [choice for choice in self.timers() if not self._is_periodic(choice)]
        return timeouts[:1]

    def periodic(self) -> list[Choice]:
        """The periodic timers, at most one per process."""
        found = {choice[1]: choice for choice in reversed(self.timers()) if self._is_periodic(choice)}
        return list(found.values())

    def _is_periodic(self, choice: Choice) -> bool:
        process = self.processes[ProcessId(str(choice[1]))]
        number = choice[2]
        assert isinstance(number, int)  # noqa: S101 - our own choice
        return process.timers[number].setting.name == PERIODIC

    def judge(self) -> None:
        """O1, O2, O3, O10, O11 at the end."""
        network = self.network
        for process in self.everybody:
            queued = [
                str(item.message.body)
                for channel, queue in network.queues.items()
                if network.targets[channel] == process.name
                for item in queue
            ]
            oracles.judge_idle(process, queued)
        oracles.judge_end(self.app, self.truth, self.everybody)

    def counts(self) -> dict[str, int]:
        """Notes by name, and crash, recovery, capture, drop, shown."""
        return dict(self.count)

    def picture(self) -> Hashable:
        """Not yet."""
        raise NotImplementedError


_DO: dict[str, Callable[..., None]] = {
    kind: getattr(MessageWorld, f"_do_{kind}")
    for kind in (
        [
            "read",
            "deliver",
            "replay",
            "stored",
            "reply",
            "timer",
            "crash",
            "pause",
            "resume",
            "cut",
            "heal",
            "lose",
            "repeat",
            "recover",
            "restore",
        ]
    )
}
_PERFORM: dict[type[Effect], Callable[..., None]] = {
    Send: MessageWorld._send,
    Deliver: MessageWorld._deliver,
    Drop: MessageWorld._drop,
    Hold: MessageWorld._hold,
    Release: MessageWorld._release,
    Capture: MessageWorld._capture,
    Store: MessageWorld._store,
    Erase: MessageWorld._erase,
    Restore: MessageWorld._restore,
    SinkTransaction: MessageWorld._show,
    SetTimer: MessageWorld._set_timer,
    Note: MessageWorld._remark,
}
