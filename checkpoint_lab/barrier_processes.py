"""Processes of the barrier world: each a machine with its volatile state, and the execution of its effects.

Effects become messages (`world.notify`), store operations (`world.store`) or items on channels. A process never reads
the state of another process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from checkpoint_lab.barrier_storage import Record, ensure
from checkpoint_protocols import barrier as b
from checkpoint_protocols.ids import ChannelId, Epoch, Incarnation, SinkId, TaskId
from checkpoint_protocols.machine import Effect, Event

if TYPE_CHECKING:
    from checkpoint_lab.barrier_world import BarrierWorld

LIMITS = b.Limits(
    interval_ms=10,
    epoch_timeout_ms=600,
    store_timeout_ms=600,
    publish_timeout_ms=600,
    retry_ms=5,
    max_unpublished=2,
)


class CoordinatorProcess:
    """One incarnation of the coordinator. After a takeover it is a zombie until it crashes or learns of that."""

    def __init__(self, world: BarrierWorld, life: int) -> None:
        durable, graph = world.durable, world.graph
        self.life = life
        self.timers: list[tuple[int, Event]] = []
        self.acked = dict(durable.decided[-1].acked) if durable.decided else {}
        self.finished: b.Finish | None = None
        self.injected = 0
        # epochs committed and not acknowledged in the log; a sink may have published some of them already
        owed = {
            SinkId(sink): [Epoch(each.epoch) for each in durable.decided if each.epoch > durable.acked(sink)]
            for sink in graph.sinks
        }
        topology = b.Topology(frozenset(map(TaskId, graph.tasks)), frozenset(map(SinkId, graph.sinks)))
        self.machine = world.roles["coordinator"](
            topology, Incarnation(durable.incarnation), Epoch(durable.base), world.limits, owed
        )

    def take(self, world: BarrierWorld, event: Event) -> None:
        """Hand one event to its machine."""
        # the next commit record carries these acknowledgements
        if isinstance(event, b.SinkCommitted):
            self.acked[event.sink] = max(event.epoch, self.acked.get(event.sink, 0))
        for effect in world.hand(self.machine, event):
            self._do(world, effect)

    def _do(self, world: BarrierWorld, effect: Effect) -> None:
        ensure(self.finished is None, "Finish", f"{effect} after {self.finished}")
        match effect:
            case b.SetTimer(delay_ms=delay, elapsed=elapsed):
                self.timers.append((world.now + delay, elapsed))
            case b.InjectBarrier(epoch=epoch, incarnation=incarnation):
                ensure(epoch > self.injected, "O8", f"barrier {epoch} after {self.injected}")
                self.injected = epoch
                world.tell("coordinator", "inject", f"barrier {epoch}")
                for source in world.graph.sources:
                    world.offer_barrier(source, epoch, incarnation)
            case b.StoreEpoch(epoch=epoch, incarnation=incarnation):
                world.tell("coordinator", "decide", f"epoch {epoch}")
                world.store("decide", self.life, epoch, incarnation, dict(self.acked))
            case b.CommitSink(sink=sink, epoch=epoch, incarnation=incarnation):
                world.notify("coordinator", sink, b.EpochDecided(epoch, incarnation))
            case b.AbortEpoch(epoch=epoch, incarnation=incarnation):
                for name in world.graph.tasks:
                    world.notify("coordinator", name, b.EpochAborted(epoch, incarnation))
            case b.Finish():
                self.finished = effect
                world.tell("coordinator", "finish", f"{effect.outcome.value}: {effect.why}")
            case _:
                ensure(isinstance(effect, b.Note | b.Drop), "host", f"unknown effect {effect}")


class TaskProcess:
    """A source or an operator."""

    def __init__(self, world: BarrierWorld, name: str, life: int) -> None:
        self.name = name
        self.life = life
        self.state = world.durable.state(name)
        inputs = map(ChannelId, world.graph.inputs(name))
        base = Epoch(world.durable.base)
        self.machine = world.roles["operator"](TaskId(name), inputs, Incarnation(world.durable.incarnation), base)

    @property
    def restoring(self) -> bool:
        """True if it has met a newer incarnation and its state is not loaded yet."""
        return self.machine.phase is b.OperatorPhase.RESTORING

    def emit(self, world: BarrierWorld) -> None:
        """Read the next record of a source."""
        world.tell(self.name, "read", f"{self.name}.{self.state.cursor}")
        self._process(world, "", (self.name, self.state.cursor))
        self.state.cursor += 1

    def take(self, world: BarrierWorld, event: Event) -> None:
        """Hand one event to its machine."""
        for effect in world.hand(self.machine, event):
            self._do(world, effect)

    def _process(self, world: BarrierWorld, channel: str, record: Record) -> None:
        self.state.receive(channel, record)
        for output in world.graph.outputs(self.name):
            self.state.send(output, (self.name, *record))
            world.send(self.name, output, "rows", self.machine.incarnation, (self.name, *record))

    def _do(self, world: BarrierWorld, effect: Effect) -> None:
        match effect:
            case b.Deliver(event=b.RowsArrived(channel=channel, segment=segment)):
                self._process(world, channel, world.segments[segment])
            case b.CaptureSnapshot(epoch=epoch, incarnation=incarnation):
                key = (self.name, epoch, incarnation)
                ensure(key not in world.durable.snapshots, "O8", f"{key} captured twice")
                world.tell(self.name, "capture", str(epoch))
                world.store("snapshot", self.life, key, self.state.copy())
            case b.ForwardBarrier(epoch=epoch, incarnation=incarnation):
                self._forward(world, epoch, incarnation)
            case b.AckSnapshot(task=task, epoch=epoch, incarnation=incarnation):
                ensure(
                    (task, epoch, incarnation) in world.durable.snapshots,
                    "O6",
                    f"{effect} before it is durable",
                )
                world.notify(self.name, "coordinator", b.SnapshotAcked(task, epoch, incarnation))
            case b.RestoreTask():
                world.store("restore", self.life, self.name)
            case _:
                known = isinstance(effect, b.Note | b.Drop | b.Hold | b.Release)
                ensure(known, "host", f"unknown effect {effect}")
                self._remark(world, effect)

    def _remark(self, world: BarrierWorld, effect: Effect) -> None:
        match effect:
            case b.Drop(why=why):
                world.count("drop")
                world.tell(self.name, "drop", why)
            case b.Note(what=what, detail=detail):
                world.tell(self.name, "note", f"{what} {detail}")

    def _forward(self, world: BarrierWorld, epoch: int, incarnation: int) -> None:
        for output in world.graph.outputs(self.name):
            world.send(self.name, output, "barrier", incarnation, epoch)


class SinkProcess(TaskProcess):
    """A task that aligns the sink's inputs and, in the same process, the participant in two-phase commit."""

    def __init__(self, world: BarrierWorld, name: str, life: int) -> None:
        super().__init__(world, name, life)
        durable = world.durable
        self.open_rows: list[Record] = []
        self.segments: dict[int, list[Record]] = {}
        self.undecided: tuple[Record, ...] = ()
        self.participant = world.roles["sink"](
            SinkId(name),
            Incarnation(durable.incarnation),
            Epoch(durable.base),
            Epoch(durable.last_published(name)),
            [(Epoch(epoch), Incarnation(prepared_in)) for epoch, prepared_in in durable.in_doubt(name)],
        )

    def _process(self, world: BarrierWorld, channel: str, record: Record) -> None:
        super()._process(world, channel, record)
        # rows since the last barrier belong to the next epoch
        self.open_rows.append(record)

    def _forward(self, world: BarrierWorld, epoch: int, incarnation: int) -> None:
        self.segments[epoch] = self.open_rows
        self.open_rows = []
        self.take_sink(world, b.StagedUpTo(Epoch(epoch), Incarnation(incarnation)))

    def take_sink(self, world: BarrierWorld, event: Event) -> None:
        """Hand one event to the participant."""
        for effect in world.hand(self.participant, event):
            self._do_sink(world, effect)

    def _take_segments(self, epoch: int) -> tuple[Record, ...]:
        taken = [number for number in sorted(self.segments) if number <= epoch]
        return tuple(row for number in taken for row in self.segments.pop(number))

    def _do_sink(self, world: BarrierWorld, effect: Effect) -> None:
        durable = world.durable
        match effect:
            case b.AskDecision(sink=sink, epoch=epoch, prepared_in=prepared_in):
                world.store("ask", self.life, sink, epoch, prepared_in)
            case b.PrepareSink(sink=sink, epoch=epoch, incarnation=incarnation):
                self.undecided = self._take_segments(epoch)
                world.store("prepare", self.life, (sink, epoch, incarnation), self.undecided)
            case b.CarryOver(sink=sink, epoch=epoch, incarnation=incarnation):
                durable.discard((sink, epoch, incarnation))
                # rows of an aborted epoch move to the next one
                self.segments[epoch] = [*self.undecided]
            case b.DiscardPrepared(sink=sink, epoch=epoch, prepared_in=prepared_in):
                durable.discard((sink, epoch, prepared_in))
            case b.PublishEpoch(sink=sink, epoch=epoch):
                world.store("publish", self.life, sink, epoch)
            case b.VoteYes(sink=sink, epoch=epoch, incarnation=incarnation):
                ensure((sink, epoch, incarnation) in durable.prepared, "O6", f"{effect} before it is durable")
                world.notify(self.name, "coordinator", b.SinkPrepared(sink, epoch, incarnation))
            case b.VoteNo(sink=sink, epoch=epoch, incarnation=incarnation, why=why):
                world.notify(self.name, "coordinator", b.SinkRefused(sink, epoch, incarnation, why))
            case b.AckPublished(sink=sink, epoch=epoch, incarnation=incarnation):
                ensure(epoch <= durable.last_published(sink), "O6", f"{effect} before it is published")
                world.notify(self.name, "coordinator", b.SinkCommitted(sink, epoch, incarnation))
            case b.ReportPublishFailure(sink=sink, epoch=epoch, incarnation=incarnation, retriable=retriable, why=why):
                world.notify(self.name, "coordinator", b.SinkCommitFailed(sink, epoch, incarnation, retriable, why))
            case _:
                ensure(isinstance(effect, b.Note | b.Drop), "host", f"unknown effect {effect}")
