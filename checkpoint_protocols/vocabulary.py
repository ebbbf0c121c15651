"""Effects and events that do not belong to one protocol.

Barriers use the first group. Protocols over plain messages (deficit counting, index-based, message logging, leases) use
all of them. Together they are the seven events and twelve effects of the literature's common interface.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from checkpoint_protocols.ids import ChannelId, Epoch, Incarnation, ProcessId, TimerId
from checkpoint_protocols.machine import Drop, Effect, Event

__all__ = [
    "OUT",
    "AppSent",
    "CaptureState",
    "CheckpointKind",
    "Commanded",
    "Deliver",
    "Drop",
    "Envelope",
    "Erase",
    "Hold",
    "Json",
    "Note",
    "Received",
    "Release",
    "Restore",
    "Send",
    "SetTimer",
    "SinkReplied",
    "SinkTransaction",
    "StoreRecord",
    "Stored",
    "TimerElapsed",
]

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

OUT = ChannelId("->")
"""Gate of `Hold` and `Release` for all outgoing messages, for protocols that gate their output."""


# ---- effects of all protocols ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Deliver(Effect):
    """Hand the message of `event` to the application now."""

    event: Event


@dataclass(frozen=True, slots=True)
class Hold(Effect):
    """Deliver nothing more from the channel; keep arriving messages, in order."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class Release(Effect):
    """Deliver again from the channel, beginning with the kept messages."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class SetTimer(Effect):
    """Hand `elapsed` back to `handle` after `delay_ms`. Timers are not cancelled: an older number is stale."""

    name: str
    delay_ms: int
    timer: TimerId
    elapsed: Event


@dataclass(frozen=True, slots=True)
class Note(Effect):
    """Report something worth counting or showing. Ignoring a note changes nothing."""

    what: str
    detail: str = ""


# ---- protocols over plain messages -------------------------------------------------------------------------


class CheckpointKind(StrEnum):
    """Reason why a process takes a checkpoint."""

    BASIC = "basic"
    FORCED = "forced"
    TENTATIVE = "tentative"
    PERMANENT = "permanent"


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message. `seq` counts per channel; `index` is the sender's epoch or checkpoint index at the send."""

    source: ProcessId
    target: ProcessId
    incarnation: Incarnation
    seq: int
    index: int
    kind: str
    header: Mapping[str, Json]
    body: Json

    def as_record(self) -> dict[str, Json]:
        """Return the message as JSON, for records that keep messages."""
        return {field: getattr(self, field) for field in self.__slots__}

    @classmethod
    def of(cls, record: Mapping[str, Json]) -> Envelope:
        """Return the message that `as_record` wrote."""
        return cls(**record)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Received(Event):
    """A message of the application or the protocol is next on the channel.

    - `replayed`: it comes from a recovery.
    - `more`: the batch continues with another message. Sends that follow from a batch are requested at its end.
    """

    channel: ChannelId
    message: Envelope
    replayed: bool = False
    more: bool = False


MORE = "more"
"""Header of a replayed message: True if its batch continued after it, False if it ended with it.

A host that takes several messages in one batch ends the batch there again. Without the header it may end anywhere.
"""


@dataclass(frozen=True, slots=True)
class AppSent(Event):
    """The application requests a send. The machine answers `Send` with its headers, now or later."""

    channel: ChannelId
    body: Json


@dataclass(frozen=True, slots=True)
class TimerElapsed(Event):
    """A timer set under `name` has elapsed. `local_ms` is the process's own clock, which may be fast or slow."""

    name: str
    timer: TimerId
    local_ms: int


@dataclass(frozen=True, slots=True)
class Stored(Event):
    """The record stored under `token` is durable and readable after a crash (`ok`), or is not there."""

    token: str
    ok: bool


@dataclass(frozen=True, slots=True)
class SinkReplied(Event):
    """The sink replied for its transaction."""

    transaction: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Commanded(Event):
    """The host, or its operator, requests an action: begin, abort, roll back by a plan, stop."""

    name: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Send(Effect):
    """Put the message on the channel."""

    channel: ChannelId
    message: Envelope


@dataclass(frozen=True, slots=True)
class CaptureState(Effect):
    """Fix the process's current state under this index."""

    index: Epoch
    kind: CheckpointKind


@dataclass(frozen=True, slots=True)
class StoreRecord(Effect):
    """Write the record durably; answer `Stored(token)`."""

    key: tuple[str, ...]
    record: Json
    token: str


@dataclass(frozen=True, slots=True)
class Erase(Effect):
    """Remove records that no recovery line can need any more."""

    keys: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Restore(Effect):
    """Do this process's part of the newest recovery now, then hand in `event`, which is of that incarnation or a later one."""

    event: Received


@dataclass(frozen=True, slots=True)
class SinkTransaction(Effect):
    """Publish the rows in (first, last] in one transaction of the sink."""

    transaction: str
    first: int
    last: int
