"""Conversion between records and rows of the epoch log, and the set of rows that the log still needs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

from pydantic import ValidationError

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import (
    FORMAT,
    AnyRecord,
    CreatedRecord,
    EpochBrief,
    Folded,
    HandoverAsked,
    Heartbeat,
    IncarnationRecord,
    IndexSaid,
    LossAccepted,
    MaintenanceEnded,
    MaintenanceLeased,
    Manifest,
    Published,
    ReaderMoved,
    Released,
    SavepointDropped,
    SavepointRecord,
)
from spark_ckpt.errors import EpochDamaged, FormatUnknown
from spark_ckpt.store.log_table import LogRow, NewRow

# Names in stored logs: a renamed class keeps its own.
KINDS: dict[str, type[AnyRecord]] = {
    "created": CreatedRecord,
    "incarnation": IncarnationRecord,
    "epoch": EpochBrief,
    "heartbeat": Heartbeat,
    "released": Released,
    "handover": HandoverAsked,
    "upkeep": MaintenanceLeased,
    "upkeep-ended": MaintenanceEnded,
    "published": Published,
    "savepoint": SavepointRecord,
    "savepoint-dropped": SavepointDropped,
    "folded": Folded,
    "loss-accepted": LossAccepted,
    "reader": ReaderMoved,
    "index": IndexSaid,
}
NAMES = {model: name for name, model in KINDS.items()}
_OF_A_LEASE = ("incarnation", "heartbeat", "released", "handover", "upkeep", "upkeep-ended", "published")
"""Kinds of rows of which only the newest counts."""


def row_of(record: AnyRecord, incarnation: int = 0, epoch: int = 0) -> NewRow:
    """Return `record` as a row to append. `incarnation` and `epoch` are the row's own columns; 0 for none."""
    text = record.model_dump_json()
    # Only the row of an epoch has a body that is longer than its brief.
    return NewRow(NAMES[type(record)], epoch, incarnation, uuid.uuid4().hex, text, text)


def record_of(row: LogRow) -> AnyRecord:
    """Parse the record of a row. Raises `FormatUnknown` for an unknown kind, `EpochDamaged` for unknown fields."""
    model = KINDS.get(row.kind)
    if model is None:
        raise FormatUnknown(f"the epoch log has a row of kind '{row.kind}'", hint="upgrade spark_ckpt on this machine")
    try:
        return model.model_validate_json(row.brief)
    # The seal was right, so the bytes are whole, and another version has written them.
    except ValidationError as error:
        raise EpochDamaged(
            f"row {row.seq} ({row.kind}) of the epoch log has fields this version does not know",
            hint="it was written by another version of spark_ckpt: use that one",
            field=".".join(str(part) for part in error.errors()[0]["loc"]),
        ) from None


def manifest_of(row: LogRow, body: str) -> Manifest:
    """Parse the manifest in the body of an epoch's row. Raises `FormatUnknown`, `EpochDamaged`."""
    try:
        manifest = Manifest.model_validate_json(body)
    except ValidationError as error:
        raise EpochDamaged(
            f"the manifest of epoch {row.epoch} has fields this version does not know",
            hint="it was written by another version of spark_ckpt: use that one",
            field=".".join(str(part) for part in error.errors()[0]["loc"]),
        ) from None
    if manifest.format != FORMAT:
        raise FormatUnknown.of(f"epoch {row.epoch}", manifest.format, FORMAT)
    return manifest


def totals(log_state: LogState, kept: AbstractSet[int] | None = None) -> Folded:
    """Return the summary row that replaces dropped rows. `kept`: the epochs that stay; None if none is dropped."""
    unpublished = {sink: tuple(sorted(epochs)) for sink, epochs in log_state.unpublished.items()}
    # Only a row that drops epochs says this: another process may have dropped some since this state.
    ancestors = None if kept is None else log_state.ancestors_among(kept)
    return Folded(last=log_state.last, acked=dict(log_state.acked), owed=unpublished, ancestors=ancestors)


def _took_back(row: LogRow) -> bool:
    record = record_of(row)
    return isinstance(record, IncarnationRecord) and bool(record.taken_back)


def needed_rows(rows: Sequence[LogRow], epochs: set[int]) -> set[int]:
    """Return the `seq` of each row that the log still needs if it keeps only `epochs`."""
    needed: set[int] = set()
    newest: dict[str, int] = {}
    savepoints: dict[str, int] = {}
    readers: dict[str, int] = {}
    said: dict[int, int] = {}
    incarnations = {row.incarnation for row in rows if row.kind == "epoch" and row.epoch in epochs}
    for row in rows:
        newest[row.kind] = row.seq
        # The incarnations of kept epochs stay, for the history that commands show.
        if row.kind in ("incarnation", "released") and row.incarnation in incarnations:
            needed.add(row.seq)
        # Earlier rows acknowledge epochs that these sinks have lost since. Without this row a fold would count them
        # as published.
        if row.kind == "incarnation" and _took_back(row):
            needed.add(row.seq)
        # Lost ids must never be assigned again, so a "loss-accepted" row stays for ever.
        if row.kind in ("created", "loss-accepted") or (row.kind == "epoch" and row.epoch in epochs):
            needed.add(row.seq)
        elif row.kind in ("savepoint", "savepoint-dropped"):
            record = record_of(row)
            if isinstance(record, SavepointRecord):
                savepoints[record.name] = row.seq
            elif isinstance(record, SavepointDropped):
                savepoints.pop(record.name, None)
        elif row.kind == "reader" and isinstance(record := record_of(row), ReaderMoved):
            readers[record.reader] = row.seq
        elif row.kind == "index" and row.epoch in epochs:
            # The first one stays, too: the lines of an epoch that was committed without an index begin with it.
            if row.epoch not in said:
                needed.add(row.seq)
            said[row.epoch] = row.seq
    # No "folded" row is needed: the commit that drops rows appends one with all sums.
    lease = {newest[kind] for kind in _OF_A_LEASE if kind in newest}
    return needed | lease | set(savepoints.values()) | set(readers.values()) | set(said.values())
