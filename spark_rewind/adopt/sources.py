"""Conversion of a plain query's offset to a cursor, by the connector that reads this kind of source."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spark_ckpt import connectors
from spark_ckpt.connector import Adopts, Cursor
from spark_ckpt.errors import AdoptionRefused
from spark_ckpt.spark_internals.query_logs import SOURCES, UnknownFormat, Unreadable, parse_start
from spark_rewind.checkpoint import QueryCheckpoint
from spark_rewind.positions import DeltaPosition, FilesPosition, KafkaPosition, Position, position_of
from spark_rewind.reading import parsing, text_of

_CONNECTORS = {KafkaPosition: "kafka", DeltaPosition: "delta"}
"""Connectors by the kind of offset that they can continue from."""


@dataclass(frozen=True, slots=True)
class Stand:
    """Position of one source. `kind`: its connector; `position`: text for people."""

    kind: str
    position: str
    cursor: Cursor
    identity: Mapping[str, str]


def stand_of(checkpoint: QueryCheckpoint, source: str, line: str | None) -> Stand | None:
    """Return a source's position at a line of the offset log.

    Without a line, return its start, None if the checkpoint does not record it. Raises `AdoptionRefused` for a kind of
    source that cannot be adopted, `SourceInvalid`, `CheckpointDamaged`, `ConnectorUnknown`, `ConnectorBroken`.
    """
    offset = _beginning(checkpoint, source) if line is None else line
    if offset is None:
        return None
    with parsing(f"{checkpoint.folder}, source {source}"):
        position = position_of(offset)
    kind = _CONNECTORS.get(type(position))
    if kind is None:
        raise _refused(source, position)
    adopted = _adopting(kind).adopted(offset)
    return Stand(kind, str(position), adopted.cursor, adopted.identity)


def _beginning(checkpoint: QueryCheckpoint, source: str) -> str | None:
    """Return the start offset in the source's own folder, which Kafka's source records."""
    # Kafka's source writes its start here; a file source's log has its first entry under the same name.
    path = checkpoint.folder / SOURCES / source / "0"
    if not path.is_file():
        return None
    try:
        offset = parse_start(text_of(path))
        return offset if isinstance(position_of(offset), KafkaPosition) else None
    except (UnknownFormat, Unreadable):
        return None  # a log of files, not an offset


def _adopting(kind: str) -> type[Adopts]:
    for each in connectors.named(kind).sources():
        if issubclass(each, Adopts):
            return each
    raise AdoptionRefused(
        f"connector {kind!r} cannot continue from a plain query's position", hint="upgrade the package that brings it"
    )


def _refused(source: str, position: Position) -> AdoptionRefused:
    if isinstance(position, FilesPosition):
        return AdoptionRefused(
            f"source {source} reads files, and a job cannot take over which of them were read",
            position=position,
            hint="let the query read all files, stop it, and start the job on a folder for new ones; nothing was changed",
        )
    return AdoptionRefused(
        f"source {source} is of a kind whose position means nothing here",
        position=position,
        hint=f"sources that can be adopted: {', '.join(_CONNECTORS.values())}; nothing was changed",
    )
