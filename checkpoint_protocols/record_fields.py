"""Typed reading of the JSON in records and message bodies. Another type means that no machine wrote the value.

Every function raises `ProtocolViolation` on another type.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from checkpoint_protocols.graph import channel_between
from checkpoint_protocols.ids import ChannelId, ProcessId
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.vocabulary import Envelope, Json, Received

K = TypeVar("K")


def number(value: Json) -> int:
    """Return `value` as an integer. Raises `ProtocolViolation` if it is not one."""
    if not isinstance(value, int):
        raise ProtocolViolation(f"not a number: {value!r}")
    return value


def items(value: Json) -> Sequence[Json]:
    """Return `value` as a list. Raises `ProtocolViolation` if it is not one."""
    # A string is a `Sequence`, too.
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ProtocolViolation(f"not a list: {value!r}")
    return value


def mapping(value: Json) -> Mapping[str, Json]:
    """Return `value` as an object. Raises `ProtocolViolation` if it is not one."""
    if not isinstance(value, Mapping):
        raise ProtocolViolation(f"not an object: {value!r}")
    return value


def counts(value: Json) -> dict[ChannelId, int]:
    """Return a number per channel. Raises `ProtocolViolation` if `value` is not an object of numbers."""
    return {ChannelId(channel): number(count) for channel, count in mapping(value).items()}


def by_process(value: Json) -> dict[ProcessId, int]:
    """Return a number per process. Raises `ProtocolViolation` if `value` is not an object of numbers."""
    return {ProcessId(process): number(count) for process, count in mapping(value).items()}


def by_number(value: Json) -> dict[int, int]:
    """Return a number per number, as of snapshots. Raises `ProtocolViolation` if `value` is not an object of numbers."""
    return {int(key): number(count) for key, count in mapping(value).items()}


def envelopes(value: Json) -> tuple[Envelope, ...]:
    """Return the messages that `as_record` wrote. Raises `ProtocolViolation` if `value` is not a list of objects."""
    return tuple(Envelope.of(mapping(each)) for each in items(value))


def receipts(value: Json) -> list[Received]:
    """Return the stored messages of the graph as `Received` events on their channels.

    Raises `ProtocolViolation` if `value` is not a list of objects.
    """
    return [Received(channel_between(each.source, each.target), each) for each in envelopes(value)]


def as_counts(numbers: Mapping[K, int]) -> dict[str, Json]:
    """Return the JSON that `counts`, `by_process` and `by_number` read."""
    return {str(key): count for key, count in numbers.items()}
