"""Position of a source after a batch, as far as its text in the offset log tells it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_ckpt.spark_internals.query_logs import UnknownFormat, Unreadable, log_offset_of

TopicPartition = tuple[str, int]

LARGEST = 2**62
"""Upper bound of offsets and versions, which are 64 bits wide. Spark never writes a larger number."""

_DELTA_VERSIONS = (1, 3)
"""Versions of `DeltaSourceOffset`. Version 2 is reserved; version 3 marks a change of the table's columns."""
_DELTA_FIELDS = {"sourceVersion", "reservoirId", "reservoirVersion", "index", "isStartingVersion"}
_BEFORE_ALL = (-1, -100)


@dataclass(frozen=True, slots=True)
class DeltaPosition:
    """A position in a Delta table's log.

    `index` counts files of `version`; with `snapshot`, files of the whole table as of `version`. An index before all
    files (-1 or -100) means that nothing of the version has been read.
    """

    table: str
    version: int
    index: int
    snapshot: bool

    @property
    def versions(self) -> int:
        """Number of versions that the position depends on: those with a lower number.

        A version that was read in part counts.
        """
        untouched = self.index in _BEFORE_ALL and not self.snapshot
        return self.version if untouched else self.version + 1

    def __str__(self) -> str:
        if self.versions == self.version:
            return f"before version {self.version}"
        whole = "the table as of version" if self.snapshot else "version"
        return f"file {max(self.index, 0)} of {whole} {self.version}"


@dataclass(frozen=True, slots=True)
class KafkaPosition:
    """The next offset of every partition."""

    offsets: Mapping[TopicPartition, int]

    def __str__(self) -> str:
        return ", ".join(f"{topic}/{number} at {offset}" for (topic, number), offset in sorted(self.offsets.items()))


@dataclass(frozen=True, slots=True)
class FilesPosition:
    """The newest entry of the source's own log of files, in `sources/<source>`."""

    log_offset: int

    def __str__(self) -> str:
        return f"entry {self.log_offset} of its log of files"


@dataclass(frozen=True, slots=True)
class OtherPosition:
    """Position of any other source (rate, sockets, sources in Python): opaque text that Spark alone can replay."""

    text: str

    def __str__(self) -> str:
        return self.text if len(self.text) <= 80 else f"{self.text[:77]}..."


Position = DeltaPosition | KafkaPosition | FilesPosition | OtherPosition


def position_of(text: str) -> Position:
    """Parse a source's line of the offset log.

    Raises `UnknownFormat` for a newer version of Delta's offset, `Unreadable` for text that is no valid offset.
    """
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        raise Unreadable("an offset is not JSON") from error
    if not isinstance(value, dict):
        return OtherPosition(text)
    if "reservoirId" in value:
        return _delta(value)
    if (entry := log_offset_of(value)) is not None:
        return FilesPosition(entry)
    return _kafka(value) or OtherPosition(text)


def _delta(value: Mapping[str, Any]) -> DeltaPosition:
    version = value.get("sourceVersion")
    # An unknown field may move the position, and a rewind would carry it along unchanged.
    if version not in _DELTA_VERSIONS or set(value) - _DELTA_FIELDS:
        raise UnknownFormat(f"Delta source offset {version}", [f"{each}" for each in _DELTA_VERSIONS])
    table, at, index, start = (
        value.get(name) for name in ("reservoirId", "reservoirVersion", "index", "isStartingVersion")
    )
    if not isinstance(table, str) or not _is_whole(at) or not _is_whole(index) or not isinstance(start, bool):
        raise Unreadable("a Delta source's offset is incomplete")
    return DeltaPosition(table, int(at or 0), int(index or 0), start)


def _kafka(value: Mapping[str, Any]) -> KafkaPosition | None:
    found: dict[TopicPartition, int] = {}
    for topic, partitions in value.items():
        # Other sources write JSON objects, too: only this exact shape is Kafka's.
        if not isinstance(partitions, dict) or not partitions:
            return None
        for partition, offset in partitions.items():
            # `isdecimal` accepts digits of every script.
            if not (partition.isdecimal() and partition.isascii()) or not _is_whole(offset):
                return None
            found[topic, int(partition)] = offset
    return KafkaPosition(found) if found else None


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST
