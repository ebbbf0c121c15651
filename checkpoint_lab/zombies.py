"""A zombie: a replaced incarnation that has not noticed and continues to work with the state that it has.

It keeps its state, its timers and the messages on their way to it; it receives nothing new. Its messages go out in the
name of its old incarnation. Its writes, erasures and publications meet the fence of its process. The oracles judge the
other processes only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

from checkpoint_lab.durable import Write, frame
from checkpoint_lab.network import Network
from checkpoint_lab.outside_world import Publication
from checkpoint_lab.process import Process, Timer
from checkpoint_lab.recovering import channel_of
from checkpoint_lab.state import Cut, State
from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.machine import Effect, Event
from checkpoint_protocols.recovery import Key, checkpoint_key
from checkpoint_protocols.transport import REPEAT, Asked
from checkpoint_protocols.vocabulary import (
    OUT,
    AppSent,
    Capture,
    Deliver,
    Erase,
    Hold,
    Received,
    Release,
    Restore,
    Send,
    SetTimer,
    SinkOp,
    SinkTransaction,
    Store,
    Stored,
)

if TYPE_CHECKING:
    from checkpoint_lab.job_recovery import RecoverableJob


class Zombie:
    """One replaced incarnation. `process` is its successor's name and store."""

    def __init__(self, process: Process, network: Network, names: list[str]) -> None:
        self.process = process
        self.name = process.name
        self.machine, self.incarnation, self.transport = process.machine, process.incarnation, process.transport
        self.is_source = process.is_source
        self.state = State.of(process.state.cut())
        self.held = set(process.held)
        # without the transport's timers: `act` hands every timer to the machine
        self.timers = [timer for timer in process.timers if timer.setting.name != REPEAT]
        self.shown_as = names
        """Lineages of its delivered rows."""
        self.refused = deque(write.token for write in process.writes)
        """Writes whose answers it waits for."""
        self.cuts: dict[Key, Cut] = dict(process.storage.cuts)
        self.replay = deque(process.replay)
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
                self.state.rows.append(job.truth.of(message) or 0)
                self.shown_as.append(job.app.lineage(message.body))
                self._take_in(job, self.shown_as[-1])
            case Store(key, record, token):
                self.refused.append(token)
                # a late write: the fence decides about it when it arrives
                self.process.late.append((self.incarnation, Write(key, frame(record), token, self.cuts.get(key))))
            case Capture(index):
                self.cuts[checkpoint_key(index)] = self.state.cut()
            case Erase(keys) if fence.admits(self.incarnation):
                self.process.storage.erase(keys)
            case SinkTransaction(SinkOp.COMMIT, name, first, last):
                rows, names = tuple(self.state.rows[first:last]), tuple(self.shown_as[first:last])
                self.process.late.append((self.incarnation, Publication(name, first, last, rows, names)))
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
