"""The order in which one process takes messages in, and which part of it others could tell it again.

A receipt is *fully logged* when the message's sender has its number, and needs no log at all when it is behind the
process's own durable checkpoint (`covered`).
"""

from __future__ import annotations

from collections.abc import Iterator

from checkpoint_protocols.ids import ChannelId
from checkpoint_protocols.record_fields import as_counts, counts, items, mapping, number, receipts
from checkpoint_protocols.recovery import Record
from checkpoint_protocols.vocabulary import Json, Received

Place = tuple[ChannelId, int]
"""A message: its channel and number."""


class ReceiptOrder:
    """`rsn` counts receipts; those in `unacked` are not known to be fully logged."""

    def __init__(self) -> None:
        self.rsn = 0
        self.covered = 0
        self.received: dict[ChannelId, int] = {}
        self.covered_up_to: dict[ChannelId, int] = {}
        """Of each channel, what the durable checkpoint has: senders need not keep it."""
        self.places: dict[Place, int] = {}
        """Receipt numbers of what is behind the durable checkpoint, for senders that ask again."""
        self.unacked: set[int] = set()
        self.early: dict[Place, Received] = {}
        """Came before one that was sent earlier on the same channel."""
        self.depends: dict[str, int] = {}
        """Of each sender, its newest receipt that something received from it rests on."""

    @property
    def fully_logged(self) -> int:
        """Every receipt up to this one can be had again."""
        return min(self.unacked) - 1 if self.unacked else self.rsn

    def is_known(self, event: Received) -> bool:
        """It was taken in before."""
        return event.message.seq <= self.received.get(event.channel, 0)

    def is_next(self, event: Received) -> bool:
        """Nothing sent before it on its channel is missing."""
        return event.message.seq == self.received.get(event.channel, 0) + 1

    def take(self, event: Received) -> int:
        """The next receipt; its number."""
        message = event.message
        self.rsn += 1
        self.received[event.channel] = message.seq
        self.early.pop((event.channel, message.seq), None)
        self.places[event.channel, message.seq] = self.rsn
        self.unacked.add(self.rsn)
        self.depends[message.source] = max(self.depends.get(message.source, 0), message.index)
        return self.rsn

    def next_early(self) -> Received | None:
        """A message that came early and is the next of its channel now."""
        return next((event for event in self.early.values() if self.is_next(event)), None)

    def cover(self, rsn: int, up_to: dict[ChannelId, int]) -> None:
        """A checkpoint with receipts up to `rsn` is durable."""
        self.covered, self.covered_up_to = rsn, up_to
        self.places = {place: number for place, number in self.places.items() if number > rsn}
        self.unacked = {number for number in self.unacked if number > rsn}

    def waiting(self) -> Iterator[tuple[Place, int]]:
        """Receipts that are not fully logged."""
        return ((place, rsn) for place, rsn in self.places.items() if rsn in self.unacked)

    def as_record(self) -> dict[str, Json]:
        """JSON, for `of`."""
        return {
            "rsn": self.rsn,
            "covered": self.covered,
            "received": as_counts(self.received),
            "covered up to": as_counts(self.covered_up_to),
            "places": [[channel, seq, rsn] for (channel, seq), rsn in self.places.items()],
            "unacked": sorted(self.unacked),
            "early": [event.message.as_record() for event in self.early.values()],
            "depends": dict(self.depends),
        }

    @classmethod
    def of(cls, record: Record) -> ReceiptOrder:
        """What `as_record` wrote."""
        order = cls()
        order.rsn, order.covered = number(record["rsn"]), number(record["covered"])
        order.received, order.covered_up_to = counts(record["received"]), counts(record["covered up to"])
        for channel, seq, rsn in map(items, items(record["places"])):
            order.places[ChannelId(str(channel)), number(seq)] = number(rsn)
        order.unacked = {number(rsn) for rsn in items(record["unacked"])}
        order.early = {(event.channel, event.message.seq): event for event in receipts(record["early"])}
        order.depends = {source: number(rsn) for source, rsn in mapping(record["depends"]).items()}
        return order
