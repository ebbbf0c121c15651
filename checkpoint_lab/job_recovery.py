"""Failures and recoveries of a job: incarnations begin and end, plans are decided and carried out, lines are judged.

A line is judged at three moments: when a plan chooses it, when a checkpoint is called complete, and when a sink
publishes rows. In the last two cases the judge computes the plan that would follow if all processes failed now.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

from checkpoint_lab import oracles
from checkpoint_lab.durable import CHECKPOINT, State, StateCut, Write, as_stored, frame
from checkpoint_lab.job import JobWorld
from checkpoint_lab.oracles import CutLine
from checkpoint_lab.process import Network, Process, SinkPublication, Timer
from checkpoint_lab.violations import ErasedTooEarly, Incomplete, NotDurable, Violation
from checkpoint_protocols.graph import COORDINATOR, channel_between
from checkpoint_protocols.ids import ChannelId, Incarnation, ProcessId
from checkpoint_protocols.incarnation import Line, RollbackTable
from checkpoint_protocols.machine import Effect, Event, ProtocolViolation
from checkpoint_protocols.recovery import (
    Birth,
    Failure,
    Key,
    Part,
    Record,
    Records,
    RecoveryPlan,
    checkpoint_key,
)
from checkpoint_protocols.transport import REPEAT, Asked, Joined
from checkpoint_protocols.vocabulary import (
    OUT,
    AppSent,
    CaptureState,
    Commanded,
    Deliver,
    Envelope,
    Erase,
    Hold,
    Json,
    Received,
    Release,
    Restore,
    Send,
    SetTimer,
    SinkTransaction,
    Stored,
    StoreRecord,
)

# -- A recovery from the host's side: the input of a plan, and the knowledge of a new incarnation.


KEEP = Part(None)
"""The part of a process that the plan does not name."""


def moves(part: Part) -> bool:
    """Return True if the process leaves its current state."""
    return part.checkpoint is not None or part.initial


def now_of(process: Process) -> Record:
    """Return a living process's current record, as a reader would get it."""
    assert process.machine is not None  # noqa: S101 - callers ask only for the living
    return as_stored(process.machine.record())


def records_of(process: Process, table: RollbackTable, erased_too: bool = False) -> Records:
    """Return the durable records without those of undone futures."""
    return process.storage.standing(process.name, table, erased_too)


def forget_undone(process: Process, table: RollbackTable) -> None:
    """Discard the records of undone futures: no plan and no new incarnation may read them again."""
    readable = process.storage.readable()
    undone = readable.keys() - process.storage.standing(process.name, table).keys()
    if undone:
        process.storage.discard(undone)


def with_row(table: RollbackTable, plan: RecoveryPlan) -> dict[Incarnation, Line]:
    """Return the table after the fence."""
    return {**table, plan.incarnation: plan.row}


def channel_of(message: Envelope) -> ChannelId:
    """Return the channel that a message was sent on."""
    return channel_between(message.source, message.target)


def checkpoint_of(process: Process, key: Key, table: RollbackTable) -> Record:
    """Return the record that a part names. Raises `NotDurable` if there is none."""
    record = records_of(process, table).get(key)
    if record is None:
        raise NotDurable(f"the plan sends {process.name} back to {key}, which is not there", [process.name])
    return record


def messages_in(value: Json) -> list[Envelope]:
    """Return all messages that a record contains, at any depth."""
    if isinstance(value, Mapping):
        if value.keys() >= _ENVELOPE:
            return [Envelope.of(value)]
        return [message for each in value.values() for message in messages_in(each)]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [message for each in value for message in messages_in(each)]
    return []


_ENVELOPE = {field.name for field in fields(Envelope)}


# -- A zombie: a replaced incarnation that has not noticed and continues to work with the state that it has.
#
# It keeps its state, its timers and the messages on their way to it; it receives nothing new. Its messages go out in the
# name of its old incarnation. Its writes, erasures and publications meet the fence of its process. The oracles judge the
# other processes only.


class Zombie:
    """One replaced incarnation. `process` is its successor's name and store."""

    def __init__(self, process: Process, network: Network, names: list[str]) -> None:
        self.process = process
        self.name = process.name
        self.machine, self.incarnation, self.transport = process.machine, process.incarnation, process.transport
        self.is_source = process.is_source
        # a copy, since the state itself is the successor's from now on
        self.state = State.of(process.state.cut())
        self.held = set(process.held)
        # without the transport's timers: `act` hands every timer to the machine
        self.timers = [timer for timer in process.timers if timer.setting.name != REPEAT]
        self.shown_as = names
        """Lineages of its delivered rows."""
        self.refused = deque(write.token for write in process.writes)
        """Writes whose answers it waits for."""
        self.cuts: dict[Key, StateCut] = dict(process.storage.cuts)
        self.replay = deque(process.replay)
        # copies, since the same messages reach the successor: the network cannot tell both apart
        self.inbox = {
            channel: deque(queue)
            for channel, queue in (*network.queues.items(), *network.controls.items())
            if network.targets[channel] == self.name
        }

    def can(self, inputs: int) -> Iterable[str]:
        """Yield the next steps that it can do."""
        if self.replay:
            yield "replay"
        elif any(queue and channel not in self.held for channel, queue in self.inbox.items()):
            yield "hear"
        if not self.replay and self.is_source and self.state.cursor < inputs and not self.state.outbox:
            yield "read"
        if self.timers:
            yield "timer"
        if self.refused:
            yield "answer"

    def act(self, job: RecoverableJob, what: str) -> bool:
        """Perform one step. Return False if the zombie learned that it was replaced."""
        match what:
            case "replay":
                message = self.replay.popleft()
                return self._hand(job, Received(channel_of(message), message, replayed=True))
            case "hear":
                return self._hear(job)
            case "read":
                lineage = f"{self.name}.{self.state.cursor}"
                self.state.cursor += 1
                self._take_in(job, lineage)
                return self._hand_out(job)
            case "timer":
                return self._hand(job, self.timers.pop(0).setting.elapsed)
        # the fence refuses every write of a zombie, so each answer is a failure
        return self._hand(job, Stored(self.refused.popleft(), ok=False))

    def _hear(self, job: RecoverableJob) -> bool:
        channel = next(channel for channel, queue in self.inbox.items() if queue and channel not in self.held)
        event: Event = Received(channel, self.inbox[channel].popleft().message)
        if self.transport is None or channel in job.network.queues:
            return self._hand(job, event)
        heard = [effect.event for effect in self.transport.handle(event) if isinstance(effect, Deliver)]
        return all(self._hand(job, each) for each in heard)

    def _hand(self, job: RecoverableJob, event: Event) -> bool:
        assert self.machine is not None  # noqa: S101 - the dead are not replaced by mistake
        for effect in self.machine.handle(event):
            if isinstance(effect, Restore):
                # its machine met a newer incarnation and asks for a restore: the zombie ends
                return False
            self._carry_out(job, effect)
        return self._hand_out(job)

    def _hand_out(self, job: RecoverableJob) -> bool:
        if not self.state.outbox or OUT in self.held:
            return True
        return self._hand(job, AppSent(*self.state.outbox.popleft()))

    def _carry_out(self, job: RecoverableJob, effect: Effect) -> None:
        fence = self.process.storage.fence
        match effect:
            case Send():
                self._send(job, effect)
            case Deliver(Received(_, message)):
                # 0 for a message that no process has sent but another zombie
                self.state.rows.append(job.truth.of(message) or 0)
                self.shown_as.append(job.app.lineage(message.body))
                self._take_in(job, self.shown_as[-1])
            case StoreRecord(key, record, token):
                self.refused.append(token)
                # a late write: the fence decides about it when it arrives
                self.process.late.append((self.incarnation, Write(key, frame(record), token, self.cuts.get(key))))
            case CaptureState(index):
                self.cuts[checkpoint_key(index)] = self.state.cut()
            case Erase(keys) if fence.admits(self.incarnation):
                self.process.storage.erase(keys)
            case SinkTransaction(name, first, last):
                rows, names = tuple(self.state.rows[first:last]), tuple(self.shown_as[first:last])
                self.process.late.append((self.incarnation, SinkPublication(name, first, last, rows, names)))
            case Hold(channel):
                self.held.add(channel)
            case Release(channel):
                self.held.discard(channel)
            case SetTimer():
                self.timers.append(Timer(job.now, effect))

    def _send(self, job: RecoverableJob, effect: Send) -> None:
        """Send a message: control messages pass the transport, application messages stay unknown to the truth."""
        channel: ChannelId = effect.channel
        if self.transport is None or channel in job.network.queues:
            known = channel in job.network.queues
            bit = job.truth.hear_ghost(effect.message, self.state.clock) if known else 0
            job.put(self.process, channel, effect.message, bit)
            return
        for each in self.transport.handle(Asked(effect.message)):
            if isinstance(each, Send):
                job.put(self.process, each.channel, each.message)

    def _take_in(self, job: RecoverableJob, lineage: str) -> None:
        state, app = self.state, job.app
        state.have |= app.bits[lineage]
        state.digest = app.digest(state.digest, lineage)
        state.outbox.extend((channel, app.body(child, state.digest)) for channel, child in app.routes[lineage])


NO_PLAN = (KeyError, IndexError, ValueError, StopIteration, ProtocolViolation)
"""Errors of a planner that does not find the records that it needs."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Flaws of one line: messages received and not sent, and sent messages that are lost."""

    index: str
    orphans: tuple[str, ...]
    lost: tuple[str, ...]


class RecoverableJob(JobWorld):
    """A job that survives failures of its processes."""

    audits: list[Audit] | None = None
    """A list that collects audits of complete lines instead of judging them, for counter-examples; None to judge."""

    judged: tuple[Incarnation, str] | None = None
    """Incarnation and index of the latest judged checkpoint: the same claim again is not judged again."""

    planned_total: tuple[tuple[int, ...], RecoveryPlan] | None = None
    """Plan for a failure of all processes, with the durable state that it was computed from."""

    complete: CutLine | None = None
    """The newest line that was called complete."""

    zombies: list[Zombie]
    """Replaced incarnations that have not noticed."""

    # -- incarnations --------------------------------------------------------------------------------------------

    def begin(self, process: Process, checkpoint: Record | None) -> None:
        """Begin a new incarnation of `process`, whose state is already in place."""
        # First of all: the new machine reads the records that are left, and must not find an undone future among them.
        forget_undone(process, self.table)
        make = self.protocol.coordinator if process.name == COORDINATOR else self.protocol.worker
        assert make is not None  # noqa: S101 - there is no process without a role
        process.begin_life(make(self._birth(process, checkpoint)))
        # a survivor's fence rises here, since its old incarnation has written until now
        process.storage.fence.raise_to(self.incarnation)
        self._connect(process)
        if self.incarnation > 1:
            self._judge_beginning(process)
        self.hand(process, Commanded("start", {"local_ms": process.clock.local(self.now)}))

    def _connect(self, process: Process) -> None:
        make = self.surroundings.transport
        if process.transport is not None:
            # a live process keeps its transport: the message that announced this incarnation may be repeated
            self.carry(process, Joined(self.incarnation))
        elif self.lossy and make is not None:
            process.transport = make(process.name, self.incarnation)

    def _judge_beginning(self, process: Process) -> None:
        oracles.judge_restored(self.truth, self.everybody, process)
        if process.name in self.sinks and not self.truth.deterministic:
            oracles.judge_rows(self.sinks[process.name].rows, process)
        if all(each.incarnation == self.incarnation for each in self.everybody):
            self.recovering = False

    def _birth(self, process: Process, checkpoint: Record | None) -> Birth:
        records = records_of(process, self.table)
        return self.birth(process.name, self.incarnation, self.table, checkpoint, records)

    def birth(
        self,
        name: ProcessId,
        incarnation: Incarnation,
        table: RollbackTable,
        checkpoint: Record | None,
        records: Records,
    ) -> Birth:
        """Return the knowledge of a new incarnation of a process. The sink's own marker says which rows it shows."""
        shown = self.sinks[name].marker if name in self.sinks else 0
        return Birth(name, self.graph, incarnation, dict(table), self.settings, checkpoint, records, shown)

    def crash(self, process: Process) -> None:
        """Kill a process: its machine and its state are lost."""
        self.spend("crashes")
        process.die()
        self.alarm = True
        self.note("crash")
        self.tell(process.name, "crash")

    # -- a recovery ----------------------------------------------------------------------------------------------

    def suspect(self, process: Process) -> None:
        """Take a live process for dead; it continues to work."""
        self.spend("suspicions")
        process.suspected = self.alarm = True
        self.note("suspicion")
        self.tell(process.name, "suspect")

    def _replace_suspects(self) -> None:
        """Replace each suspected process: every other process treats it as dead, and it continues as a zombie."""
        for process in self.everybody:
            if process.suspected:
                names = [self.app.lineage(self.truth.message(bit).body) for bit in process.state.rows]
                self.zombies.append(Zombie(process, self.network, names))
                process.die()

    def freeze(self, process: Process) -> None:
        """Stop a process that hears of a recovery until it knows its part."""
        process.frozen = True
        self.note("freeze")
        self.tell(process.name, "freeze")

    def recover(self) -> None:
        """Decide the plan of a recovery and make its new row durable: the fence."""
        number = Incarnation(self.incarnation + 1)
        self._replace_suspects()
        failed = self._failed()
        given = self._failure(number, failed)
        plan = self._plan(given)
        if plan.incarnation != number:
            raise ProtocolViolation(f"the plan is of incarnation {plan.incarnation}, not {number}")
        self._judge_plan(plan, given)
        self.incarnation = number
        # G5: the row is durable before any process restores, so a message of the undone future is known as such from
        # here on
        self.table = with_row(self.table, plan)
        self.plan, self.planned_for = plan, failed
        if self.recovering:
            self.note("recovery within a recovery")
        self.alarm, self.recovering = False, True
        for process in self.everybody:
            self._fence(process, process.name in failed)
        self.note("recovery")
        row = (
            ", ".join(f"{p}:{index}" for p, index in sorted(plan.row.items()))
            if isinstance(plan.row, Mapping)
            else plan.row
        )
        self.tell("", "recover", f"{number} from {row}")

    def _fence(self, process: Process, failed: bool) -> None:
        if failed:
            process.machine = process.transport = None
            process.abandon_work()
            # The fence of a failed process rises with the plan, before its successor begins: a late write would change the
            # records that the plan was computed from.
            process.storage.fence.raise_to(self.incarnation)
        # late arrivals are kept only while the budget allows them
        if not self.budget.late:
            process.late = []
        # with `rejoin`, survivors work until the news reaches them
        process.frozen = failed or self.protocol.rejoin is None

    def _failed(self) -> frozenset[ProcessId]:
        # A frozen process that has not done its part yet still has the state that the last plan has undone.
        void = {
            each.name
            for each in self.everybody
            if self.plan
            and each.frozen
            and each.incarnation < self.incarnation
            and moves(self.plan.parts.get(each.name, KEEP))
        }
        return frozenset(void.union(each.name for each in self.everybody if each.machine is None))

    def _failure(self, number: Incarnation, failed: frozenset[ProcessId], erased_too: bool = False) -> Failure:
        """Return the facts that `Protocol.plan` may use. `erased_too`: as if nothing had been erased."""
        records = {each.name: records_of(each, self.table, erased_too) for each in self.everybody}
        survivors = {each.name: now_of(each) for each in self.everybody if each.name not in failed}
        return Failure(self.graph, number, dict(self.table), failed, records, survivors)

    def join(self, process: Process) -> None:
        """Do the process's part of the newest plan. A live process waits for its sink first."""
        plan = self.plan
        assert plan is not None  # noqa: S101 - else the choice does not exist
        # queued publications land before the restore replaces the state that they are of
        while process.publishing:
            self.publish(process)
        now = now_of(process) if process.machine is not None else None
        part = plan.parts.get(process.name, KEEP)
        if self.protocol.rejoin is not None and now is not None:
            part = self.protocol.rejoin(plan, self._birth(process, now))
        checkpoint = self._go_back(process, part, now)
        process.replay.extend(part.replay)
        place = "now" if now is not None and not moves(part) else "start"
        if part.checkpoint is not None:
            place = str(int(part.checkpoint[1])) if part.checkpoint[0] == CHECKPOINT else "/".join(part.checkpoint)
        self.tell(process.name, "return", place)
        self.tell(process.name, "restore", part.because)
        self.begin(process, checkpoint)

    def _go_back(self, process: Process, part: Part, now: Record | None) -> Record | None:
        """Load the state of the part. Return the record that the new incarnation continues from."""
        if now is not None and not moves(part):
            return now
        key = part.checkpoint
        record = checkpoint_of(process, key, self.table) if key else None
        cut = process.storage.cuts[key] if key else self.initial
        pending = process.state.pending
        process.replay = deque()
        process.state = State.of(cut)
        process.captures = {int(key[1]): cut} if key and key[0] == CHECKPOINT else {}
        # `pending` is that of the state before: these messages left their channels unfinished
        self.network.give_back(pending, cut.taken)
        self.network.read_again(process.name, cut.taken)
        return record

    # -- judging lines -------------------------------------------------------------------------------------------

    def _judge_plan(self, plan: RecoveryPlan, given: Failure) -> None:
        """O1, O4, O12, O13 for the line of a recovery in which every process takes part."""
        self._judge_erasures(plan, given.failed)
        # Survivors that decide their own parts (`rejoin`) have no line yet. A protocol that regenerates its sends is judged
        # after the replay.
        if self.protocol.rejoin is not None or self.truth.deterministic:
            return
        line = self._line(plan)
        what = f"the line of recovery {plan.incarnation}"
        if self.audits is not None and not self.protocol.sound:
            self.audits.append(self._audit_of(what, plan, line))
            return
        oracles.judge_consistent(self.truth, line, what)
        if self.protocol.maximal:
            # a log channel can be read again, so nothing in transit is lost
            somewhere = self._somewhere(plan) if self.network.log is None else None
            oracles.judge_maximal(line, self._candidates(given.failed), somewhere, what)

    def _line(self, plan: RecoveryPlan) -> CutLine:
        """Return the state that each process would have: the plan's checkpoints, and the current state of survivors."""
        return {each.name: self._cut(each, plan.parts.get(each.name, KEEP)) for each in self.everybody}

    def _cut(self, process: Process, part: Part) -> StateCut:
        if part.checkpoint is not None:
            checkpoint_of(process, part.checkpoint, self.table)
            return process.storage.cuts[part.checkpoint]
        return self.initial if part.initial or process.machine is None else process.state.cut()

    def _candidates(self, failed: frozenset[ProcessId]) -> dict[ProcessId, list[StateCut]]:
        found: dict[ProcessId, list[StateCut]] = {}
        for process in self.everybody:
            keys: list[Key] = [key for key in records_of(process, self.table) if key[0] == CHECKPOINT]
            cuts = [self.initial, *(process.storage.cuts[key] for key in sorted(keys))]
            found[process.name] = cuts if process.name in failed else [*cuts, process.state.cut()]
        return found

    def _somewhere(self, plan: RecoveryPlan) -> int:
        # on channels, or returned to them by this recovery; then in durable logs, and in the plan's replay
        mask = self.network.under_way() | self._given_back(plan)
        held = [message for part in plan.parts.values() for message in part.replay]
        for process in self.everybody:
            for record in records_of(process, self.table).values():
                held.extend(messages_in(record))
        for message in held:
            mask |= self.truth.of(message) or 0
        return mask

    def _given_back(self, plan: RecoveryPlan) -> int:
        """Return the mask of undelivered messages of machines, except those in the restored state (`give_back`)."""
        mask = 0
        for process in self.everybody:
            part = plan.parts.get(process.name, KEEP)
            stays = process.machine is not None and not moves(part)
            # a machine that stays keeps all that it has not delivered
            taken = 0 if stays else self._cut(process, part).taken
            mask |= sum(process.state.pending) & ~taken
        return mask

    def _plan(self, given: Failure) -> RecoveryPlan:
        """Return the protocol's plan. Raises `ErasedTooEarly` if only erased records would make a plan possible."""
        try:
            return self.protocol.plan(given)
        # The planner fails on records that are not there. With the erased ones it would work if an erasure was at fault (O12).
        except NO_PLAN as error:
            fuller = self._failure(given.incarnation, given.failed, erased_too=True)
            if fuller.records == given.records:
                raise
            self.protocol.plan(fuller)
            raise ErasedTooEarly(f"without the erased records there is no plan: {error!r}") from error

    def _judge_erasures(self, plan: RecoveryPlan, failed: frozenset[ProcessId]) -> None:
        """O12: with every record that was ever erased, the plan would have been the same."""
        if any(each.storage.erased for each in self.everybody):
            fuller = self.protocol.plan(self._failure(plan.incarnation, failed, erased_too=True))
            oracles.judge_same_plan(plan, fuller)

    def judge_next_failures(self) -> None:
        """O12: no next failure of one process needs an erased record."""
        number = Incarnation(self.incarnation + 1)
        if any(each.storage.erased for each in self.everybody):
            for process in self.everybody:
                failed = frozenset({process.name})
                self._judge_erasures(self._plan(self._failure(number, failed)), failed)

    def _total_failure(self, why: str) -> RecoveryPlan:
        """Return the plan for a failure of all processes now. Raises `Incomplete` if there is none."""
        number = Incarnation(self.incarnation + 1)
        # the plan depends on durable state only, so it is computed once for each version
        durable = (number, *(each.storage.version for each in self.everybody))
        if self.planned_total is not None and self.planned_total[0] == durable:
            return self.planned_total[1]
        try:
            plan = self._plan(self._failure(number, frozenset(self.processes)))
        except NO_PLAN as error:
            raise Incomplete(f"{why}, and if all failed now there would be no plan: {error!r}") from error
        self._judge_erasures(plan, frozenset(self.processes))
        self.planned_total = (durable, plan)
        return plan

    def judge_complete(self, process: Process, index: str) -> None:
        """O1, O2, O5, O7, O13: if all processes failed now, they would restore a usable line at `index` or later."""
        if self.audits is not None:
            self.audits.append(self.audit(index))
            return
        # Every process may call the same checkpoint complete. The judgement depends on durable records only, so one suffices.
        if self.judged == (self.incarnation, index):
            return
        self.judged = (self.incarnation, index)
        what = f"{process.name} calls checkpoint {index} complete"
        plan = self._total_failure(what)
        row = plan.row
        # a plan of one row number is compared by number; a row per process is judged as a line
        if not isinstance(row, Mapping) and index.isdigit() and row < int(index):
            raise Incomplete(f"{what}, and if all failed now they would go back to {row}", [process.name])
        if self.truth.deterministic:
            return
        line = self._line(_all_down(plan))
        oracles.judge_consistent(self.truth, line, what)
        if self.network.log is None:
            oracles.judge_obtainable(self.truth, line, lambda: self._somewhere(plan), what)
        if self.complete is not None:
            oracles.judge_forward(self.complete, line, what)
        self.complete = line

    def audit(self, index: str = "") -> Audit:
        """Return the flaws of the state that would be restored if all processes failed now; raise none of them."""
        plan = self._total_failure(f"checkpoint {index}")
        return self._audit_of(index, plan, self._line(_all_down(plan)))

    def _audit_of(self, index: str, plan: RecoveryPlan, line: CutLine) -> Audit:
        lost = oracles.in_transit(line)
        # log channels keep every message, so none is lost
        if self.network.log is not None or (lost and not (lost := lost & ~self._somewhere(plan))):
            lost = 0
        describe = self.truth.describe
        return Audit(index, tuple(describe(oracles.orphans(line))), tuple(describe(lost)))

    def condemn_output(self, wrong: Violation) -> None:
        """Raise O14 and O15, except while audits are collected for counter-examples."""
        if self.audits is None:
            raise wrong

    def judge_shown(self, process: Process, last: int) -> None:
        """O11: if all processes failed now, the published rows would still be there."""
        if self.truth.deterministic:
            return
        plan = self._total_failure(f"{process.name} shows its rows up to {last}")
        kept = self._line(_all_down(plan))[process.name].rows[1]
        if kept < last:
            oracles.refuse_undoable_rows(process, last, kept)


def _all_down(plan: RecoveryPlan) -> RecoveryPlan:
    """Return the plan with every part explicit: no process keeps its current state."""
    parts = {name: part if part.checkpoint else replace(part, initial=True) for name, part in plan.parts.items()}
    return replace(plan, parts=parts)
