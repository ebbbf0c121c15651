"""Typed reading of the JSON in records and message bodies. What has another type was not written by a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from checkpoint_protocols.graph import channel_between
from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.vocabulary import Envelope, Json, Received


def number(value: Json) -> int:
    """An integer. Raises `ProtocolViolation`, as all of this module do."""
    if not isinstance(value, int):
        raise ProtocolViolation(f"not a number: {value!r}")
    return value


def items(value: Json) -> Sequence[Json]:
    """A list."""
    if isinstance(value, str) or not isinstance(value, Sequence):
        raise ProtocolViolation(f"not a list: {value!r}")
    return value


def mapping(value: Json) -> Mapping[str, Json]:
    """An object."""
    if not isinstance(value, Mapping):
        raise ProtocolViolation(f"not an object: {value!r}")
    return value


def counts(value: Json) -> dict[ChannelId, int]:
    """A number per channel."""
    return {ChannelId(channel): number(count) for channel, count in mapping(value).items()}


def envelopes(value: Json) -> tuple[Envelope, ...]:
    """Messages that were written with `as_record`."""
    return tuple(Envelope.of(mapping(each)) for each in items(value))


def receipts(value: Json) -> list[Received]:
    """Kept messages of the graph, as the events they came in."""
    return [Received(channel_between(each.source, each.target), each) for each in envelopes(value)]


def as_counts(numbers: Mapping[ChannelId, int]) -> dict[str, Json]:
    """What `counts` reads."""
    return {str(channel): count for channel, count in numbers.items()}
