"""A sender's log of its messages until their receivers' checkpoints include them, and the order of their receipt.

An entry is *fully logged* when it has its receipt number (rsn): the message's place in the receiver's order of receipt,
over all senders together (erratum E12: a counter of the receiver, not a time of any process).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from checkpoint_protocols.ids import ChannelId, Incarnation, ProcessId
from checkpoint_protocols.incarnation import RollbackTable
from checkpoint_protocols.record_fields import as_counts, counts, items, mapping, number, receipts
from checkpoint_protocols.recovery import Key, Record, Records
from checkpoint_protocols.vocabulary import Envelope, Json, Received

# -- The order in which one process receives messages, and the part of it that other processes can replay.
#
# A receipt is *fully logged* when the message's sender has its number. It needs no log when the process's own durable
# checkpoint includes it (`covered`).


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


@dataclass(slots=True)
class SentEntry:
    """One message. `rsn` is None until its receiver reports it, or if that receipt was undone."""

    message: Envelope
    rsn: int | None = None


class SenderLog:
    """Entries per channel by `seq`."""

    def __init__(self) -> None:
        self.entries: dict[ChannelId, dict[int, SentEntry]] = {}

    def add(self, channel: ChannelId, entry: SentEntry) -> None:
        """Add the entry of a message that is about to be sent."""
        self.entries.setdefault(channel, {})[entry.message.seq] = entry

    def get(self, channel: ChannelId, seq: int) -> SentEntry | None:
        """Return the entry, or None if it was never added or is trimmed."""
        return self.entries.get(channel, {}).get(seq)

    def trim(self, channel: ChannelId, last: int) -> None:
        """Drop messages up to `last`: the receiver never needs them again."""
        kept = self.entries.get(channel, {})
        self.entries[channel] = {seq: entry for seq, entry in kept.items() if seq > last}

    def without_rsn(self) -> Iterator[tuple[ChannelId, Envelope]]:
        """Return the messages without a known receipt, with their channels."""
        for channel, kept in self.entries.items():
            yield from ((channel, entry.message) for entry in kept.values() if entry.rsn is None)

    def renew(self, incarnation: Incarnation) -> None:
        """Move unacknowledged messages to the new incarnation, which sends them again."""
        for kept in self.entries.values():
            for entry in kept.values():
                if entry.rsn is None:
                    entry.message = replace(entry.message, incarnation=incarnation)

    def as_record(self) -> dict[str, Json]:
        """Return the log as JSON, for `of`."""
        return {
            str(channel): [{"message": entry.message.as_record(), "rsn": entry.rsn} for entry in kept.values()]
            for channel, kept in self.entries.items()
        }

    @classmethod
    def of(cls, record: Record, table: RollbackTable) -> SenderLog:
        """Return the log in a process's record, without receipts that were undone since the record was written."""
        log = cls()
        written_in = Incarnation(number(record["incarnation"]))
        for channel, kept in mapping(record["log"]).items():
            for each in map(mapping, items(kept)):
                message = Envelope.of(mapping(each["message"]))
                rsn = None if each["rsn"] is None else number(each["rsn"])
                stands = rsn is not None and is_receipt(message.target, rsn, written_in, table)
                log.add(ChannelId(channel), SentEntry(message, rsn if stands else None))
        return log


def is_receipt(receiver: ProcessId, rsn: int, known_in: Incarnation, table: RollbackTable) -> bool:
    """Return True if no recovery after incarnation `known_in` has undone receipt `rsn` of `receiver`."""
    later = (row for incarnation, row in table.items() if incarnation > known_in)
    lines = (row.get(receiver) if isinstance(row, Mapping) else row for row in later)
    return all(line is None or rsn < line for line in lines)


# -- the durable form ----------------------------------------------------------------------------------------------


def log_key(channel: ChannelId, seq: int, rsn: int) -> Key:
    """Return the key of one fully logged message."""
    return ("log", channel, f"{seq:012d}", f"{rsn:012d}")


def log_record(entry: SentEntry, incarnation: Incarnation) -> Record:
    """Return the durable record of an entry.

    Its `index` is the message's: the record stays valid if its writer undoes work that followed the send.
    """
    return {
        "incarnation": incarnation,
        "index": entry.message.index,
        "rsn": entry.rsn,
        "messages": [entry.message.as_record()],
    }


def durable_entries(records: Records, table: RollbackTable) -> Iterator[tuple[Key, SentEntry, bool]]:
    """Yield every message in a process's durable log, and True if its receipt is still valid."""
    for key, record in records.items():
        if key[0] == "log":
            (message,) = (Envelope.of(mapping(each)) for each in items(record["messages"]))
            rsn, known_in = number(record["rsn"]), Incarnation(number(record["incarnation"]))
            yield key, SentEntry(message, rsn), is_receipt(message.target, rsn, known_in, table)
