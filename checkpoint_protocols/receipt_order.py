"""The order in which one process receives messages, and the part of it that other processes can replay.

A receipt is *fully logged* when the message's sender has its number. It needs no log when the process's own durable
checkpoint includes it (`covered`).
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
    """Receipt numbers of one process. `rsn` counts receipts; those in `unacked` are not known to be fully logged."""

    def __init__(self) -> None:
        self.rsn = 0
        self.covered = 0
        self.received: dict[ChannelId, int] = {}
        self.covered_up_to: dict[ChannelId, int] = {}
        """Newest message of each channel in the durable checkpoint; senders need not keep messages up to it."""
        self.places: dict[Place, int] = {}
        """Receipt numbers of messages received after the durable checkpoint, for senders that request them again."""
        self.unacked: set[int] = set()
        self.early: dict[Place, Received] = {}
        """Messages that arrived before an earlier message of the same channel."""
        self.depends: dict[str, int] = {}
        """For each sender, its newest receipt that a message received from it depends on."""

    @property
    def fully_logged(self) -> int:
        """Newest receipt up to which every receipt can be recovered."""
        # Receipts after a gap cannot be replayed in order, so only the unbroken beginning counts.
        return min(self.unacked) - 1 if self.unacked else self.rsn

    def is_known(self, event: Received) -> bool:
        """Return True if the message was received before."""
        return event.message.seq <= self.received.get(event.channel, 0)

    def is_next(self, event: Received) -> bool:
        """Return True if no earlier message of its channel is missing."""
        return event.message.seq == self.received.get(event.channel, 0) + 1

    def take(self, event: Received) -> int:
        """Record the message as the next receipt and return its receipt number."""
        message = event.message
        self.rsn += 1
        self.received[event.channel] = message.seq
        self.early.pop((event.channel, message.seq), None)
        self.places[event.channel, message.seq] = self.rsn
        self.unacked.add(self.rsn)
        self.depends[message.source] = max(self.depends.get(message.source, 0), message.index)
        return self.rsn

    def next_early(self) -> Received | None:
        """Return an early message that is now the next of its channel, or None."""
        return next((event for event in self.early.values() if self.is_next(event)), None)

    def cover(self, rsn: int, up_to: dict[ChannelId, int]) -> None:
        """Record a durable checkpoint with receipts up to `rsn`. `up_to` is its newest message per channel."""
        self.covered, self.covered_up_to = rsn, up_to
        self.places = {place: number for place, number in self.places.items() if number > rsn}
        self.unacked = {number for number in self.unacked if number > rsn}

    def waiting(self) -> Iterator[tuple[Place, int]]:
        """Return the receipts that are not fully logged, as (place, receipt number)."""
        return ((place, rsn) for place, rsn in self.places.items() if rsn in self.unacked)

    def as_record(self) -> dict[str, Json]:
        """Return the order as JSON, for `of`."""
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
        """Return the order that `as_record` wrote."""
        order = cls()
        order.rsn, order.covered = number(record["rsn"]), number(record["covered"])
        order.received, order.covered_up_to = counts(record["received"]), counts(record["covered up to"])
        for channel, seq, rsn in map(items, items(record["places"])):
            order.places[ChannelId(str(channel)), number(seq)] = number(rsn)
        order.unacked = {number(rsn) for rsn in items(record["unacked"])}
        order.early = {(event.channel, event.message.seq): event for event in receipts(record["early"])}
        order.depends = {source: number(rsn) for source, rsn in mapping(record["depends"]).items()}
        return order
