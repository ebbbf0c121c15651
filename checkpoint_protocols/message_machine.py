"""Base of the machines over plain messages: message numbers, judgement of older and newer incarnations, and the current record."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from enum import Enum
from typing import ClassVar, TypeVar

from checkpoint_protocols.graph import control_between
from checkpoint_protocols.ids import ChannelId, Epoch, ProcessId
from checkpoint_protocols.incarnation import Age, age
from checkpoint_protocols.machine import Drop, Effect, Event, Machine
from checkpoint_protocols.recovery import Birth, Record
from checkpoint_protocols.vocabulary import Envelope, Json, Received, Restore, Send

PhaseT = TypeVar("PhaseT", bound=Enum, covariant=True)

APP = "app"
"""Kind of the application's messages; every other kind belongs to the protocol."""


class MessageMachine(Machine[PhaseT]):
    """One process of a protocol over plain messages.

    The door (rule G4) judges every `Received` before the table:

    - It drops an application message whose send was undone.
    - It drops every protocol message of an older incarnation.
    - A message of a newer incarnation makes the process roll back first: `Restore`, with the message. This
      holds if the message arrives before the news of the recovery, and after it.
    - A `DELAYED` message (older incarnation, never undone) passes; the protocol decides its handling.
    """

    AT_REST: ClassVar[tuple[Enum, ...]] = ()
    """Phases without pending work in this process. A system without pending work has every process in one of them."""

    def __init__(self, phase: PhaseT, birth: Birth) -> None:
        super().__init__(phase, birth.incarnation)
        self.me = birth.me
        self.graph = birth.graph
        self.settings = birth.settings
        self.table = birth.table
        self.sent: dict[ChannelId, int] = {}
        """Application messages sent per channel: the newest `seq`."""

    @abstractmethod
    def record(self) -> Record:
        """Return this machine as a checkpoint record, as JSON. A `Birth` with it continues from exactly this state."""

    # -- sending -------------------------------------------------------------------------------------------------

    def _send_app(self, channel: ChannelId, body: Json, index: int, header: Mapping[str, Json] | None = None) -> Send:
        """Return the send of the application's next message on a channel of the graph."""
        # Only messages of the application are counted. Receivers find gaps and repetitions by this number, and lines compare it.
        self.sent[channel] = self.sent.get(channel, 0) + 1
        target = self.graph.ends[channel][1]
        return Send(
            channel,
            Envelope(self.me, target, self.incarnation, self.sent[channel], index, APP, header or {}, body),
        )

    def _send_on(self, channel: ChannelId, kind: str, index: int, body: Json = None) -> Send:
        """Return the send of a protocol message (barrier, marker) on a graph channel, in order with application messages."""
        target = self.graph.ends[channel][1]
        # Number 0: barriers travel among the application's messages, in order, and must not change their counts.
        return Send(channel, Envelope(self.me, target, self.incarnation, 0, index, kind, {}, body))

    def _send_control(self, target: ProcessId, kind: str, index: int, body: Json = None) -> Send:
        """Return the send of a protocol message on the control channel."""
        return Send(
            # Number 0: control channels have no order to count. A transport gives numbers of its own where they lose
            # messages.
            control_between(self.me, target),
            Envelope(self.me, target, self.incarnation, 0, index, kind, {}, body),
        )

    # -- the door ------------------------------------------------------------------------------------------------

    def _door(self, event: Event) -> list[Effect] | None:
        if not isinstance(event, Received):
            return super()._door(event)
        message = event.message
        if message.incarnation == self.incarnation:
            why = self._stale(event)
            return None if why is None else [Drop(event, why)]
        return self._other_incarnation(event, message)

    def _other_incarnation(self, event: Received, message: Envelope) -> list[Effect] | None:
        if message.incarnation > self.incarnation:
            # The message belongs to the state after the rollback, so the host hands it in again there.
            return [Restore(event)]
        if message.kind != APP:
            return [Drop(event, f"{message.kind} of incarnation {message.incarnation}, this is {self.incarnation}")]
        # Control messages of a recovered epoch are void; application messages may only be late.
        verdict = age(message.source, message.incarnation, Epoch(message.index), self.incarnation, self.table)
        return [Drop(event, "its send was undone")] if verdict is Age.UNDONE else None


AnyMessageMachine = MessageMachine[Enum]
