"""The world of protocols over plain messages: processes, channels, stores, timers, failures, recoveries.

Choices (processes and channels by name, others by position):

| choice | effect |
|---|---|
| `read, p` | source `p` reads its next input |
| `deliver, channel, i` | the machine gets the i-th message of the channel; i is 0 on FIFO channels |
| `replay, p` | `p` gets the next message of the plan's replay |
| `stored, p, i, how` | the i-th write of `p` ends: `ok`, `failed`, `torn` |
| `publish, p` | the sink of `p` publishes its oldest requested rows and answers |
| `timer, p, i` | a timer of `p` expires |
| `tick, ms` | the time becomes `ms`; timed runs only |
| `crash, p` `recover` `restore, p` | a failure; the plan is decided; one process does its part |
| `freeze, p` | survivor `p` hears that a recovery begins; a staggered recovery is decided after all have |
| `suspect, p` | live process `p` is taken for dead: the next recovery replaces it |
| `haunt, i, what` | the i-th zombie takes its next message, input, timer or answer |
| `damage, p, i, how` | the i-th acknowledged record of `p` becomes `lost` or `torn`, silently |
| `late, p, i` | the i-th late write or publication of an ended incarnation of `p` arrives |
| `pause, p` `resume, p` `cut, p, q` `heal, p, q` | other faults of processes and links, and their ends |
| `lose, channel, i` `repeat, channel, i` | the i-th message of the channel is lost or duplicated |
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from checkpoint_lab import choosing, oracles
from checkpoint_lab.durable import CHECKPOINT, CONTRACT, Item, StateCut, Surroundings, Write
from checkpoint_lab.faults import NO_FAULTS, Clocks, Faults
from checkpoint_lab.job_recovery import KEEP, RecoverableJob, Zombie, channel_of, moves, now_of, records_of, with_row
from checkpoint_lab.picture import canonical, unordered
from checkpoint_lab.process import Link, Process, SinkPublication, judge_complete, judge_order, judge_up_to, missing
from checkpoint_lab.violations import NeverErased, NoEnd
from checkpoint_lab.world import Choice
from checkpoint_protocols.graph import COORDINATOR, Graph
from checkpoint_protocols.ids import ChannelId, Incarnation, ProcessId
from checkpoint_protocols.machine import Effect
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import (
    Birth,
    Failure,
    Key,
    Part,
    Protocol,
    ProtocolSettings,
    Record,
    Records,
    RecoveryPlan,
)
from checkpoint_protocols.transport import REPEAT
from checkpoint_protocols.vocabulary import Commanded, Erase, Received, Send, SinkReplied, Stored, TimerElapsed

if TYPE_CHECKING:
    from checkpoint_lab.job_recovery import RecoverableJob


# -- Oracle of leaks: records that a protocol stores, no recovery needs, and no step erases.
#
# A record is needed if some recovery without it would decide otherwise, or its process would begin its next incarnation
# otherwise. The recoveries tried are those of every single next failure, and of the failure of all processes (Wang and
# Fuchs, theorem 3).


NAMED_MAX = 5
"""Maximal number of leaked records in a message."""

AllRecords = dict[ProcessId, Records]


def judge_leaks(job: RecoverableJob) -> None:
    """Judge O17, at quiescence after every process has taken a final checkpoint."""
    leaked = leaks(job)
    if leaked:
        names = [f"{process}:{'/'.join(key)}" for process, key in leaked]
        more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
        what = f"stored for ever and needed by no recovery: {names[:NAMED_MAX]}{more}"
        raise NeverErased(what, [process for process, _ in leaked], names)


def leaks(job: RecoverableJob) -> list[tuple[ProcessId, Key]]:
    """Return the records that can be left out, one after the other, without any effect."""
    kept: AllRecords = {each.name: records_of(each, job.table) for each in job.everybody}
    futures = _Futures(job)
    before = futures.of(kept)
    found: list[tuple[ProcessId, Key]] = []
    # a list, because `kept` loses each record that is found
    for process, records in list(kept.items()):
        for key in records:
            # a record counts as leaked if it can go together with those found before
            fewer = {**kept, process: {each: record for each, record in kept[process].items() if each != key}}
            if futures.of(fewer, before) == before:
                kept = fewer
                found.append((process, key))
    return found


class _Futures:
    """The outcome of each next failure, for given records."""

    def __init__(self, job: RecoverableJob) -> None:
        self.job = job
        self.number = Incarnation(job.incarnation + 1)
        self.now: Mapping[ProcessId, Record] = {
            each.name: now_of(each) for each in job.everybody if each.machine is not None
        }
        everybody = frozenset(job.processes)
        self.failures = [everybody, *(frozenset({name}) for name in job.processes)]

    def of(self, records: AllRecords, expected: list[Hashable] | None = None) -> list[Hashable]:
        """Return one picture per failure; stop at the first that differs from `expected`."""
        found: list[Hashable] = []
        for place, failed in enumerate(self.failures):
            found.append(self._after(failed, records))
            if expected is not None and found[place] != expected[place]:
                break
        return found

    def _after(self, failed: frozenset[ProcessId], records: AllRecords) -> Hashable:
        survivors = {name: record for name, record in self.now.items() if name not in failed}
        job = self.job
        failure = Failure(job.graph, self.number, dict(job.table), failed, records, survivors)
        try:
            plan = job.protocol.plan(failure)
            return (canonical(plan.row), tuple(self._begin(name, plan, failed, records) for name in job.processes))
        except Exception as error:  # noqa: BLE001 - that it cannot be done is an answer too
            return type(error).__name__

    def _begin(
        self, name: ProcessId, plan: RecoveryPlan, failed: frozenset[ProcessId], records: AllRecords
    ) -> Hashable:
        now = None if name in failed else self.now.get(name)
        part = plan.parts.get(name, KEEP)
        if self.job.protocol.rejoin is not None and now is not None:
            part = self.job.protocol.rejoin(plan, self._birth(name, plan, now, records))
        stays = now is not None and not moves(part)
        checkpoint = now if stays else records[name].get(part.checkpoint or ())
        # the part names the record that was left out
        if part.checkpoint is not None and checkpoint is None:
            return ("nothing", canonical(part))
        make = self.job.protocol.coordinator if name == COORDINATOR else self.job.protocol.worker
        assert make is not None  # noqa: S101 - there is no process without a role
        machine = make(self._birth(name, plan, checkpoint, records))
        effects = machine.handle(Commanded("start", {"local_ms": 0}))
        # a record that is only erased, or reported to others, is not used
        told = [effect for effect in effects if not isinstance(effect, Erase) and not _is_report(effect)]
        return (_picture(part), machine.phase, canonical(machine.record()), canonical(told))

    def _birth(self, name: ProcessId, plan: RecoveryPlan, checkpoint: Record | None, records: AllRecords) -> Birth:
        return self.job.birth(name, self.number, with_row(self.job.table, plan), checkpoint, records[name])


def _is_report(effect: Effect) -> bool:
    return isinstance(effect, Send) and effect.message.kind != APP


def _picture(part: Part) -> Hashable:
    return (part.checkpoint, part.initial, canonical(part.replay))


# -- Partial-order reduction: steps that affect no other process are taken first, in one order only.
#
# Once nothing can fail, two kinds of steps of a process touch only its own state:
#
# - Its part of a recovery, if it waits for it and has nothing under way. No event reaches it before, so no step of
#   another process can come between. It returns messages to the heads of its channels, and others append to the tails.
# - The rows that its sink has still to show, if its machine gets no answer from the sink.
#
# Each is a persistent set of one choice: any other step leads to the same state before it as after it. A step that
# changes the state by which others are judged (`public`) does not qualify. While anything can fail there is no such set,
# because a failure depends on the current state of every process.


JUDGED_AT = ("complete", "shown")
"""Notes at which the durable records of every process are judged."""


def enough(world: MessageWorld, choices: Sequence[Choice]) -> Sequence[Choice]:
    """Return one choice that need not be tried in every order with the others; all choices if there is none."""
    # a coming recovery reads the state of every process
    if world.alarm or can_fail(world):
        return choices
    for process in world.everybody:
        first = _first(world, process)
        if first is not None and first in choices:
            return [first]
    return choices


def can_fail(world: MessageWorld) -> bool:
    """Return True if a fault may still happen or end."""
    # `staggered` is a way to recover and no fault
    spent = replace(world.budget, staggered=False) == NO_FAULTS
    return not spent or bool(world.zombies or world.network.cut) or any(each.paused for each in world.everybody)


def public(world: MessageWorld) -> Hashable:
    """Return the state by which others are judged: valid durable records, and the number of judgements."""
    standing = tuple(tuple(records_of(process, world.table)) for process in world.everybody)
    return standing, tuple(world.count.get(what, 0) for what in JUDGED_AT)


def _first(world: MessageWorld, process: Process) -> Choice | None:
    if process.frozen or process.machine is None:
        return None if process.writes or process.publishing else ("restore", process.name)
    told = SinkReplied in process.machine.EVENTS
    return ("publish", process.name) if process.publishing and not told else None


DEFAULT = ProtocolSettings()
NEXT_FAILURES_EVERY = 4
"""Quiescent ends per check of O12 against every next failure: the check takes as long as a quarter of the run."""

LEAKS_EVERY = 32
"""Quiescent ends per check of O17 against every record: the check takes as long as a run."""


class MessageWorld(RecoverableJob):
    """One job under one protocol. `inputs` per source, `loops` around back edges."""

    LAGGARDS: tuple[str, ...] = ("", "publish", "stored", "deliver", "read", "restore", "recover", "control")

    def __init__(
        self,
        protocol: Protocol,
        graph: Graph,
        faults: Faults = NO_FAULTS,
        inputs: int = 3,
        loops: int = 1,
        settings: ProtocolSettings = DEFAULT,
        clocks: Clocks | None = None,
        surroundings: Surroundings = CONTRACT,
    ) -> None:
        super().__init__(protocol, graph, faults, inputs, loops, settings, clocks or Clocks(), surroundings)
        self.zombies = []
        self.complete_before_calm = 0
        for process in self.everybody:
            self.begin(process, None)

    def choices(self) -> list[Choice]:
        """Return reads, deliveries, replays, successful writes and recovery steps."""
        return choosing.work(self)

    def put_off(self, choices: Sequence[Choice], laggard: str) -> Sequence[Choice]:
        """Return the choices of other sorts than `laggard`; `control` and other deliveries are two sorts."""
        controls = self.network.controls
        if laggard == "control":
            return [choice for choice in choices if choice[0] != "deliver" or choice[1] not in controls]
        if laggard == "deliver":
            return [choice for choice in choices if choice[0] != "deliver" or choice[1] in controls]
        return [choice for choice in choices if choice[0] != laggard]

    def timers(self) -> list[Choice]:
        """Return the timers of all working processes, the earliest first."""
        return choosing.timers(self)

    def faults(self) -> list[Choice]:
        """Return the faults that the budget still allows, and the ends of pauses and partitions."""
        return choosing.faults(self)

    def do(self, choice: Choice) -> None:
        """Perform one choice of the module's table."""
        self.act(choice)

    def _do_read(self, name: ProcessId) -> None:
        process = self.processes[name]
        lineage = f"{name}.{process.state.cursor}"
        process.state.cursor += 1
        self.tell(name, "read", lineage)
        self.take_in(process, lineage)
        self.hand_out(process)

    def _do_deliver(self, channel: ChannelId, position: int) -> None:
        self.take_from(self.processes[self.network.targets[channel]], channel, position)

    def take_from(self, process: Process, channel: ChannelId, position: int, more: bool = False) -> None:
        """Hand in the message at a position of a channel. `more`: the process's batch continues after it."""
        item = self.network.take(channel, position)
        message = item.message
        if item.bit:
            # Taken from now on. If the machine neither delivers nor drops it, the end of the incarnation gives it back to its
            # channel.
            process.state.taken |= item.bit
            if message.kind == APP:
                process.state.pending[item.bit] = (channel, item)
        if self.moments is not None:
            self.tell(process.name, "receive", message.kind, item.uid)
        # control messages on lossy lines pass the transport first, which drops repeats
        if process.transport is not None and channel in self.network.controls:
            self.carry(process, Received(channel, message))
        else:
            self.hand(process, Received(channel, message, more=more))

    def _do_replay(self, name: ProcessId) -> None:
        process = self.processes[name]
        message = process.replay.popleft()
        self.tell(name, "replay", str(message.body))
        self.hand(process, Received(channel_of(message), message, replayed=True))

    def _do_stored(self, name: ProcessId, number: int, how: str) -> None:
        process = self.processes[name]
        write = process.writes.pop(number)
        self.tell(name, "stored" if how == "ok" else how, "/".join(write.key))
        if how == "ok":
            how = process.storage.admit(process.incarnation, write)
        elif how == "torn":
            self.spend("torn")
            process.storage.tear(write)
        else:
            self.spend("store_errors")
        if process.machine is not None:
            if how == "ok":
                # only a record whose acknowledgement a live machine got can be damaged later
                process.storage.acknowledgements.give(write.key)
            self.hand(process, Stored(write.token, how == "ok"))

    def _do_publish(self, name: ProcessId) -> None:
        process = self.processes[name]
        done = self.publish(process)
        if process.machine is not None and SinkReplied in process.machine.EVENTS:
            self.hand(process, SinkReplied(done.transaction, ok=True))

    def _do_tick(self, now: int) -> None:
        self.now = max(self.now, now)

    def _do_timer(self, name: ProcessId, number: int) -> None:
        process = self.processes[name]
        timer = process.timers.pop(number)
        # a timer chosen before an earlier one must not turn the time back
        self.now = max(self.now, timer.due)
        elapsed = timer.setting.elapsed
        if isinstance(elapsed, TimerElapsed):
            elapsed = TimerElapsed(elapsed.name, elapsed.timer, process.clock.local(self.now))
        self.tell(name, "timer", timer.setting.name)
        if timer.setting.name == REPEAT:
            self.carry(process, elapsed)
        else:
            self.hand(process, elapsed)

    def _do_crash(self, name: ProcessId) -> None:
        self.crash(self.processes[name])

    def _do_suspect(self, name: ProcessId) -> None:
        self.suspect(self.processes[name])

    def _do_freeze(self, name: ProcessId) -> None:
        self.freeze(self.processes[name])

    def _do_recover(self) -> None:
        self.recover()

    def _do_restore(self, name: ProcessId) -> None:
        self.join(self.processes[name])

    def _do_pause(self, name: ProcessId) -> None:
        self.spend("pauses")
        self.processes[name].paused = True
        self.tell(name, "pause")

    def _do_resume(self, name: ProcessId) -> None:
        self.processes[name].paused = False
        self.tell(name, "resume")

    def _do_cut(self, one: str, other: str) -> None:
        self.spend("partitions")
        self.network.cut.add(Link((one, other)))
        self.tell(one, "cut", other)

    def _do_heal(self, one: str, other: str) -> None:
        self.network.cut.discard(Link((one, other)))
        self.tell(one, "heal", other)

    def _do_lose(self, channel: ChannelId, position: int) -> None:
        self.spend("control_losses" if channel in self.network.controls else "losses")
        item = self.network.take(channel, position)
        what = str(item.message.body) if item.message.kind == APP else item.message.kind
        self.tell(item.message.target, "lose", what, item.uid)

    def _do_repeat(self, channel: ChannelId, position: int) -> None:
        self.spend("control_repeats" if channel in self.network.controls else "duplicates")
        self.network.repeat(channel, position)

    def _do_damage(self, name: ProcessId, number: int, how: str) -> None:
        self.spend("damages")
        storage = self.processes[name].storage
        key = storage.intact()[number]
        storage.damage(key, how)
        self.note(f"acknowledged, then {how}")
        self.tell(name, how, "/".join(key))

    def _do_late(self, name: ProcessId, number: int) -> None:
        self.spend("late")
        process = self.processes[name]
        incarnation, late = process.late.pop(number)
        what = "/".join(late.key) if isinstance(late, Write) else f"..{late.last}"
        self.tell(name, "late", f"{what} of incarnation {incarnation}")
        if isinstance(late, Write):
            process.storage.admit(incarnation, late)
        # the fence of the store decides whether a late publication of an old incarnation still shows
        elif process.storage.fence.admits(incarnation):
            self.show(process, late)

    def _do_haunt(self, number: int, what: str) -> None:
        zombie = self.zombies[number]
        self.tell(zombie.name, "haunt", what)
        if not zombie.act(self, what):
            self.zombies.remove(zombie)

    def calm(self) -> None:
        """End all faults."""
        self.budget = NO_FAULTS
        self.complete_before_calm = self.count.get("complete", 0)
        self.network.cut.clear()
        self.zombies.clear()
        for process in self.everybody:
            process.paused = False

    def drain_choices(self) -> list[Choice]:
        """Return work; without any, the earliest timeout. Periodic timers alone count as quiescence."""
        found = self.choices()
        if found:
            return found
        timeouts = [choice for choice in self.timers() if not choosing.is_periodic(self, choice)]
        return timeouts[:1]

    def periodic(self) -> list[Choice]:
        """Return the periodic timers, at most one per process."""
        # reversed, so that the earliest timer of a process is the one that stays
        found = {choice[1]: choice for choice in reversed(self.timers()) if choosing.is_periodic(self, choice)}
        return list(found.values())

    def judge(self) -> None:
        """Judge the end: O1, O2, O3, O10, O12."""
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
        for sink in self.sinks.values():
            judge_order(sink, self.processes[sink.name].state.rows)
        if self.complete is not None:
            delivered = {name: cut.rows[1] for name, cut in self.complete.items()}
            judge_up_to(self.sinks.values(), delivered)
        if self.protocol.output.at_once:
            self.judge_output()
        if self._is_due(NEXT_FAILURES_EVERY):
            self.judge_next_failures()

    def judge_rest(self) -> None:
        """O10: every checkpoint that began has ended."""
        for process in self.everybody if self.protocol.sound else ():
            oracles.judge_rest(process)

    def owes(self) -> bool:
        """Return True if the sinks miss rows."""
        return missing(self.app, self.sinks.values()) > 0

    def judge_output(self) -> None:
        """O16: the sinks show every row."""
        judge_complete(self.app, self.sinks.values())

    def judge_rounds(self) -> None:
        """O10: without faults, checkpoints complete that only the coordinator begins, and logs get shorter by checkpoints.

        Also judges O16 and O17.
        """
        beginners = {choice[1] for choice in self.periodic()}
        if beginners == {COORDINATOR} and self.count.get("complete", 0) == self.complete_before_calm:
            raise NoEnd("nothing fails any more, and no checkpoint completes")
        # elsewhere the rows that `judge_output` misses wait for a checkpoint
        if self.protocol.output.at_once:
            for name in self.graph.processes:
                self._judge_saved(self.processes[name])
        self.judge_output()
        if self._is_due(LEAKS_EVERY):
            judge_leaks(self)

    def _judge_saved(self, process: Process) -> None:
        newest = max((key for key in records_of(process, self.table) if key[0] == CHECKPOINT), default=None)
        saved, state = process.storage.cuts[newest] if newest else self.initial, process.state
        # sends follow from receipts; only a source has no other work
        if saved.received != state.received or (process.is_source and saved.sent != state.sent):
            raise NoEnd(f"{process.name} takes no checkpoint any more, and its log grows", [process.name])

    def _is_due(self, every: int) -> bool:
        # long runs are few, so each of their ends is checked
        return self.stretch > 1 or self.step % every == 0

    def counts(self) -> dict[str, int]:
        """Return counts of notes by name, of rows at sinks, of messages and of writes."""
        return {
            **self.count,
            "rows shown": sum(len(sink.rows) for sink in self.sinks.values()),
            "rows shown again": sum(sink.again for sink in self.sinks.values()),
            "rows not shown": missing(self.app, self.sinks.values()),
            "messages": self.sent_by_application,
            "protocol messages": self.sent_by_protocol,
            "writes": self.stored,
            "bytes written": self.stored_bytes,
            **({"damage found": found} if (found := sum(each.storage.found for each in self.everybody)) else {}),
        }

    def names(self) -> list[str]:
        """Return the graph's processes and the coordinator."""
        return list(self.processes)

    def shared(self) -> tuple[object, ...]:
        """Return the protocol, its graph and the values derived from them."""
        return (self.protocol, self.graph, self.app, self.settings)

    def enough(self, choices: Sequence[Choice]) -> Sequence[Choice]:
        """Return a sufficient subset of `choices` once nothing can fail (see `enough`)."""
        return enough(self, choices)

    def public(self) -> Hashable:
        """Return the durable records and the number of times that they were judged."""
        return public(self)

    def picture(self) -> Hashable:
        """Return the state without clocks, numbers for display, derived truth and completed plans."""
        network, labels = self.network, self.truth.labels
        return (
            tuple(_picture_of(process, labels) for process in self.everybody),
            tuple(_picture_of_replaced(each, labels) for each in self.zombies),
            # late arrivals and damage are possible while the budget has some
            tuple(_late(process, labels) for process in self.everybody) if self.budget.late else (),
            tuple(tuple(process.storage.intact()) for process in self.everybody) if self.budget.damages else (),
            tuple((channel, _items(queue, labels)) for channel, queue in network.queues.items()),
            tuple(
                (channel, unordered(_items(queue, labels)))
                for channel, queue in sorted(network.controls.items())
                if queue
            ),
            unordered(network.cut),
            canonical((self.budget, self.table, self.alarm, self.recovering)),
            canonical((self.plan, self.planned_for)) if self.recovering else (),
            tuple((sink.marker, tuple(map(labels, sink.rows))) for sink in self.sinks.values()),
        )


Labels = Callable[[int], Hashable]
"""A function from a mask to a hashable description of its messages."""


def _items(queue: list[Item], labels: Labels) -> tuple[Hashable, ...]:
    return tuple((labels(item.bit), canonical(item.message)) for item in queue)


def _picture_of(process: Process, labels: Labels) -> Hashable:
    state = process.state
    return (
        canonical(process.machine),
        process.incarnation,
        (process.frozen, process.paused, process.suspected),
        canonical(process.transport),
        unordered(process.held),
        unordered(timer.setting for timer in process.timers),
        unordered((write.key, write.framed) for write in process.writes),
        (tuple(_publication(each, labels) for each in process.publishing), canonical(process.replay)),
        tuple((index, _cut(cut, labels)) for index, cut in sorted(process.captures.items())),
        _cut(state.cut(), labels),
        tuple(sorted(process.storage.framed.items())),
        tuple(sorted(process.storage.copies.items())),
    )


def _picture_of_replaced(zombie: Zombie, labels: Labels) -> Hashable:
    return (
        (zombie.name, zombie.incarnation, tuple(zombie.shown_as)),
        canonical((zombie.machine, zombie.transport, zombie.held, zombie.refused, zombie.replay)),
        canonical([timer.setting for timer in zombie.timers]),
        tuple((channel, _items(list(queue), labels)) for channel, queue in zombie.inbox.items()),
        tuple((key, _cut(cut, labels)) for key, cut in sorted(zombie.cuts.items())),
        _cut(zombie.state.cut(), labels),
    )


def _late(process: Process, labels: Labels) -> Hashable:
    return tuple(
        (life, (each.key, each.framed) if isinstance(each, Write) else _publication(each, labels))
        for life, each in process.late
    )


def _publication(publication: SinkPublication, labels: Labels) -> Hashable:
    return (publication.transaction, publication.first, publication.last, tuple(map(labels, publication.rows)))


def _cut(cut: StateCut, labels: Labels) -> Hashable:
    rows, length = cut.rows
    pending = tuple(labels(bit) for bit in sorted(cut.pending))
    masks = (labels(cut.sent), labels(cut.received), labels(cut.taken), pending)
    return (cut.cursor, cut.digest, tuple(map(labels, rows[:length])), cut.outbox, *masks)
