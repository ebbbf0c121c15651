"""Effects and events that do not belong to one protocol.

Barriers use the first group.  Protocols over plain messages (deficit counting, index-based, message logging,
leases) use all of them; together they are the seven events and twelve effects of the literature's common
interface.
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
    "Capture",
    "CheckpointKind",
    "Commanded",
    "Deliver",
    "Drop",
    "Envelope",
    "Erase",
    "Hold",
    "Json",
    "Note",
    "PeerChanged",
    "Received",
    "Release",
    "Restore",
    "Send",
    "SetTimer",
    "SinkOp",
    "SinkReplied",
    "SinkTransaction",
    "Store",
    "Stored",
    "TimerElapsed",
]

Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

OUT = ChannelId("->")
"""The gate that `Hold` and `Release` put on everything that leaves: protocols that gate output use it."""


# ---- effects of all protocols ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Deliver(Effect):
    """Hand the message of `event` to the application now."""

    event: Event


@dataclass(frozen=True, slots=True)
class Hold(Effect):
    """Deliver nothing more from the channel; keep what arrives, in order."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class Release(Effect):
    """Deliver again from the channel, beginning with what was kept."""

    channel: ChannelId


@dataclass(frozen=True, slots=True)
class SetTimer(Effect):
    """Hand `elapsed` back to `handle` after `delay_ms`. Nothing is cancelled: an older number is stale."""

    name: str
    delay_ms: int
    timer: TimerId
    elapsed: Event


@dataclass(frozen=True, slots=True)
class Note(Effect):
    """Something worth counting or showing happened. Ignoring a note changes nothing."""

    what: str
    detail: str = ""


# ---- protocols over plain messages -------------------------------------------------------------------------


class CheckpointKind(StrEnum):
    """What made a process take a checkpoint."""

    BASIC = "basic"
    FORCED = "forced"
    TENTATIVE = "tentative"
    PERMANENT = "permanent"


class SinkOp(StrEnum):
    """The steps of a sink's transaction."""

    PREPARE = "prepare"
    COMMIT = "commit"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class Envelope:
    """One message. `seq` counts per channel, `index` is the sender's epoch or checkpoint index then."""

    source: ProcessId
    target: ProcessId
    incarnation: Incarnation
    seq: int
    index: int
    kind: str
    header: Mapping[str, Json]
    body: Json

    def as_record(self) -> dict[str, Json]:
        """As JSON, for records that keep messages."""
        return {field: getattr(self, field) for field in self.__slots__}

    @classmethod
    def of(cls, record: Mapping[str, Json]) -> Envelope:
        """The message that `as_record` wrote."""
        return cls(**record)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Received(Event):
    """A message, the application's or the protocol's, is next on the channel; `replayed` after a recovery."""

    channel: ChannelId
    message: Envelope
    replayed: bool = False


@dataclass(frozen=True, slots=True)
class AppSent(Event):
    """The application wants to send; the machine answers `Send` with its headers, now or later."""

    channel: ChannelId
    body: Json


@dataclass(frozen=True, slots=True)
class TimerElapsed(Event):
    """A timer set under `name` has run out; `local_ms` is the process's own clock, maybe fast or slow."""

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
    """The sink answered for its transaction."""

    transaction: str
    ok: bool


@dataclass(frozen=True, slots=True)
class PeerChanged(Event):
    """Another process came up, as incarnation `peer_incarnation`, or went down."""

    peer: str
    up: bool
    peer_incarnation: Incarnation


@dataclass(frozen=True, slots=True)
class Commanded(Event):
    """The host, or its operator, wants something: begin, abort, roll back by a plan, stop."""

    name: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Send(Effect):
    """Put the message on the channel."""

    channel: ChannelId
    message: Envelope


@dataclass(frozen=True, slots=True)
class Capture(Effect):
    """Fix the process's state as it is now, under this index."""

    index: Epoch
    kind: CheckpointKind


@dataclass(frozen=True, slots=True)
class Store(Effect):
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
    """Load a checkpoint (None: keep the state), refill channels, rewind sources, then deliver again."""

    incarnation: Incarnation
    index: Epoch | None
    replay: tuple[Received, ...]
    cursors: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class SinkTransaction(Effect):
    """Carry out one step of a sink's transaction over the rows in (first, last]."""

    op: SinkOp
    transaction: str
    first: int
    last: int
