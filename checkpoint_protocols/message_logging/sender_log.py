"""A sender's log of its messages until their receivers' checkpoints include them, and the order of their receipt.

An entry is *fully logged* when it has its receipt number (rsn): the message's place in the receiver's order of receipt,
over all senders together (erratum E12: a counter of the receiver, not a time of any process).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from checkpoint_protocols.ids import ChannelId, Incarnation, ProcessId
from checkpoint_protocols.incarnation import RollbackTable
from checkpoint_protocols.record_fields import items, mapping, number
from checkpoint_protocols.recovery import Key, Record, Records
from checkpoint_protocols.vocabulary import Envelope, Json


@dataclass(slots=True)
class Entry:
    """One message. `rsn` is None until its receiver reports it, or if that receipt was undone."""

    message: Envelope
    rsn: int | None = None


class SenderLog:
    """Entries per channel by `seq`."""

    def __init__(self) -> None:
        self.entries: dict[ChannelId, dict[int, Entry]] = {}

    def add(self, channel: ChannelId, entry: Entry) -> None:
        """Add the entry of a message that is about to be sent."""
        self.entries.setdefault(channel, {})[entry.message.seq] = entry

    def get(self, channel: ChannelId, seq: int) -> Entry | None:
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
                log.add(ChannelId(channel), Entry(message, rsn if stands else None))
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


def log_record(entry: Entry, incarnation: Incarnation) -> Record:
    """Return the durable record of an entry.

    Its `index` is the message's: the record stays valid if its writer undoes work that followed the send.
    """
    return {
        "incarnation": incarnation,
        "index": entry.message.index,
        "rsn": entry.rsn,
        "messages": [entry.message.as_record()],
    }


def durable_entries(records: Records, table: RollbackTable) -> Iterator[tuple[Key, Entry, bool]]:
    """Yield every message in a process's durable log, and True if its receipt is still valid."""
    for key, record in records.items():
        if key[0] == "log":
            (message,) = (Envelope.of(mapping(each)) for each in items(record["messages"]))
            rsn, known_in = number(record["rsn"]), Incarnation(number(record["incarnation"]))
            yield key, Entry(message, rsn), is_receipt(message.target, rsn, known_in, table)
