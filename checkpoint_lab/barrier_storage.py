"""Durable state of the barrier world, and the oracles that judge it (O1, O2, O3, O7, O8, O11)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from checkpoint_lab.violations import BY_ORACLE
from checkpoint_protocols.machine import ProtocolViolation

Record = tuple[object, ...]
Channel = tuple[str, str]
SnapshotKey = tuple[str, int, int]


def ensure(holds: bool, oracle: str, detail: object) -> None:
    """Raise the oracle's violation unless `holds`.

    A name of no oracle stands for a rule of the host: `ProtocolViolation`.
    """
    if holds:
        return
    if oracle not in BY_ORACLE:
        raise ProtocolViolation(f"{oracle}: {detail}")
    raise BY_ORACLE[oracle](str(detail))


@dataclass(frozen=True)
class BarrierGraph:
    """Sources with the number of their records, edges, and the tasks that end in a sink."""

    name: str
    sources: dict[str, int]
    edges: tuple[Channel, ...]
    sinks: tuple[str, ...]

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks, sources first, in order of appearance."""
        return tuple(dict.fromkeys([*self.sources, *(target for _, target in self.edges)]))

    def inputs(self, task: str) -> tuple[str, ...]:
        """Return the tasks that send to `task`."""
        return tuple(source for source, target in self.edges if target == task)

    def outputs(self, task: str) -> tuple[str, ...]:
        """Return the tasks that `task` sends to."""
        return tuple(target for source, target in self.edges if source == task)

    def received_without_failures(self) -> dict[str, Counter[Record]]:
        """Return the records that every task receives without failures; a source's own records count as received."""
        received: dict[str, Counter[Record]] = {}
        for task in self.tasks:
            own = [(task, number) for number in range(self.sources.get(task, 0))]
            passed = [(source, *record) for source in self.inputs(task) for record in received[source].elements()]
            # needs edges in topological order: the inputs of a task are computed before it
            received[task] = Counter(own) + Counter(passed)
        return received


PIPELINE = BarrierGraph("pipeline", {"s": 3}, (("s", "m"), ("m", "k")), ("k",))
DIAMOND = BarrierGraph("diamond", {"s": 2}, (("s", "a"), ("s", "b"), ("a", "j"), ("b", "j"), ("j", "k")), ("k",))
JOIN = BarrierGraph(
    "join",
    {"s": 2, "t": 2},
    (("s", "j"), ("t", "j"), ("s", "d"), ("j", "k"), ("t", "l")),
    ("k", "l"),
)
LINE = BarrierGraph("line", {"s": 1}, (("s", "k"),), ("k",))
MERGE = BarrierGraph("merge", {"s": 1, "t": 0}, (("s", "k"), ("t", "k")), ("k",))
BARRIER_GRAPHS = {graph.name: graph for graph in (PIPELINE, DIAMOND, JOIN, LINE, MERGE)}


@dataclass
class State:
    """A task's state: all records that it received and sent, so that states alone suffice to judge a cut."""

    received: dict[str, tuple[Record, ...]] = field(default_factory=dict)
    sent: dict[str, tuple[Record, ...]] = field(default_factory=dict)
    cursor: int = 0

    def copy(self) -> State:
        """Return an independent copy."""
        return State(dict(self.received), dict(self.sent), self.cursor)

    def receive(self, channel: str, record: Record) -> None:
        """Add a record to those received."""
        self.received[channel] = (*self.received.get(channel, ()), record)

    def send(self, channel: str, record: Record) -> None:
        """Add a record to those sent."""
        self.sent[channel] = (*self.sent.get(channel, ()), record)


@dataclass(frozen=True)
class Decided:
    """One commit record."""

    epoch: int
    incarnation: int
    snapshots: dict[str, SnapshotKey]
    transactions: dict[str, SnapshotKey]
    acked: dict[str, int]


@dataclass
class Durable:
    """Storage that survives every crash. Only a completed store operation writes to it."""

    graph: BarrierGraph
    incarnation: int = 0
    decided: list[Decided] = field(default_factory=list)
    snapshots: dict[SnapshotKey, State] = field(default_factory=dict)
    prepared: dict[SnapshotKey, tuple[Record, ...]] = field(default_factory=dict)
    published: dict[str, list[tuple[int, tuple[Record, ...]]]] = field(default_factory=dict)

    @property
    def base(self) -> int:
        """The newest committed epoch; 0 without any."""
        return self.decided[-1].epoch if self.decided else 0

    def state(self, task: str) -> State:
        """Return the task's state in the newest committed epoch."""
        return self.snapshots[self.decided[-1].snapshots[task]].copy() if self.decided else State()

    def decision(self, epoch: int) -> Decided | None:
        """Return the record of a committed epoch."""
        return next((record for record in self.decided if record.epoch == epoch), None)

    def acked(self, sink: str) -> int:
        """Return the last epoch that a sink has acknowledged, as the commit records know it."""
        return self.decided[-1].acked.get(sink, 0) if self.decided else 0

    def last_published(self, sink: str) -> int:
        """Return the last epoch that a sink shows."""
        rows = self.published.get(sink)
        return rows[-1][0] if rows else 0

    def in_doubt(self, sink: str) -> list[tuple[int, int]]:
        """Return epoch and incarnation of each transaction that a sink has prepared and not published."""
        keys = [(epoch, life) for name, epoch, life in self.prepared if name == sink]
        return [key for key in keys if not self._published(sink, *key)]

    def _published(self, sink: str, epoch: int, life: int) -> bool:
        record = self.decision(epoch)
        named = record is not None and record.transactions[sink] == (sink, epoch, life)
        return named and epoch <= self.last_published(sink)

    def decide(self, epoch: int, incarnation: int, acked: dict[str, int]) -> None:
        """Append the commit record and judge its cut."""
        snapshots = {task: (task, epoch, incarnation) for task in self.graph.tasks}
        transactions = {sink: (sink, epoch, incarnation) for sink in self.graph.sinks}
        ensure(incarnation == self.incarnation, "P4", f"epoch {epoch} of the fenced incarnation {incarnation}")
        ensure(epoch > self.base, "O8", f"epoch {epoch} after {self.base}")
        ensure(set(snapshots.values()) <= self.snapshots.keys(), "O7", f"epoch {epoch} without all snapshots")
        ensure(set(transactions.values()) <= self.prepared.keys(), "O7", f"epoch {epoch} without all sinks")
        self.decided.append(Decided(epoch, incarnation, snapshots, transactions, dict(acked)))
        self._judge_cut()

    def _judge_cut(self) -> None:
        """O1, O2: on every channel the records sent before the cut are those received before it, in order."""
        states = {task: self.snapshots[key] for task, key in self.decided[-1].snapshots.items()}
        for source, target in self.graph.edges:
            sent = states[source].sent.get(target, ())
            received = states[target].received.get(source, ())
            ensure(len(received) <= len(sent), "O1", f"orphans on {source}->{target}: {received[len(sent) :]}")
            ensure(received == sent, "O2", f"lost on {source}->{target}: sent {sent}, received {received}")
        for sink in self.graph.sinks:
            staged = [row for record in self.decided for row in self.prepared[record.transactions[sink]]]
            for source in self.graph.inputs(sink):
                shown = tuple(row for row in staged if row[0] == source)
                taken = states[sink].received.get(source, ())
                ensure(shown == taken, "O2", f"{sink} staged {shown} of {source}, up to the cut it took {taken}")

    def discard(self, key: SnapshotKey) -> None:
        """Remove a sink's prepared transaction. O11: no commit names it."""
        named = any(key in record.transactions.values() for record in self.decided)
        ensure(not named, "O11", f"{key} is decided and was discarded")
        self.prepared.pop(key, None)

    def publish(self, sink: str, epoch: int) -> None:
        """Publish as an idempotent publisher does: nothing twice, nothing uncommitted, nothing out of order."""
        record = self.decision(epoch)
        ensure(record is not None, "O11", f"{sink} publishes epoch {epoch}, which is not decided")
        if record is None or epoch <= self.last_published(sink):
            return
        # the oldest unpublished epoch comes first
        due = next(each.epoch for each in self.decided if each.epoch > self.last_published(sink))
        ensure(due == epoch, "O11", f"{sink} publishes epoch {epoch} before {due}")
        self.published.setdefault(sink, []).append((epoch, self.prepared[record.transactions[sink]]))

    def judge_effect(self) -> None:
        """O3 at quiescence: committed output and final states are those of a run without failures."""
        expected = self.graph.received_without_failures()
        for task in self.graph.tasks:
            received = Counter(row for rows in self.state(task).received.values() for row in rows)
            ensure(received == expected[task], "O3", f"{task} has {received}, expected {expected[task]}")
        for sink in self.graph.sinks:
            visible = Counter(row for _, rows in self.published.get(sink, []) for row in rows)
            ensure(visible == expected[sink], "O3", f"{sink} shows {visible}, expected {expected[sink]}")
