"""Rows of the epoch log: records as rows, rows as records, and which rows the log still needs."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from pydantic import ValidationError

from spark_ckpt.errors import EpochDamaged, FormatUnknown
from spark_ckpt.store.log_state import LogState
from spark_ckpt.store.log_table import LogRow, NewRow
from spark_ckpt.store.records import (
    READABLE,
    AnyRecord,
    CreatedRecord,
    EpochBrief,
    Folded,
    HandoverAsked,
    Heartbeat,
    IncarnationRecord,
    LossAccepted,
    Manifest,
    Published,
    Released,
    SavepointDropped,
    SavepointRecord,
    UpkeepEnded,
    UpkeepLeased,
)

KINDS: dict[str, type[AnyRecord]] = {
    "created": CreatedRecord,
    "incarnation": IncarnationRecord,
    "epoch": EpochBrief,
    "heartbeat": Heartbeat,
    "released": Released,
    "handover": HandoverAsked,
    "upkeep": UpkeepLeased,
    "upkeep-ended": UpkeepEnded,
    "published": Published,
    "savepoint": SavepointRecord,
    "savepoint-dropped": SavepointDropped,
    "folded": Folded,
    "loss-accepted": LossAccepted,
}
NAMES = {model: name for name, model in KINDS.items()}
_OF_A_LEASE = ("incarnation", "heartbeat", "released", "handover", "upkeep", "upkeep-ended")
"""Of each of these kinds the newest row counts."""


def row_of(record: AnyRecord, incarnation: int = 0, epoch: int = 0) -> NewRow:
    """To be appended."""
    text = record.model_dump_json()
    return NewRow(NAMES[type(record)], epoch, incarnation, uuid.uuid4().hex, text, text)


def record_of(row: LogRow) -> AnyRecord:
    """What the row says. Raises `FormatUnknown`, `EpochDamaged`."""
    model = KINDS.get(row.kind)
    if model is None:
        raise FormatUnknown(
            f"the control log has a row of kind '{row.kind}'", hint="upgrade spark_ckpt on this machine"
        )
    try:
        return model.model_validate_json(row.brief)
    except ValidationError as error:
        raise EpochDamaged(
            f"row {row.seq} ({row.kind}) of the control log has fields this version does not know",
            hint="it was written by another version of spark_ckpt: use that one",
            field=".".join(str(part) for part in error.errors()[0]["loc"]),
        ) from None


def manifest_of(row: LogRow, body: str) -> Manifest:
    """The epoch of the row. Raises `FormatUnknown`, `EpochDamaged`."""
    try:
        manifest = Manifest.model_validate_json(body)
    except ValidationError as error:
        raise EpochDamaged(
            f"the manifest of epoch {row.epoch} has fields this version does not know",
            hint="it was written by another version of spark_ckpt: use that one",
            field=".".join(str(part) for part in error.errors()[0]["loc"]),
        ) from None
    if manifest.format not in READABLE:
        raise FormatUnknown(
            f"epoch {row.epoch} is in format {manifest.format}, this version knows {READABLE[-1]} and older",
            hint="upgrade spark_ckpt",
        )
    return manifest


def totals(log_state: LogState) -> Folded:
    """What the rows that are dropped would have said."""
    owed = {sink: tuple(sorted(epochs)) for sink, epochs in log_state.owed.items()}
    return Folded(last=log_state.last, acked=dict(log_state.acked), owed=owed)


def _took_back(row: LogRow) -> bool:
    """Rows of before acknowledge what the sinks have lost since."""
    record = record_of(row)
    return isinstance(record, IncarnationRecord) and bool(record.taken_back)


def needed_rows(rows: Sequence[LogRow], epochs: set[int]) -> set[int]:
    """`seq` of the rows that the log still needs when only `epochs` are kept."""
    needed: set[int] = set()
    newest: dict[str, int] = {}
    savepoints: dict[str, int] = {}
    incarnations = {row.incarnation for row in rows if row.kind == "epoch" and row.epoch in epochs}
    for row in rows:
        newest[row.kind] = row.seq
        if row.kind in ("incarnation", "released") and row.incarnation in incarnations:
            needed.add(row.seq)
        if row.kind == "incarnation" and _took_back(row):
            needed.add(row.seq)
        if row.kind in ("created", "loss-accepted") or (row.kind == "epoch" and row.epoch in epochs):
            needed.add(row.seq)
        elif row.kind in ("savepoint", "savepoint-dropped"):
            record = record_of(row)
            if isinstance(record, SavepointRecord):
                savepoints[record.name] = row.seq
            elif isinstance(record, SavepointDropped):
                savepoints.pop(record.name, None)
    lease = {newest[kind] for kind in _OF_A_LEASE if kind in newest}
    return needed | lease | set(savepoints.values())
