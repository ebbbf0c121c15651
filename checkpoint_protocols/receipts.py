"""Compact set of the messages that a process has received on channels without order.

Two messages of one channel with the same number never both count: the second exists only because the first was undone.
So numbers are enough. One number stands for the unbroken beginning; early messages are listed.
"""

from __future__ import annotations

from collections.abc import Mapping

from checkpoint_protocols.graph import channel_between
from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.record_fields import items, mapping, number
from checkpoint_protocols.vocabulary import Envelope, Json


class Receipts:
    """A set of messages. As JSON, it maps a channel to [n, [more]]: numbers 1 to n, and the listed ones."""

    def __init__(self, record: Json = None) -> None:
        self._upto: dict[ChannelId, int] = {}
        self._early: dict[ChannelId, set[int]] = {}
        for name, value in mapping(record or {}).items():
            upto, early = items(value)
            self._upto[ChannelId(name)] = number(upto)
            self._early[ChannelId(name)] = {number(each) for each in items(early)}

    def __contains__(self, message: Envelope) -> bool:
        channel = channel_between(message.source, message.target)
        return message.seq <= self._upto.get(channel, 0) or message.seq in self._early.get(channel, ())

    def add(self, message: Envelope) -> None:
        """Add one message to the set."""
        channel = channel_between(message.source, message.target)
        early = self._early.setdefault(channel, set())
        early.add(message.seq)
        upto = self._upto.get(channel, 0)
        while upto + 1 in early:
            upto += 1
            early.discard(upto)
        self._upto[channel] = upto

    def as_record(self) -> Mapping[str, Json]:
        """Return the JSON that the constructor reads."""
        return {channel: [upto, sorted(self._early[channel])] for channel, upto in sorted(self._upto.items())}
