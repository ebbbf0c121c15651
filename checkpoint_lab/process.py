"""One process as its host sees it: a machine, the application's state, and the events that are due to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import groupby
from operator import itemgetter
from typing import NamedTuple
from zlib import crc32

from checkpoint_lab.durable import Item, State, StateCut, Storage, Write
from checkpoint_lab.faults import LinearClock
from checkpoint_lab.violations import ShownOutOfOrder, ShownTwice, Violation, WrongOutput
from checkpoint_protocols.graph import Graph
from checkpoint_protocols.ids import ChannelId, Incarnation, ProcessId
from checkpoint_protocols.message_machine import AnyMessageMachine
from checkpoint_protocols.recovery import Needs
from checkpoint_protocols.transport import Transport
from checkpoint_protocols.vocabulary import Envelope, SetTimer

# -- The application under the protocols: every message is named by its source and by the path that it took.
#
# Source `s` turns its input `k` into the record `s.k`. A process passes every record on to all its outputs, and the
# record grows by the receiver's name: `s.0>a>k`. So the final state of every process is known without a run, for every
# order of merges. A record leaves a loop after `loops` back edges.
#
# `ordered` makes the order matter: a record carries a digest of everything that its sender took in before it
# (`s.0>a#1a2b3c4d`). Two runs then agree only if every process took in the same records in the same order.


Outputs = tuple[tuple[ChannelId, str], ...]
"""Records that a process sends because of one record: channel and lineage."""


@dataclass(frozen=True)
class GraphApplication:
    """The workload of a graph, constant.

    `routes` maps a record to the records that follow from it, `expected` maps a process to its final state.
    """

    graph: Graph
    inputs: int
    loops: int = 1
    ordered: bool = False

    @cached_property
    def routes(self) -> dict[str, Outputs]:
        """Outputs by lineage, for every possible record."""
        found: dict[str, Outputs] = {}
        new = deque((source, f"{source}.{k}", 0) for source in self.graph.sources for k in range(self.inputs))
        while new:
            at, lineage, hops = new.popleft()
            ways = [(channel, hops + (channel in self.graph.back_edges)) for channel in self.ways(at, lineage)]
            # a record leaves a loop by taking no further back edge
            ways = [(channel, looped) for channel, looped in ways if looped <= self.loops]
            found[lineage] = tuple((channel, f"{lineage}>{self.graph.ends[channel][1]}") for channel, _ in ways)
            new.extend(
                (self.graph.ends[channel][1], f"{lineage}>{self.graph.ends[channel][1]}", n) for channel, n in ways
            )
        return found

    def ways(self, at: ProcessId, lineage: str) -> Sequence[ChannelId]:
        """Return the channels that a process passes a record on to: all outputs. A subclass may override this."""
        return self.graph.outputs[at]

    @cached_property
    def bits(self) -> dict[str, int]:
        """Bit of each lineage."""
        return {lineage: 1 << number for number, lineage in enumerate(self.routes)}

    @cached_property
    def places(self) -> dict[str, tuple[str, int]]:
        """The path of each lineage from its source, and its position among all records of that path."""
        named = sorted((*_place(lineage), lineage) for lineage in self.routes)
        return {
            lineage: (way, place)
            for way, together in groupby(named, key=itemgetter(0))
            for place, (_, _, lineage) in enumerate(together)
        }

    @cached_property
    def expected(self) -> dict[ProcessId, int]:
        """Mask of all lineages that each process takes in, its own inputs included."""
        masks = dict.fromkeys(self.graph.processes, 0)
        for lineage, bit in self.bits.items():
            masks[self._holder(lineage)] |= bit
        return masks

    def names(self, mask: int) -> list[str]:
        """Return the lineages in a mask."""
        return [lineage for lineage, bit in self.bits.items() if mask & bit]

    def lineage(self, body: object) -> str:
        """Return a body without its digest."""
        return str(body).partition("#")[0] if self.ordered else str(body)

    def digest(self, before: int, lineage: str) -> int:
        """Return the digest of everything that a process has taken in, in order, as one number."""
        return crc32(lineage.encode(), before) if self.ordered else 0

    def body(self, lineage: str, digest: int) -> str:
        """Return the body that is sent for a lineage."""
        return f"{lineage}#{digest:08x}" if self.ordered else lineage

    def _holder(self, lineage: str) -> ProcessId:
        last = lineage.rpartition(">")[2]
        return ProcessId(last.partition(".")[0])


def _place(lineage: str) -> tuple[str, int]:
    source, _, way = lineage.partition(">")
    name, _, number = source.rpartition(".")
    return f"{name}>{way}", int(number)


@lru_cache(maxsize=256)
def application(graph: Graph, inputs: int, loops: int = 1, ordered: bool = False) -> GraphApplication:
    """Return the application of a graph; cached, because `routes` is expensive."""
    return GraphApplication(graph, inputs, loops, ordered)


# -- The record of the outside world: every row that a sink showed, in order and for good, and its judgement.
#
# A sink is not idempotent: it records every row that it has to show, again if it showed it before. Like every
# transactional sink it writes the position of the newest row (`marker`) with the rows, and a new incarnation reads it
# (`Birth.shown`). Without the marker no row could be shown exactly once, because a crash may come between showing and
# remembering.
#
# The oracles judge this record by the names of the rows, never by the machines' words: O14 no row twice; O15 in order;
# O16 every row that the inputs demand, and no other.


class SinkPublication(NamedTuple):
    """A sink's transaction under way: rows `first+1..last` of its received rows, as bits, and their names."""

    transaction: str
    first: int
    last: int
    rows: tuple[int, ...]
    names: tuple[str, ...]
    results: tuple[str, ...] = ()
    """Names of the segments with the rows, if an executor computes them."""


class OutsideSink:
    """The record of one sink. `rows` are bits, in order of appearance."""

    __slots__ = ("again", "marker", "name", "newest", "rows", "seen")

    def __init__(self, name: ProcessId) -> None:
        self.name = name
        self.rows: list[int] = []
        self.marker = 0
        """Position of the newest transaction's last row."""
        self.seen = 0
        """Mask of the shown rows by name: a row whose send was undone and repeated has another bit."""
        self.newest: dict[str, int] = {}
        """Number of rows that came along each path."""
        self.again = 0
        """Number of rows that were shown before."""

    def show(self, app: GraphApplication, keeps_order: bool, publication: SinkPublication) -> Violation | None:
        """Record all rows of a publication. Return the verdict on the first wrong row, or None."""
        wrong: Violation | None = None
        # a transaction continues where the record ends; a gap or an overlap is out of order
        follows = publication.first == len(self.rows)
        for bit, name in zip(publication.rows, publication.names, strict=True):
            wrong = wrong or self._judge(app, keeps_order, name, follows)
            self.again += bool(self.seen & app.bits[name])
            self.rows.append(bit)
            self.seen |= app.bits[name]
        self.marker = publication.last
        return wrong

    def _judge(self, app: GraphApplication, keeps_order: bool, name: str, follows: bool) -> Violation | None:
        if self.seen & app.bits[name]:
            return ShownTwice(f"{self.name} shows {name} again", [self.name], [name])
        if not follows:
            return ShownOutOfOrder(f"{self.name} shows {name}, which is not its next row", [self.name], [name])
        way, number = app.places[name]
        due = self.newest.get(way, 0)
        self.newest[way] = number + 1
        if keeps_order and number != due:
            what = f"{self.name} shows {name} where number {due} of that way is next"
            return ShownOutOfOrder(what, [self.name], [name])
        return None


def judge_complete(app: GraphApplication, sinks: Collection[OutsideSink]) -> None:
    """O16: at the end every sink has shown the rows of a run without failures."""
    for sink in sinks:
        missing = app.names(app.expected[sink.name] & ~sink.seen)
        if missing:
            raise WrongOutput(f"{sink.name} never shows {missing}", [sink.name], missing)


def judge_order(sink: OutsideSink, rows: Sequence[int]) -> None:
    """O15: the shown rows are a prefix of the sink's received rows."""
    if rows[: len(sink.rows)] != sink.rows:
        raise ShownOutOfOrder(f"{sink.name} has shown its rows in another order than it has them in", [sink.name])


def judge_up_to(sinks: Collection[OutsideSink], rows: Mapping[ProcessId, int]) -> None:
    """O16: at quiescence the rows of a complete checkpoint are shown."""
    for sink in sinks:
        if len(sink.rows) < rows[sink.name]:
            what = f"{sink.name} has shown {len(sink.rows)} of {rows[sink.name]} rows that a complete checkpoint holds"
            raise WrongOutput(what, [sink.name])


def refuse_no_sink(name: ProcessId, rows: Sequence[str]) -> WrongOutput:
    """O16: a process that is not at the end of the graph shows nothing to the outside world."""
    return WrongOutput(f"{name} shows {list(rows)} and is no sink", [name], rows)


def missing(app: GraphApplication, sinks: Collection[OutsideSink]) -> int:
    """Return the number of rows that are not shown."""
    return sum((app.expected[sink.name] & ~sink.seen).bit_count() for sink in sinks)


Late = tuple[Incarnation, Write | SinkPublication]
"""A write or publication under way, with the incarnation that started it."""

PERIODIC = "checkpoint"
"""Name of the periodic timer; every other timer is a timeout."""


class Timer:
    """A timer that was set. `due` is in the world's time, in ms."""

    __slots__ = ("due", "setting")

    def __init__(self, due: float, setting: SetTimer) -> None:
        self.due = due
        self.setting = setting


class Process:
    """Volatile and durable parts of a process. `machine` is None while it is down."""

    def __init__(
        self, name: ProcessId, number: int, processes: int, clock: LinearClock, storage: Storage | None = None
    ) -> None:
        self.name = name
        self.number = number
        self.clock = clock
        self.storage = storage or Storage()
        self.transport: Transport | None = None
        """The transport of lossy control channels; None for reliable ones."""
        self.machine: AnyMessageMachine | None = None
        self.incarnation = Incarnation(0)
        self.events = 0
        """Number of all events, undone ones included: numbers of the vector clock are not used again."""
        self.newest_capture = (0, 0)
        """Incarnation and index of the latest capture, of any incarnation."""
        self.is_source = False
        self.state = State(processes)
        self.frozen = False
        """True from the begin of a recovery until this process has done its part."""
        self.paused = False
        self.suspected = False
        """True if the next recovery takes the process for dead."""
        self.late: list[Late] = []
        """Writes and publications of ended incarnations that have not arrived yet."""
        self.held: set[ChannelId] = set()
        self.timers: list[Timer] = []
        self.writes: list[Write] = []
        self.publishing: list[SinkPublication] = []
        """Publications that the sink still has to perform, oldest first: a sink performs one after the other."""
        self.replay: deque[Envelope] = deque()
        self.captures: dict[int, StateCut] = {}

    @property
    def works(self) -> bool:
        """True if the process lives and takes part in the job."""
        return self.machine is not None and not self.frozen and not self.paused

    def begin_life(self, machine: AnyMessageMachine) -> None:
        """Start a new machine; events due to the old one are dropped."""
        self.abandon_work()
        self.machine = machine
        self.incarnation = machine.incarnation
        self.frozen = False
        self.held = set()
        self.timers = []

    def abandon_work(self) -> None:
        """Move writes and publications under way to those of ended incarnations."""
        self.late += [(self.incarnation, write) for write in self.writes]
        self.late += [(self.incarnation, publication) for publication in self.publishing]
        self.writes, self.publishing = [], []

    def die(self) -> None:
        """Drop the machine and the state; writes and rows under way may still land until the fence."""
        self.machine = None
        self.frozen = self.paused = self.suspected = False
        self.transport = None
        self.held = set()
        self.timers, self.captures = [], {}
        self.replay.clear()


# -- Channels: those of the graph (ordered or not, logs or not), and the control channels (reliable, unordered).
#
# A channel outlives its ends. A message leaves it when the machine gets it. Messages that an incarnation received and
# neither delivered nor dropped return to the channel when it ends (`give_back`). A log channel keeps every message and is
# read from the position of the reader's state.


Link = frozenset[str]
"""Two processes, for partitions."""


class Network:
    """All queues. The first message on a control channel creates its queue."""

    def __init__(self, graph: Graph, needs: Needs) -> None:
        self.graph = graph
        self.fifo = needs.fifo
        self.reliable = needs.reliable
        self.log: dict[ChannelId, list[Item]] | None = {c: [] for c in graph.channels} if needs.replayable else None
        self.queues: dict[ChannelId, list[Item]] = {channel: [] for channel in graph.channels}
        self.controls: dict[ChannelId, list[Item]] = {}
        self.targets: dict[ChannelId, ProcessId] = {channel: ends[1] for channel, ends in graph.ends.items()}
        self.links: dict[ChannelId, Link] = {channel: Link(ends) for channel, ends in graph.ends.items()}
        self.cut: set[Link] = set()

    def put(self, channel: ChannelId, item: Item) -> None:
        """Append a message to its channel."""
        queue = self.queues.get(channel)
        if queue is None:
            self._control(channel, item).append(item)
            return
        queue.append(item)
        if self.log is not None:
            self.log[channel].append(item)

    def take(self, channel: ChannelId, position: int) -> Item:
        """Remove and return the message at a position."""
        queue = self.queues.get(channel)
        return (self.controls[channel] if queue is None else queue).pop(position)

    def peek(self, channel: ChannelId, position: int) -> Item:
        """Return the message at a position."""
        queue = self.queues.get(channel)
        return (self.controls[channel] if queue is None else queue)[position]

    def repeat(self, channel: ChannelId, position: int) -> None:
        """Duplicate the message at a position."""
        queue = self.queues.get(channel)
        if queue is None:
            queue = self.controls[channel]
        queue.insert(position, queue[position])

    def give_back(self, pending: Mapping[int, tuple[ChannelId, Item]], taken: int) -> None:
        """Return unfinished messages of an ended incarnation to the heads of their channels.

        Messages in its new state (`taken`) are left out.
        """
        # in reverse order, so that the oldest message is at the head again
        for bit, (channel, item) in reversed(list(pending.items())):
            # A message that the restored state has taken is in it already: delivered, or waiting in its record.
            if not bit & taken and channel in self.queues:
                self.queues[channel].insert(0, item)

    def read_again(self, process: ProcessId, taken: int) -> None:
        """Reset the log channels into `process` to the position of its state."""
        if self.log is None:
            return
        for channel in self.graph.inputs.get(process, ()):
            # the log keeps all messages; the state knows which of them it has taken
            self.queues[channel] = [item for item in self.log[channel] if not item.bit & taken]

    def under_way(self) -> int:
        """Return the mask of the messages on the graph's channels."""
        mask = 0
        for queue in self.queues.values():
            for item in queue:
                mask |= item.bit
        return mask

    def _control(self, channel: ChannelId, item: Item) -> list[Item]:
        queue = self.controls.get(channel)
        if queue is None:
            queue = self.controls[channel] = []
            message = item.message
            self.targets[channel] = ProcessId(channel.partition("=>")[2])
            self.links[channel] = Link((message.source, message.target))
        return queue
