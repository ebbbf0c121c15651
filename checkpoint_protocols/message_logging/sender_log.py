"""What a sender keeps of its messages until their receivers' checkpoints have them, and where each was received.

An entry is *fully logged* when it has its receipt number (rsn): the message's place in the order in which its
receiver took messages in, from all senders together (erratum E12: a counter of the receiver, no time of anybody).
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
    """One message; `rsn` is None until its receiver has said it, or when that receipt was undone."""

    message: Envelope
    rsn: int | None = None


class SenderLog:
    """Entries per channel by `seq`."""

    def __init__(self) -> None:
        self.entries: dict[ChannelId, dict[int, Entry]] = {}

    def add(self, channel: ChannelId, entry: Entry) -> None:
        """A message is about to be sent."""
        self.entries.setdefault(channel, {})[entry.message.seq] = entry

    def get(self, channel: ChannelId, seq: int) -> Entry | None:
        """The entry, unless it was never made or is trimmed."""
        return self.entries.get(channel, {}).get(seq)

    def trim(self, channel: ChannelId, last: int) -> None:
        """The receiver will never again need messages up to `last`."""
        kept = self.entries.get(channel, {})
        self.entries[channel] = {seq: entry for seq, entry in kept.items() if seq > last}

    def without_rsn(self) -> Iterator[tuple[ChannelId, Envelope]]:
        """Messages of which nobody has said that they arrived."""
        for channel, kept in self.entries.items():
            yield from ((channel, entry.message) for entry in kept.values() if entry.rsn is None)

    def renew(self, incarnation: Incarnation) -> None:
        """A new incarnation sends again in its own name what nobody has acknowledged."""
        for kept in self.entries.values():
            for entry in kept.values():
                if entry.rsn is None:
                    entry.message = replace(entry.message, incarnation=incarnation)

    def as_record(self) -> dict[str, Json]:
        """JSON, for `of`."""
        return {
            str(channel): [{"message": entry.message.as_record(), "rsn": entry.rsn} for entry in kept.values()]
            for channel, kept in self.entries.items()
        }

    @classmethod
    def of(cls, record: Record, table: RollbackTable) -> SenderLog:
        """The log in a process's record, without receipts that were undone since it was written."""
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
    """No recovery after incarnation `known_in` has undone receipt `rsn` of `receiver`."""
    later = (row for incarnation, row in table.items() if incarnation > known_in)
    lines = (row.get(receiver) if isinstance(row, Mapping) else row for row in later)
    return all(line is None or rsn < line for line in lines)


# -- the durable form ----------------------------------------------------------------------------------------------


def log_key(channel: ChannelId, seq: int, rsn: int) -> Key:
    """One fully logged message."""
    return ("log", channel, f"{seq:012d}", f"{rsn:012d}")


def log_record(entry: Entry, incarnation: Incarnation) -> Record:
    """`index` is the message's: the record outlives whatever its writer takes back of what it did after sending."""
    return {
        "incarnation": incarnation,
        "index": entry.message.index,
        "rsn": entry.rsn,
        "messages": [entry.message.as_record()],
    }


def durable_entries(records: Records, table: RollbackTable) -> Iterator[tuple[Key, Entry, bool]]:
    """Every message in a process's durable log, and whether its receipt still stands."""
    for key, record in records.items():
        if key[0] == "log":
            (message,) = (Envelope.of(mapping(each)) for each in items(record["messages"]))
            rsn, known_in = number(record["rsn"]), Incarnation(number(record["incarnation"]))
            yield key, Entry(message, rsn), is_receipt(message.target, rsn, known_in, table)
