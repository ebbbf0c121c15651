"""The world of several programs that edges join: the shipped `StageProcess` of each, and the shipped rules of its log.

A program works in batches. A batch takes several segments at once, of all edges; what it sends belongs to the next epoch. A
barrier is cut at the end of a batch; further batches may end before the epoch is committed. Reading a sender's index and
acting on it are two steps, and the log of each program is changed by one step at a time.

Choices:

- work: `plan n`, `end n`, `commit n`, `look n`, `decide n`, `input n`, `begin n`
- optional steps: `epoch n` (the interval is over)
- clocks: `advance ms`; the clocks of programs differ by seconds
- protocol of the seed: `index`, or `unaligned` and `aligned` with one decision of all stages
- faults: `crash n`, `late n` (a commit of a dead driver arrives), `jump n ms` (its clock is set), `back n epoch` (an operator
  restores one program), `line` (or all of them, to the newest named line), `switch n` (it starts with the other protocol)

Every commit is judged: each complete line is a consistent cut by the rows that programs have truly read. With `aligned` no
row is in transit in it, and with both protocols of stages a sink has no row after the newest line that all of them serve.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from checkpoint_lab.violations import (
    Incomplete,
    Lost,
    NoEnd,
    Orphan,
    ReusedId,
    ShownTwice,
    StaleDelivery,
    TooEarly,
    WrongEffect,
)
from checkpoint_lab.world import Choice, World
from checkpoint_protocols.machine import Effect
from spark_ckpt.coordination.stage_process import (
    Between,
    EpochEnding,
    EpochServes,
    LogsRead,
    ReleaseEpochs,
    SayIndex,
    StageProcess,
    StampEpoch,
    TakeEpoch,
)
from spark_ckpt.epochs import lines, readers
from spark_ckpt.epochs.lines import UNDONE, CutEpoch, Input, Program
from spark_ckpt.epochs.log_state import At, LogState, folded
from spark_ckpt.epochs.readers import Standing
from spark_ckpt.epochs.records import EpochBrief, Holder, IncarnationRecord, Manifest, Position, StagedOutput
from spark_ckpt.errors import EpochNotFound, Fenced
from spark_ckpt.store import proposals
from spark_ckpt.store.log_rows import KINDS
from spark_ckpt.store.log_table import NewRow

TOPOLOGIES: tuple[Mapping[str, tuple[str, ...]], ...] = (
    {"a": (), "b": ("a",)},
    {"a": (), "b": ("a",), "c": ("b",)},
    {"a": (), "b": ("a",), "c": ("a",), "d": ("b", "c")},
    {"a": ("b",), "b": ("a",)},
    {"a": ("c",), "b": ("a",), "c": ("b",)},
)
"""Programs, each with those whose edges it reads; the last two loop."""

EVERY_MS, EDGE, HOPS, BEGUN_MS = 2_000, "out", 3, 1_700_000_000_000
INPUTS, MOST = 6, 3
BUDGET = {"crash": 5, "jump": 2, "back": 2, "line": 2, "switch": 2}
HasRows = Callable[[EpochBrief], bool]
Segment = tuple[str, int]
"""Rows of one committed epoch of a program."""


@dataclass(frozen=True)
class StageRules:
    """The shipped parts that a test replaces by wrong ones."""

    stage: type[StageProcess] = StageProcess
    epoch: Callable[..., NewRow | None] = proposals.epoch
    said: Callable[..., NewRow | None] = proposals.index_said
    unread: Callable[..., list[EpochBrief]] = readers.unread
    named: Callable[..., lines.Line] = lines.named
    cut: Callable[[ProgramNode], Held] = lambda node: node.at_barrier
    gate: Callable[[ProgramNode], StageProcess | None] = lambda node: None
    reached: Callable[[LogState, str, Position, HasRows], int] = readers.reached_index
    of_inputs: Callable[[Collection[int]], int] = min
    decision: Callable[[Collection[int]], Collection[int]] = lambda indices: indices


@dataclass(frozen=True)
class Held:
    """State of a program: position on every edge, segments in the order of reading, own inputs, hops of unsent rows."""

    positions: Mapping[str, Position] = field(default_factory=dict)
    read: tuple[Segment, ...] = ()
    inputs: int = 0
    hops: int = 0


@dataclass(frozen=True)
class Look:
    """Facts that a program has read from the logs of others, and acts on later."""

    stamp: int
    reached: int
    arriving: int
    indices: tuple[int, ...]


@dataclass
class ProgramNode:
    """One program: its log, the truth about every epoch, and its driver while it lives."""

    name: str
    senders: tuple[str, ...]
    protocol: Between = Between.INDEX
    log: LogState = field(default_factory=LogState)
    rows: int = 0
    epochs: dict[int, Held] = field(default_factory=lambda: {0: Held()})
    hops: dict[int, int] = field(default_factory=dict)
    offset_ms: int = 0
    given: int = 1
    """Inputs that the program has had, and has to read."""
    waiting: int = 1
    stage: StageProcess | None = None
    now: Held = field(default_factory=Held)
    at_barrier: Held = field(default_factory=Held)
    batch: tuple[Mapping[str, list[EpochBrief]], int, bool] | None = None
    requested: str = ""
    sealed: bool = False
    heard: Look | None = None
    published: int = 0

    @property
    def idle(self) -> bool:
        """True if nothing was read since the newest cut."""
        return self.now == self.epochs[self.log.latest]

    def has_rows(self, brief: EpochBrief) -> bool:
        """Return True if an epoch has rows for the edge."""
        return self.hops[brief.epoch] > 0

    def branch(self) -> list[EpochBrief]:
        """Return the epochs of the current branch, oldest first."""
        return list(self.log.lineage())[::-1]


class StagesWorld(World):
    """Several programs joined by edges. `rules`: the shipped ones, or a test's."""

    LAGGARDS = ("", "", "plan", "commit", "look", "decide", "end")

    def __init__(self, seed: int, rules: StageRules | None = None) -> None:
        self.rules = rules or StageRules()
        topology = TOPOLOGIES[seed % len(TOPOLOGIES)]
        self.protocol = (Between.INDEX, Between.UNALIGNED, Between.ALIGNED)[seed // 40 % 3]
        if self.protocol is Between.ALIGNED:
            topology = TOPOLOGIES[seed % 3]  # it is refused in a loop, where each would wait for the other
        self.nodes = {name: ProgramNode(name, senders, self.protocol) for name, senders in topology.items()}
        self.decided = 0
        """Newest line that all programs have served at one time."""
        self.now_ms = BEGUN_MS
        self.left = dict(BUDGET)
        self.counter: Counter[str] = Counter()
        self.inputs = INPUTS
        self.calmed = False
        self.alone = seed // 5 % 2 == 0
        """True if single programs may be restored, or change their protocol."""
        # Lines of a program that is not aligned so far may have rows in transit.
        if seed // 10 % 4 == 0 and (self.alone or self.protocol is not Between.ALIGNED):
            # It joins the lines of the others later.
            list(self.nodes.values())[-1].protocol = self.other
        for number, node in enumerate(self.nodes.values()):
            node.offset_ms = (0, -7_000, 4_000)[(seed // 10 + number) % 3]
            node.log = LogState(job=node.name, store_id=node.name)
            self._begin(node, 0)

    @property
    def other(self) -> Between:
        """The protocol from which a program may change to that of the world. Independent to aligned is refused."""
        return Between.UNALIGNED if self.protocol is Between.ALIGNED else Between.INDEPENDENT

    # -- what can happen ----------------------------------------------------------------------------------------------

    def choices(self) -> Sequence[Choice]:
        """Return every step of work."""
        return [choice for node in self.nodes.values() for choice in self._of(node)]

    def _of(self, node: ProgramNode) -> Iterator[Choice]:
        if node.stage is None:
            yield ("begin", node.name)
            return
        if node.batch is not None:
            yield ("end", node.name)
        elif self._has_work(node):
            yield ("plan", node.name)
        if node.sealed:
            yield ("commit", node.name)
        if node.heard is not None:
            yield ("decide", node.name)
        elif self._may_change(node):
            yield ("look", node.name)
        # before the calm the end of an interval is optional (`at_leisure`), but a drain has nothing but work
        if self.calmed and not node.idle and not node.requested and not node.sealed:
            yield ("epoch", node.name)

    def _has_work(self, node: ProgramNode) -> bool:
        # a barrier is cut at the end of a batch, so a request needs one, even without rows
        if node.requested and not node.sealed:
            return True
        undone = any(self._undone(node.now.positions, sender) for sender in node.senders)
        return bool(node.waiting) or undone or any(self._offered(node).values())

    def _may_change(self, node: ProgramNode) -> bool:
        """True if a look at the senders, or at the clock, may lead to a step."""
        if node.protocol is Between.INDEPENDENT or node.requested or node.sealed:
            return False
        assert node.stage is not None  # noqa: S101 - the choice says so
        look = self._facts(node)
        if node.protocol.decides_lines and min(look.indices) > node.stage.decided:
            return True
        if node.stage.waits_for_inputs:
            return look.reached > node.log.index or look.arriving > max(node.log.index, node.stage.asked)
        tick = (self.now_ms + node.offset_ms) // EVERY_MS * EVERY_MS // 1000
        return max(tick, *(self.nodes[each].log.stamp for each in node.senders), 0) > node.log.index

    def at_leisure(self) -> Sequence[Choice]:
        """Return epochs that end an interval."""
        return [
            ("epoch", node.name)
            for node in self.nodes.values()
            if node.stage is not None and not node.idle and not node.requested and not node.sealed
        ]

    def timers(self) -> Sequence[Choice]:
        """Return the passing of time, and new input."""
        given = [("input", node.name) for node in self.nodes.values()] if self.inputs else []
        return [("advance", 700), ("advance", EVERY_MS), *given]

    def faults(self) -> Sequence[Choice]:
        """Return the faults that are left."""
        found: list[Choice] = [
            ("late", node.name) for node in self.nodes.values() if node.stage is None and node.sealed
        ]
        for node in self.nodes.values():
            if node.stage is not None and self.left["crash"]:
                found.append(("crash", node.name))
            if self.left["jump"]:
                found += [("jump", node.name, ms) for ms in (-9_000, 9_000)]
            if self.alone and self.left["switch"]:
                found.append(("switch", node.name))
            if self.alone and self.left["back"]:
                # not the newest one, whose restore undoes nothing
                found += [("back", node.name, brief.epoch) for brief in node.branch()[-3:-1]]
        if self.left["line"] and self._newest_line() is not None:
            found.append(("line",))
        return found

    def calm(self) -> None:
        """End all faults: every program runs with an index, by one clock."""
        self.calmed = True
        self.inputs = 0
        for node in self.nodes.values():
            if node.protocol is not self.protocol:
                self._switch(node)
            node.offset_ms = 0

    def drain_choices(self) -> Sequence[Choice]:
        """Return the work that is left."""
        return self.choices()

    def periodic(self) -> Sequence[Choice]:
        """Return the passing of time."""
        return [("advance", 30_000)]

    def names(self) -> Sequence[str]:
        """Return the programs."""
        return list(self.nodes)

    def do(self, choice: Choice) -> None:
        """Perform one choice, and judge the lines if a log has changed."""
        before = self._rows()
        kind = str(choice[0])
        if kind in self.left:
            self.left[kind] -= 1
        self.counter[kind] += 1
        self.act(choice)
        if self._rows() != before:
            self.decided = max(self.decided, min(node.log.index for node in self.nodes.values()))
            self._judge_lines()

    def _rows(self) -> int:
        return sum(node.rows for node in self.nodes.values())

    # -- steps of a program -------------------------------------------------------------------------------------------

    def _do_input(self, name: str) -> None:
        self.inputs -= 1
        self.tell(name, "read", "new input waits")
        self.nodes[name].given += 1
        self.nodes[name].waiting += 1

    def _do_advance(self, ms: int) -> None:
        self.now_ms += ms

    def _do_plan(self, name: str) -> None:
        """Fix a batch: what the gate lets in now, and the barrier if an epoch is requested."""
        node = self.nodes[name]
        if any(self._undone(node.now.positions, sender) for sender in node.senders):
            self._die(node)  # CKPT_SOURCE_UNDONE
            return
        barrier = bool(node.requested) and not node.sealed
        node.batch = (self._offered(node), min(node.waiting, 1), barrier)

    def _offered(self, node: ProgramNode) -> dict[str, list[EpochBrief]]:
        """Return the segments that may come in, as the planner sees it: by the program's own log."""
        hosted = self.rules.stage(node.protocol, 1000, node.log.latest, node.log.index, bool(node.senders))
        gate = self.rules.gate(node) or hosted
        found: dict[str, list[EpochBrief]] = {}
        for sender in node.senders:
            found[sender] = []
            unread = self.rules.unread(self.nodes[sender].log, EDGE, node.now.positions[sender])
            for brief in list(filter(self.nodes[sender].has_rows, unread))[:MOST]:
                if not gate.lets_in(brief.after):
                    # an edge is read in order, so what follows a segment that has to wait waits as well
                    break
                found[sender].append(brief)
        return found

    def _do_end(self, name: str) -> None:
        """End the batch: its rows are read, what it sends belongs to the next epoch, its barrier is cut."""
        node = self.nodes[name]
        assert node.batch is not None  # noqa: S101 - the choice says so
        segments, inputs, barrier = node.batch
        positions, read, hops = dict(node.now.positions), list(node.now.read), node.now.hops
        for sender, briefs in segments.items():
            for brief in briefs:
                self.tell(name, "read", f"epoch {brief.epoch} of {sender}, stamp {brief.after}")
                positions[sender] = Position(epoch=brief.epoch, attempt=brief.attempt, files=1, of=1)
                read.append((sender, brief.epoch))
                # rows lose a hop with each edge, so that those of a loop come to an end
                hops = max(hops, self.nodes[sender].hops[brief.epoch] - 1)
        if len(set(read)) < len(read):
            raise ShownTwice(f"{name} reads a segment twice: {read}", [name])
        node.waiting -= inputs
        # Every second input is filtered out, the first one, too: its epoch has no rows for the edge.
        hops = max(hops, HOPS) if inputs and node.now.inputs % 2 else hops
        node.now, node.batch = Held(positions, tuple(read), node.now.inputs + inputs, hops), None
        if barrier:
            node.at_barrier, node.sealed = node.now, True
            # Rows after the barrier are sent with the next epoch.
            node.now = replace(node.now, hops=0)

    def _do_epoch(self, name: str) -> None:
        self.nodes[name].requested = "interval"

    def _do_commit(self, name: str) -> None:
        node = self.nodes[name]
        assert node.stage is not None  # noqa: S101 - the choice says so
        self._commit(node, node.stage)

    def _commit(self, node: ProgramNode, stage: StageProcess) -> None:
        held, base = self.rules.cut(node), node.epochs[node.log.latest]
        asked, node.sealed, node.requested = node.requested, False, ""
        if asked == "index" and replace(held, hops=0) == base:
            raise WrongEffect(f"{node.name} is idle and commits an epoch only for its index", [node.name])
        answers = stage.handle(EpochEnding(), self._clock(node))
        [index] = [effect.index for effect in answers if isinstance(effect, StampEpoch)]
        epoch = node.log.last + 1
        manifest = Manifest(
            job=node.name,
            epoch=epoch,
            incarnation=node.log.incarnation,
            attempt=f"{node.name}{epoch}",
            base=node.log.latest,
            previous=node.log.last,
            created_ms=self.now_ms,
            # A job on Spark lists a sink in every epoch, with rows or without.
            outputs={EDGE: StagedOutput(sink=EDGE)},
        )
        before = node.log.index
        self._append(node, self.rules.epoch(node.log, manifest, self.now_ms, index))
        # the epoch sends its rows, so the state after it has none to send
        node.epochs[epoch], node.hops[epoch] = replace(held, hops=0), held.hops
        self.counter["epochs"] += 1
        if index and node.log.index < before:
            raise ReusedId(f"the index of {node.name} falls from {before} to {node.log.index}", [node.name])
        # after the append, since the machine counts on committed epochs only
        stage.handle(EpochServes(epoch, index), self._clock(node))
        self.tell(node.name, "complete", f"epoch {epoch} is committed, index {node.log.index}")
        self._publish(node, stage)

    def _publish(self, node: ProgramNode, stage: StageProcess) -> None:
        """Publish what the protocol allows now: a sink has every epoch up to it."""
        epoch = stage.publishes_up_to
        if epoch > node.log.last:
            raise TooEarly(f"{node.name} publishes epoch {epoch}, which is not committed", [node.name])
        if node.protocol.decides_lines and epoch > self._line_epoch(node):
            raise TooEarly(
                f"{node.name} publishes epoch {epoch}, after epoch {self._line_epoch(node)} of line-{self.decided}",
                [node.name],
            )
        node.published = epoch

    def _line_epoch(self, node: ProgramNode) -> int:
        """Return the program's epoch of the newest decided line; its newest one if a restore has left that line."""
        serving = (brief.epoch for brief in node.branch() if self.decided and brief.index >= self.decided)
        return next(serving, node.log.latest if node.log.index < self.decided else 0)

    def _do_look(self, name: str) -> None:
        node = self.nodes[name]
        node.heard = self._facts(node)

    def _facts(self, node: ProgramNode) -> Look:
        stamp = max((self.nodes[sender].log.stamp for sender in node.senders), default=0)
        committed = node.epochs[node.log.latest].positions
        indices = tuple(each.log.index for each in self.nodes.values())
        return Look(stamp, self._reached(node, committed), self._reached(node, node.now.positions), indices)

    def _reached(self, node: ProgramNode, positions: Mapping[str, Position]) -> int:
        """Return the index up to which all inputs are read at these positions."""
        if not node.senders or any(self._undone(positions, sender) for sender in node.senders):
            return 0
        found = [
            self.rules.reached(there.log, EDGE, positions.get(there.name, Position()), there.has_rows)
            for there in map(self.nodes.__getitem__, node.senders)
        ]
        return self.rules.of_inputs(found)

    def _do_decide(self, name: str) -> None:
        """Act on what was heard, as `driver.index_keeper` does."""
        node = self.nodes[name]
        assert node.stage is not None and node.heard is not None  # noqa: S101 - the choice says so
        look, node.heard = node.heard, None
        stages = tuple(self.rules.decision(look.indices)) if node.protocol.decides_lines else ()
        under_way = bool(node.requested or node.sealed)
        read = LogsRead(look.stamp, stages, look.reached, look.arriving, node.idle, under_way)
        for effect in node.stage.handle(read, self._clock(node)):
            self._carry_out(node, node.stage, effect)

    def _carry_out(self, node: ProgramNode, stage: StageProcess, effect: Effect) -> None:
        match effect:
            case ReleaseEpochs():
                self._publish(node, stage)
            case TakeEpoch():
                node.requested = "index"
                self.counter["forced"] += 1
                self.tell(node.name, "decide", "takes an epoch for its index")
            case SayIndex(epoch=epoch, index=index):
                self._append(node, self.rules.said(node.log, node.log.incarnation, epoch, index))
                stage.handle(EpochServes(epoch, node.log.index), self._clock(node))
                self.counter["said"] += 1
                self.tell(
                    node.name, "decide", f"{'idle: ' if node.idle else ''}epoch {epoch} serves index {index}, too"
                )

    def _append(self, node: ProgramNode, row: NewRow | None) -> None:
        if row is not None:
            self._fold(node, KINDS[row.kind].model_validate_json(row.brief))

    def _fold(self, node: ProgramNode, record: object) -> None:
        node.rows += 1
        node.log = folded(node.log, [(At(node.rows, self.now_ms), record)])  # type: ignore[list-item]

    def _clock(self, node: ProgramNode) -> int:
        return self.now_ms + node.offset_ms

    # -- lives --------------------------------------------------------------------------------------------------------

    def _begin(self, node: ProgramNode, epoch: int) -> None:
        """Start a driver from an epoch."""
        number = node.log.incarnation + 1
        self.tell(node.name, "recover", f"starts from epoch {epoch}, {node.protocol}")
        holder = Holder(host="h")
        self._fold(
            node,
            IncarnationRecord(
                incarnation=number, holder=holder, base=epoch, restored_from="", lease_ms=1, lease_expires_ms=0
            ),
        )
        start = {sender: Position() for sender in node.senders}
        held = node.epochs[epoch]
        node.now = node.at_barrier = replace(held, positions={**start, **held.positions})
        # with a position for every sender on both sides, or `idle` would never hold after a start from epoch 0
        node.epochs[epoch] = replace(held, positions=node.now.positions)
        node.stage = self._stage_of(node)
        node.batch, node.requested, node.sealed, node.heard = None, "", False, None
        # Inputs after the epoch are read again.
        node.waiting = node.given - held.inputs

    def _stage_of(self, node: ProgramNode) -> StageProcess:
        """Return the program's part in the protocol, as its log has it."""
        if node.protocol is Between.INDEPENDENT:
            return self.rules.stage(node.protocol, EVERY_MS, node.log.latest)
        served = [(brief.epoch, brief.index) for brief in node.branch()]
        heard = max(node.log.stamp, *(self.nodes[sender].log.stamp for sender in node.senders), 0)
        latest, index = node.log.latest, node.log.index
        return self.rules.stage(node.protocol, EVERY_MS, latest, index, bool(node.senders), served, heard)

    def _die(self, node: ProgramNode) -> None:
        self.tell(node.name, "crash", "ends")
        node.stage, node.batch, node.heard = None, None, None

    def _do_crash(self, name: str) -> None:
        self._die(self.nodes[name])

    def crash_of(self, process: str) -> Choice:
        """Return the choice that kills a program."""
        return ("crash", process)

    def _do_late(self, name: str) -> None:
        """A commit of the dead driver reaches the log before the next driver begins."""
        node = self.nodes[name]
        try:
            self._commit(node, self._stage_of(node))
        except Fenced:
            node.sealed = False

    def _do_begin(self, name: str) -> None:
        """Start again from the newest epoch that has read nothing undone, as the error advises."""
        node = self.nodes[name]
        newest = (
            brief.epoch
            for brief in node.log.lineage()
            if not any(self._undone(node.epochs[brief.epoch].positions, sender) for sender in node.senders)
        )
        self._begin(node, next(newest, 0))

    def _undone(self, positions: Mapping[str, Position], sender: str) -> bool:
        position = positions.get(sender, Position())
        return readers.standing(self.nodes[sender].log, position, lambda epoch: 0) is Standing.UNDONE

    def _do_jump(self, name: str, ms: int) -> None:
        self.nodes[name].offset_ms += ms

    def _do_back(self, name: str, epoch: int) -> None:
        node = self.nodes[name]
        self._stop(node)
        self._begin(node, epoch)

    def _stop(self, node: ProgramNode) -> None:
        if node.stage is not None:
            self._die(node)
        node.sealed = False

    def _do_switch(self, name: str) -> None:
        self._switch(self.nodes[name])

    def _switch(self, node: ProgramNode) -> None:
        own = node.protocol is self.protocol
        self._stop(node)
        node.protocol = self.other if own else self.protocol

    def _do_line(self) -> None:
        """Restore every program to the newest complete line."""
        line = self._newest_line()
        assert line is not None  # noqa: S101 - the choice says so
        for name, node in self.nodes.items():
            self._stop(node)
            self._begin(node, line.epochs[name])
        # judged when all are back: the restore of a sender undoes rows that its receiver may keep
        for node in self.nodes.values():
            for sender in node.senders:
                if self._undone(node.now.positions, sender):
                    raise Orphan(f"at {line.name} {node.name} has read undone rows of {sender}", [node.name])

    # -- verdicts -----------------------------------------------------------------------------------------------------

    def programs(self) -> dict[str, Program]:
        """Return the programs as `spark-ckpt line` sees them."""
        return {name: self._program(node) for name, node in self.nodes.items()}

    def _program(self, node: ProgramNode) -> Program:
        epochs = [
            CutEpoch(brief.epoch, brief.created_ms, brief.index, brief.after, self._read(node.epochs[brief.epoch]))
            for brief in node.branch()
        ]
        return Program(node.name, tuple(epochs), {sender: Input(sender, EDGE) for sender in node.senders})

    def _read(self, held: Held) -> dict[str, int]:
        return {
            sender: UNDONE if self._undone(held.positions, sender) else position.epoch
            for sender, position in held.positions.items()
        }

    def _numbers(self) -> list[int]:
        found = {brief.index for node in self.nodes.values() for brief in node.branch()[-4:]}
        return sorted(found - {0}, reverse=True)

    def _newest_line(self) -> lines.Line | None:
        if not all(node.branch() for node in self.nodes.values()):
            return None
        for number in self._numbers():
            try:
                return lines.named(self.programs(), number)
            except EpochNotFound:
                continue
        return None

    def _judge_lines(self) -> None:
        """Compare every complete line with the rows that programs have truly read."""
        if not all(node.branch() for node in self.nodes.values()):
            return
        programs = self.programs()
        for number in self._numbers():
            cut = {name: program.serving(number) for name, program in programs.items()}
            try:
                found = self.rules.named(programs, number).epochs
            except EpochNotFound:
                found = None
            whole = {name: each.epoch for name, each in cut.items() if each is not None}
            if found is not None and len(whole) < len(cut):
                raise Incomplete(f"line-{number} is given out, and {sorted(cut.keys() - whole)} does not have it")
            # a line that all programs serve is judged also if the shipped rule does not name it
            if found is not None or len(whole) == len(cut):
                self._judge_line(number, found or whole, given=found is not None)

    def _judge_line(self, number: int, cut: Mapping[str, int], given: bool) -> None:
        for name, node in self.nodes.items():
            if self.protocol is Between.ALIGNED and not self.alone:
                self._judge_transit(number, cut, node)
            for sender, epoch in node.epochs[cut[name]].read:
                branch = {brief.epoch for brief in self.nodes[sender].branch()}
                undone = epoch not in branch
                # Rows that an operator has undone are no fault of the protocol, unless the line is given out.
                if (undone and given) or (not undone and epoch > cut[sender]):
                    raise Orphan(
                        f"line-{number}: {name} at {cut[name]} has read epoch {epoch} of {sender}, which is at {cut[sender]}",
                        [name, sender],
                    )
        self.counter["lines"] += 1

    def _judge_transit(self, number: int, cut: Mapping[str, int], node: ProgramNode) -> None:
        read = set(node.epochs[cut[node.name]].read)
        for sender in node.senders:
            there = self.nodes[sender]
            sent = [brief.epoch for brief in there.branch() if brief.epoch <= cut[sender] and there.hops[brief.epoch]]
            if missing := [epoch for epoch in sent if (sender, epoch) not in read]:
                raise Incomplete(
                    f"line-{number} is aligned, and {node.name} at {cut[node.name]} has not read epochs {missing} of {sender}",
                    [node.name, sender],
                )

    def judge_rest(self) -> None:
        """Judge the programs at rest."""
        self._judge_reading()

    def judge(self) -> None:
        """Judge the end: everything is read once, and every program has reached the newest index."""
        self._judge_reading()
        newest = max(node.log.index for node in self.nodes.values())
        slow = [node.name for node in self.nodes.values() if node.log.index < newest]
        if slow:
            raise NoEnd(f"{', '.join(slow)} never reaches line-{newest}", slow)
        for node in self.nodes.values():
            if self.protocol.decides_lines and node.published < self._line_epoch(node):
                raise NoEnd(f"sinks of {node.name} never get epoch {self._line_epoch(node)}", [node.name])
        try:
            lines.named(self.programs(), newest)
        except EpochNotFound as error:
            raise Incomplete(f"at rest line-{newest} is not complete: {error.what}") from error

    def _judge_reading(self) -> None:
        for node in self.nodes.values():
            if node.waiting:
                raise NoEnd(f"{node.name} leaves input unread", [node.name])
            self._judge_program(node)

    def _judge_program(self, node: ProgramNode) -> None:
        for sender in node.senders:
            there = self.nodes[sender]
            sent = {brief.epoch for brief in there.branch() if there.hops[brief.epoch]}
            read = {epoch for name, epoch in node.now.read if name == sender}
            if stale := read - sent:
                raise StaleDelivery(
                    f"{node.name} has epochs {sorted(stale)} of {sender}, which are undone", [node.name]
                )
            if missing := sent - read:
                raise Lost(f"{node.name} never reads epochs {sorted(missing)} of {sender}", [node.name])
