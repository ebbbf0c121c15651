"""Parts of a plain query that a job takes over: positions of its sources, state and watermarks after a batch.

Reads the checkpoint only: no JVM, no writes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_ckpt.epochs.names import valid_name
from spark_ckpt.errors import AdoptionRefused, CheckpointDamaged
from spark_rewind.adopt.naming import names_of
from spark_rewind.adopt.operators import StatefulOperator, read_operators, refuse_others
from spark_rewind.adopt.output import shown
from spark_rewind.adopt.sources import Stand, stand_of
from spark_rewind.adopt.unfinished import FINISH, Answer, settled
from spark_rewind.checkpoint import HINT_DAMAGED, Batch, Checkpoint, read_checkpoint
from spark_rewind.reading import local_folder


@dataclass(frozen=True, slots=True)
class Request:
    """The user's request. `sources`, `operators`: NAME=NUMBER; `output`: folder that the query writes."""

    checkpoint: str
    sources: Sequence[str] = ()
    operators: Sequence[str] = ()
    unfinished: Answer | None = None
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Taking:
    """Parts to take over.

    - `batch`: newest batch that the epoch includes, -1 for none.
    - `committed`: true if Spark recorded `batch` as committed.
    - `sources`, `operators`: by name in the job.
    - `watermark_ms`: watermark of the next batch. `late_ms`: watermark by which its rows would be late.
    - `digest`: of the logs.
    - `unread`: sources that the query has not read.
    - `state_has_ids`: true if names of the state's files hold ids (Spark's checkpoint format 2).
    """

    query: str
    folder: Path
    digest: str
    batch: int
    committed: bool
    sources: Mapping[str, Stand]
    operators: Mapping[str, StatefulOperator]
    watermark_ms: int
    late_ms: int
    state_has_ids: bool = False
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def planned(request: Request) -> Taking:
    """Return the parts that a request takes over.

    Raises `AdoptionRefused`, `ConfigInvalid`, `CheckpointForeign`, `CheckpointDamaged`, `CheckpointUnreadable`,
    `FormatUnknown`, `LogDamaged`, `SourceInvalid`.
    """
    folder = local_folder(request.checkpoint)
    checkpoint = read_checkpoint(folder, folder.name)
    operators = read_operators(folder)
    refuse_others(operators)
    if not checkpoint.batches:
        raise AdoptionRefused(
            f"the query of {folder} has not begun a batch: there is nothing to take over",
            hint="start the job in an empty store",
        )
    answer = _settled(request, checkpoint)
    batch = _newest_taken(checkpoint, answer)
    stands = _stands(checkpoint, batch)
    operator_words = {str(each.number): f"{each.name}, {each.partitions} partitions" for each in operators}
    source_names = names_of(
        "source", {number: _words(stand) for number, stand in stands.items()}, request.sources, valid_name
    )
    operator_names = names_of("operator", operator_words, request.operators, valid_name)
    if batch is not None:
        _check_state(checkpoint, batch, operators)
    return Taking(
        query=checkpoint.query,
        folder=folder,
        digest=checkpoint.digest,
        batch=-1 if batch is None else batch.number,
        committed=batch is not None and batch.committed_ms is not None,
        sources={source_names[number]: stand for number, stand in stands.items() if stand is not None},
        operators={operator_names[str(each.number)]: each for each in operators},
        watermark_ms=_watermark(batch),
        late_ms=0 if batch is None else batch.watermark_ms,
        state_has_ids=batch is not None and batch.state_ids is not None,
        unread=tuple(sorted(source_names[number] for number, stand in stands.items() if stand is None)),
        notes=_notes(checkpoint, answer),
    )


def _settled(request: Request, checkpoint: Checkpoint) -> Answer | None:
    open_ = checkpoint.unfinished
    number = None if open_ is None else open_.number
    asked = number is not None and request.output is not None
    known = shown(local_folder(request.output or ""), checkpoint.query, number or 0) if asked else None
    return settled(number, request.unfinished, known)


def _newest_taken(checkpoint: Checkpoint, answer: Answer | None) -> Batch | None:
    """Return the newest batch that the epoch includes, None if the query's only batch is to run again."""
    newest = checkpoint.batches[-1]
    if answer != "again":
        return newest
    if len(checkpoint.batches) > 1:
        return checkpoint.batches[-2]
    if newest.number:
        raise CheckpointDamaged(
            f"{checkpoint.folder}: batch {newest.number} is not committed, and batch {newest.number - 1} is missing in the log",
            hint=HINT_DAMAGED,
        )
    return None


def _stands(checkpoint: Checkpoint, batch: Batch | None) -> dict[str, Stand | None]:
    """Return each source's position after the batch, None for an unread source without a recorded start."""
    lines = checkpoint.batches[-1].lines if batch is None else batch.lines
    found: dict[str, Stand | None] = {}
    for source in sorted(lines):
        line = None if batch is None else lines[source]
        found[source] = stand_of(checkpoint, source, line)
    return found


def _words(stand: Stand | None) -> str:
    return "not read yet" if stand is None else f"{stand.kind}, {stand.position}"


def _watermark(batch: Batch | None) -> int:
    if batch is None:
        return 0
    return max(batch.watermark_ms, batch.next_watermark_ms)


def _check_state(checkpoint: Checkpoint, batch: Batch, operators: Sequence[StatefulOperator]) -> None:
    """Raise `CheckpointDamaged` if the state after the batch cannot be loaded. Judges by the files that exist."""
    found = {each.number: each.read() for each in checkpoint.operators}
    for each in operators:
        missing = [number for number in range(each.partitions) if not found.get(each.number, {}).get(number)]
        if missing:
            raise CheckpointDamaged(
                f"{checkpoint.folder}: partition {missing[0]} of the state of operator {each.number} is missing",
                hint=HINT_DAMAGED,
                partitions=each.partitions,
            )
    gone = checkpoint.state_gone(batch) or checkpoint.state_torn(batch)
    # without a commit, no id says which attempt's files count
    if batch.committed_ms is None and _has_ids(checkpoint, batch.number + 1):
        gone = "which of the state's files count would be in its commit"
    if gone is not None and batch.committed_ms is None:
        raise AdoptionRefused(
            f"the state after batch {batch.number} is not known to be whole, since the batch was not committed: {gone}",
            hint=FINISH,
        )
    if gone is not None:
        raise CheckpointDamaged(f"{checkpoint.folder}: {gone}", hint=HINT_DAMAGED)


def _has_ids(checkpoint: Checkpoint, version: int) -> bool:
    """Return true if names of the state's files of a version hold the ids of their writers."""
    stores = [store.files() for each in checkpoint.operators for found in each.read().values() for store in found]
    kinds = [kind.get(version, {}) for files in stores for kind in (files.snapshots, files.changes)]
    return any(name for names in kinds for name in names)


def _notes(checkpoint: Checkpoint, answer: Answer | None) -> tuple[str, ...]:
    open_ = checkpoint.unfinished
    if open_ is None:
        return ()
    if answer == "again":
        return (f"batch {open_.number} was begun and not committed: its rows are read again",)
    told = f"batch {open_.number} was not committed, and counts as done"
    if any(each.watermark_ms for each in checkpoint.batches):
        told += "; the watermark is the one that it ran with, and moves with the next rows"
    return (told,)
