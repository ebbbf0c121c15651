"""Machines' `Birth`s and messages for tests that pass events to one machine."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

from checkpoint_protocols.graph import Graph, channel_between, control_between
from checkpoint_protocols.ids import Incarnation, ProcessId
from checkpoint_protocols.incarnation import RollbackTable
from checkpoint_protocols.machine import Effect
from checkpoint_protocols.message_machine import APP
from checkpoint_protocols.recovery import Birth, ProtocolSettings, Record, Records
from checkpoint_protocols.vocabulary import Commanded, Envelope, Json, Received, StoreRecord

FIRST, SECOND, THIRD = Incarnation(1), Incarnation(2), Incarnation(3)
START = Commanded("start", {"local_ms": 0})
JOIN = Graph("join", (("s", "j"), ("t", "j"), ("j", "k")))
S, T, J, K = map(ProcessId, "stjk")

EffectT = TypeVar("EffectT", bound=Effect)


def birth(
    me: ProcessId,
    options: Mapping[str, Json] | None = None,
    checkpoint: Record | None = None,
    records: Records | None = None,
    table: RollbackTable | None = None,
    graph: Graph = JOIN,
) -> Birth:
    """The first incarnation, or that of the table's newest row."""
    incarnation = max(table or {FIRST: {}})
    return Birth(
        me, graph, incarnation, table or {}, ProtocolSettings(options=options or {}), checkpoint, records or {}
    )


def app(
    source: ProcessId, target: ProcessId, seq: int, index: int = 0, incarnation: int = 1, replayed: bool = False
) -> Received:
    """A message of the application, `s.1` for the first of s."""
    message = Envelope(source, target, Incarnation(incarnation), seq, index, APP, {}, f"{source}.{seq}")
    return Received(channel_between(source, target), message, replayed)


def control_message(source: ProcessId, target: ProcessId, kind: str, incarnation: int = 1, **body: Json) -> Received:
    """A message of the protocol."""
    return Received(
        control_between(source, target), Envelope(source, target, Incarnation(incarnation), 0, 0, kind, {}, body)
    )


def all_of(kind: type[EffectT], effects: Iterable[Effect]) -> list[EffectT]:
    """The effects of one kind, in order."""
    return [effect for effect in effects if isinstance(effect, kind)]


def only(kind: type[EffectT], effects: Iterable[Effect]) -> EffectT:
    """The one effect of a kind."""
    (found,) = all_of(kind, effects)
    return found


def tokens(effects: Iterable[Effect]) -> list[str]:
    """Tokens of the records being stored."""
    return [store.token for store in all_of(StoreRecord, effects)]
