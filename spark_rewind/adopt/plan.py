"""Parts of a plain query that a job takes over: positions of its sources, state and watermarks after a batch.

Reads the checkpoint only: no JVM, no writes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_ckpt.delta_files import LOG
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.names import valid_name
from spark_ckpt.errors import AdoptionRefused, CheckpointDamaged, CheckpointForeign, ConfigInvalid, LogDamaged
from spark_ckpt.spark_internals.query_logs import SINK_LOG
from spark_rewind.adopt.operators import StatefulOperator, read_operators, refuse_others
from spark_rewind.adopt.outboxes import published
from spark_rewind.adopt.sources import Stand, stand_of
from spark_rewind.adopt.unfinished import FINISH, Answer, settled
from spark_rewind.checkpoint import Batch, QueryCheckpoint, read_checkpoint
from spark_rewind.reading import HINT_DAMAGED, local_folder
from spark_rewind.sink_logs import read_sink_log
from spark_rewind.tables import read_table


def shown(folder: Path, query: str, batch: int) -> bool:
    """Return true if the output in `folder` has the batch of the query.

    Raises `CheckpointForeign` for a folder that is no such output, or of another query; `LogDamaged`,
    `CheckpointDamaged`, `CheckpointUnreadable`, `FormatUnknown`.
    """
    try:
        if (folder / LOG).is_dir():
            # batch numbers of a query only grow: a newer one implies this one
            return _newest_in_table(folder, query, batch) >= batch
        if (folder / SINK_LOG).is_dir():
            return read_sink_log(folder / SINK_LOG).newest >= batch
    except (LogDamaged, CheckpointDamaged) as error:
        # Of a rewind, which has a plan that can leave the output out.
        error.hint = (
            "restore the output's log from a backup; or look at the output, leave --output out, and pass --unfinished done or "
            "again; nothing was changed"
        )
        raise
    raise CheckpointForeign(
        f"{folder} is neither a Delta table nor the folder of a file sink",
        hint="name the query's output with --output, or leave it out and pass --unfinished done or again",
    )


def _newest_in_table(folder: Path, query: str, batch: int) -> int:
    table = read_table(folder)
    found = [number for each in table.versions for app, number in each.transactions if app == query]
    # Cleaned commits leave their newest transaction in the log's checkpoint.
    newest = max([*found, table.before.get(query, -1)])
    # A query in its first batch has no transaction in its own table yet.
    if newest < 0 and batch > 0:
        raise CheckpointForeign(
            f"{folder} has no transaction of the query {query}: it is not what its Delta sink writes",
            hint="name the query's own table with --output; a query that writes with foreachBatch names its batches in another "
            "way: look at the table, leave --output out, and pass --unfinished done or again",
        )
    return newest


def names_of(
    kind: str, there: Mapping[str, str], written: Sequence[str], valid: Callable[[str, str], str]
) -> dict[str, str]:
    """Return the name of each source or operator of a query, by Spark's number or name.

    `there`: descriptions by Spark's number or name. `written`: NAME=NUMBER, or NAME if there is only one. `valid`:
    checks (kind, name). Raises `ConfigInvalid` for an entry with no name or two names, and for an unknown number.
    """
    found: dict[str, str] = {}
    for each in written:
        name, number = _parts(kind, each, there)
        if number not in there:
            raise ConfigInvalid(
                f"--{kind} {each}: the query has no {kind} {number}", hint=_hint(kind, there), **_listed(kind, there)
            )
        if number in found:
            raise ConfigInvalid(
                f"--{kind}: {kind} {number} has two names, '{found[number]}' and '{name}'", hint="give it one"
            )
        if name in found.values():
            raise ConfigInvalid(f"--{kind}: two {kind}s are named '{name}'", hint="give each a name of its own")
        found[number] = valid(kind, name)
    missing = [number for number in there if number not in found]
    if missing:
        what = f"{kind} {missing[0]} of the query has no name in the job"
        raise ConfigInvalid(what, hint=_hint(kind, there), **_listed(kind, there))
    return found


def _parts(kind: str, written: str, there: Mapping[str, str]) -> tuple[str, str]:
    name, equals, number = written.partition("=")
    if equals:
        return name, number
    if len(there) != 1:
        raise ConfigInvalid(f"--{kind} {written}: which {kind} is it?", hint=_hint(kind, there), **_listed(kind, there))
    return name, next(iter(there))


def _listed(kind: str, there: Mapping[str, str]) -> dict[str, str]:
    return {f"{kind} {number}": words for number, words in there.items()}


def _hint(kind: str, there: Mapping[str, str]) -> str:
    if not there:
        return f"the query has no {kind}: leave --{kind} out"
    calls = " ".join(f"--{kind} NAME={number}" for number in there)
    return f"name each as the job does: {calls}"


@dataclass(frozen=True, slots=True)
class AdoptRequest:
    """The user's request.

    `sources`, `operators`: NAME=NUMBER; `output`: folder that the query writes; `outbox`: log of the query's outbox.
    `spark_operators`: the job has the query's stateful operators inside of `transform`.
    """

    checkpoint: str
    sources: Sequence[str] = ()
    operators: Sequence[str] = ()
    unfinished: Answer | None = None
    output: str | None = None
    outbox: LogState | None = None
    spark_operators: bool = False


@dataclass(frozen=True, slots=True)
class Taking:
    """Parts to take over.

    - `batch`: newest batch that the epoch includes, -1 for none.
    - `committed`: true if Spark recorded `batch` as committed.
    - `sources`, `operators`: by name in the job.
    - `watermark_ms`: watermark of the next batch. `late_ms`: watermark by which its rows would be late.
    - `digest`: of the logs.
    - `unread`: sources that the query has not read.
    - `spark_operators`: operators whose state Spark keeps in the job, too.
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
    spark_operators: tuple[StatefulOperator, ...] = ()
    unread: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())


def planned(request: AdoptRequest) -> Taking:
    """Return the parts that a request takes over.

    Raises `AdoptionRefused`, `ConfigInvalid`, `CheckpointForeign`, `CheckpointDamaged`, `CheckpointUnreadable`,
    `FormatUnknown`, `LogDamaged`, `SourceInvalid`.
    """
    folder = local_folder(request.checkpoint)
    checkpoint = read_checkpoint(folder, folder.name)
    stateful = read_operators(folder)
    # Operators of the job take the state over, or Spark's own keep it inside of `transform`.
    operators, kept = ((), stateful) if request.spark_operators else (stateful, ())
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
    # Without a batch there is no state: the job reads the query's first batch again.
    if batch is not None:
        _check_state(checkpoint, batch, stateful)
    if kept and (batch is None or batch.committed_ms is None):
        raise AdoptionRefused(
            "the state of Spark's own operators needs a committed batch, and the newest one is not", hint=FINISH
        )
    return Taking(
        query=checkpoint.query,
        folder=folder,
        digest=checkpoint.digest,
        batch=-1 if batch is None else batch.number,
        committed=batch is not None and batch.committed_ms is not None,
        sources={source_names[number]: stand for number, stand in stands.items() if stand is not None},
        operators={operator_names[str(each.number)]: each for each in operators},
        watermark_ms=_watermark(batch),
        # Spark judges which rows of a batch are late by the watermark of the batch before.
        late_ms=0 if batch is None else batch.watermark_ms,
        state_has_ids=batch is not None and batch.state_ids is not None,
        spark_operators=kept,
        unread=tuple(sorted(source_names[number] for number, stand in stands.items() if stand is None)),
        notes=_notes(checkpoint, answer),
    )


def _settled(request: AdoptRequest, checkpoint: QueryCheckpoint) -> Answer | None:
    open_ = checkpoint.unfinished
    number = None if open_ is None else open_.number
    if request.outbox is not None:
        return settled(number, request.unfinished, published(request.outbox, checkpoint))
    asked = number is not None and request.output is not None
    known = shown(local_folder(request.output or ""), checkpoint.query, number or 0) if asked else None
    return settled(number, request.unfinished, known)


def _newest_taken(checkpoint: QueryCheckpoint, answer: Answer | None) -> Batch | None:
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


def _stands(checkpoint: QueryCheckpoint, batch: Batch | None) -> dict[str, Stand | None]:
    """Return each source's position after the batch, None for an unread source without a recorded start."""
    # Without a batch to take, the log still says which sources the query has.
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
    # Spark's watermark never falls: an uncommitted batch has none for the next one yet, and its own holds.
    return max(batch.watermark_ms, batch.next_watermark_ms)


def _check_state(checkpoint: QueryCheckpoint, batch: Batch, operators: Sequence[StatefulOperator]) -> None:
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
            f"the state after batch {batch.number} may be incomplete, because the batch was not committed: {gone}",
            hint=FINISH,
        )
    if gone is not None:
        raise CheckpointDamaged(f"{checkpoint.folder}: {gone}", hint=HINT_DAMAGED)


def _has_ids(checkpoint: QueryCheckpoint, version: int) -> bool:
    """Return true if names of the state's files of a version hold the ids of their writers."""
    stores = [store.files() for each in checkpoint.operators for found in each.read().values() for store in found]
    kinds = [kind.get(version, {}) for files in stores for kind in (files.snapshots, files.changes)]
    return any(name for names in kinds for name in names)


def _notes(checkpoint: QueryCheckpoint, answer: Answer | None) -> tuple[str, ...]:
    open_ = checkpoint.unfinished
    if open_ is None:
        return ()
    if answer == "again":
        return (f"batch {open_.number} was begun and not committed: its rows are read again",)
    told = f"batch {open_.number} was not committed, and counts as done"
    if any(each.watermark_ms for each in checkpoint.batches):
        told += "; the watermark is the one that it ran with, and moves with the next rows"
    return (told,)
