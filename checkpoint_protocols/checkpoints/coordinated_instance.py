"""An instance of coordinated checkpointing: its name, the share of one process, and the record that decides it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from checkpoint_protocols.ids import ChannelId, ProcessId
from checkpoint_protocols.record_fields import as_counts, counts, items, mapping, number
from checkpoint_protocols.recovery import Key, Record, Records
from checkpoint_protocols.vocabulary import CheckpointKind, Json, Received

TENTATIVE, PERMANENT = CheckpointKind.TENTATIVE.value, CheckpointKind.PERMANENT.value
"""Values of `kind` in a checkpoint record."""

Counts = dict[ChannelId, int]


@dataclass(slots=True)
class Tentative:
    """A checkpoint under way. `sent` and `received` are its counts; `parent` requested it, None at the initiator."""

    index: int
    instance: str
    parent: ProcessId | None
    cohort: tuple[ProcessId, ...]
    sent: Counts
    received: Counts
    pending: set[ProcessId] = field(default_factory=set)
    participants: set[str] = field(default_factory=set)
    stored: bool = False
    agreed: bool = True
    record: Record | None = None
    """The captured record. None in an incarnation that began tentative: the record is durable then, or the instance was
    never decided.
    """

    def as_record(self) -> dict[str, Json]:
        """Return the state for a next incarnation as JSON. Votes are not included, since they are void by then."""
        return {
            "index": self.index,
            "instance": self.instance,
            "parent": self.parent,
            "cohort": list(self.cohort),
            "sent": as_counts(self.sent),
            "received": as_counts(self.received),
        }

    @classmethod
    def of(cls, record: Mapping[str, Json]) -> Tentative:
        """Return the checkpoint that `as_record` wrote."""
        parent = record["parent"]
        return cls(
            number(record["index"]),
            str(record["instance"]),
            None if parent is None else ProcessId(str(parent)),
            tuple(ProcessId(str(name)) for name in items(record["cohort"])),
            counts(record["sent"]),
            counts(record["received"]),
        )


def instance_of(event: Received) -> str:
    """Return the instance that a protocol message belongs to."""
    return str(mapping(event.message.body)["instance"])


def initiator_of(instance: str) -> ProcessId:
    """Return the process that began the instance `initiator/incarnation/index`."""
    return ProcessId(instance.rpartition("/")[0].rpartition("/")[0])


def place_of(instance: str) -> tuple[int, int]:
    """Return the instance's incarnation and index. Among an initiator's instances, later is greater."""
    _, incarnation, index = instance.rsplit("/", 2)
    return int(incarnation), int(index)


def commit_key(instance: str) -> Key:
    """Return the key of the initiator's decision record for the instance."""
    return ("commit", instance)


def decisions(records: Records) -> dict[str, set[ProcessId]]:
    """Return the participants of every decided instance that is not finished."""
    return {
        key[1]: {ProcessId(str(name)) for name in items(record["participants"])}
        for key, record in records.items()
        if key[0] == "commit"
    }
