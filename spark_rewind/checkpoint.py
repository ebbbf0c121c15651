"""The checkpoint of one plain query: its batches, their end positions, and the states that can be loaded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_ckpt.errors import CheckpointDamaged, CheckpointForeign, RewindUnderWay
from spark_ckpt.spark_internals import query_logs
from spark_ckpt.spark_internals.query_logs import StateIds, Unreadable, batch_number
from spark_rewind.positions import KafkaPosition, Position, position_of
from spark_rewind.reading import HINT_DAMAGED, changed_ms, listed_text, names, parsing, text_of
from spark_rewind.source_files import FileLog, read_file_logs
from spark_rewind.state_versions import OperatorVersions, read_operators

HINT_FOREIGN = "name the folder that the query has as its checkpointLocation"


@dataclass(frozen=True, slots=True)
class Batch:
    """One micro-batch.

    - `began_ms`: time of the driver's clock after its ends were fixed and before its work began.
    - `committed_ms`: time at which its file in `commits` was written, None without one.
    - `ends`: positions by source; None for a source that was not read. `lines`: the same as Spark wrote them.
    - `placed`: true if a rewind wrote it, because Spark requires a batch before the newest. It is no point to restore.
    - `watermark_ms`: watermark of the batch. `next_watermark_ms`: watermark of the next batch, once this one is
      committed.
    - `offsets_sha256`: SHA-256 of its file in `offsets`, by which an outbox knows the batch.
    """

    number: int
    began_ms: int
    committed_ms: int | None
    ends: Mapping[str, Position | None]
    state_ids: StateIds | None
    placed: bool = False
    lines: Mapping[str, str | None] = field(default_factory=dict)
    watermark_ms: int = 0
    next_watermark_ms: int = 0
    offsets_sha256: str = ""


@dataclass(frozen=True, slots=True)
class Pinned:
    """A batch whose files are kept elsewhere, too: `folder` is a checkpoint as of it.

    `point`: name of the pinned point. `damage`: returns the damage of the files, None without damage. It runs only for
    the points of a line.
    """

    batch: Batch
    folder: Path
    point: str
    damage: Callable[[], str | None]


@dataclass(frozen=True, slots=True)
class QueryCheckpoint:
    """A query, as its checkpoint describes it.

    - `batches`: batches in the log without a gap, oldest first.
    - `digest`: of the logs, so that a change since a plan is detected.
    - `starts`: positions at which Kafka sources began.
    - `pinned`: batches that are kept elsewhere, with or without their file in the log.
    - `pinned_unbegun`: true if the query was pinned before its first batch, too.
    """

    name: str
    folder: Path
    query: str
    batches: tuple[Batch, ...]
    operators: tuple[OperatorVersions, ...]
    files: Mapping[str, FileLog]
    digest: str
    starts: Mapping[str, Position]
    notes: tuple[str, ...] = ()
    pinned: tuple[Pinned, ...] = ()
    pinned_unbegun: bool = False

    @property
    def committed(self) -> int | None:
        """Newest committed batch."""
        return next((each.number for each in reversed(self.batches) if each.committed_ms is not None), None)

    @property
    def unfinished(self) -> Batch | None:
        """Batch that was begun and not committed, None without one.

        Spark runs it again at the next start, with the same ends.
        """
        return self.batches[-1] if self.batches and self.batches[-1].committed_ms is None else None

    @property
    def from_the_beginning(self) -> bool:
        """True if the query may start from the beginning: the log has the first batch, or a point precedes it."""
        return self.pinned_unbegun or not self.batches or self.batches[0].number == 0

    @property
    def known(self) -> Sequence[Batch]:
        """Batches of the log and pinned ones, each once, oldest first. Pinned ones may have gaps among them."""
        if not self.pinned:
            return self.batches
        found = {each.batch.number: each.batch for each in self.pinned} | {each.number: each for each in self.batches}
        return [found[number] for number in sorted(found)]

    def batch(self, number: int) -> Batch | None:
        """Return a batch by its number, None if it is unknown."""
        # the log has no gaps: the index follows from the number
        at = number - self.batches[0].number if self.batches else -1
        if 0 <= at < len(self.batches):
            return self.batches[at]
        return next((each.batch for each in self.pinned if each.batch.number == number), None)

    def state_gone(self, batch: Batch) -> str | None:
        """Return the reason why the state after a batch cannot be loaded, None if it can.

        Judges by names of files, in the checkpoint and in pinned points.
        """
        gone = self._gone(batch)
        return None if gone is None else self._unless_pinned(batch, gone)

    def state_torn(self, batch: Batch) -> str | None:
        """Return the same judged by the content of snapshots. Opens files: meant for the batches of a line only."""
        torn = None if self._gone(batch) is not None else self._torn(batch)
        return None if torn is None else self._unless_pinned(batch, torn)

    def kept_in(self, batch: Batch) -> Pinned | None:
        """Return the pinned copy that replaces the files of a batch, None if the checkpoint's own files serve."""
        pins = self._pins_of(batch)
        if not pins or (self._gone(batch) is None and self._torn(batch) is None):
            return None
        return next((each for each in pins if each.damage() is None), None)

    def _gone(self, batch: Batch) -> str | None:
        # Known from a pinned point only.
        if not self.batches or batch.number < self.batches[0].number:
            return f"batch {batch.number} left the log"
        return next((why for each in self.operators if (why := each.gone(batch.number + 1)) is not None), None)

    def _torn(self, batch: Batch) -> str | None:
        return next((why for each in self.operators if (why := each.torn(batch.number + 1)) is not None), None)

    def _pins_of(self, batch: Batch) -> list[Pinned]:
        return [each for each in self.pinned if each.batch.number == batch.number]

    def _unless_pinned(self, batch: Batch, why: str) -> str | None:
        damages = [each.damage() for each in self._pins_of(batch)]
        return None if None in damages else "; ".join([why, *(each for each in damages if each is not None)])


def read_checkpoint(folder: Path, name: str, fenced_by: str | None = None) -> QueryCheckpoint:
    """Read a checkpoint; changes nothing. `fenced_by`: identity of a rewind whose fences are ignored.

    Raises `CheckpointForeign`, `CheckpointUnreadable`, `CheckpointDamaged`, `FormatUnknown`, `RewindUnderWay` for a
    fence.
    """
    query = _query_id(folder)
    digest = hashlib.sha256(query.encode())
    offsets = _unfenced(_log(folder / query_logs.OFFSETS), fenced_by)
    commits = _unfenced(_log(folder / query_logs.COMMITS), fenced_by)
    numbers = _unbroken(folder, sorted(offsets), sorted(commits))
    batches = tuple(_batch(number, offsets[number], commits.get(number), digest) for number in numbers)
    _check_commits(folder, batches)
    # nothing up to a placed batch can be restored: it stands for history that the rewind cut off
    batches = tuple(
        each for each in batches if each.number > max((one.number for one in batches if one.placed), default=-1)
    )
    notes = _notes(name, sorted(offsets), numbers)
    # Only a commit names the attempt whose state files count (checkpoint format 2): an unfinished batch has none.
    # Batch N leaves the state of version N + 1.
    ids = {each.number + 1: each.state_ids for each in batches if each.committed_ms is not None}
    operators = read_operators(folder / query_logs.STATE, ids, min(ids, default=1))
    files = read_file_logs(folder / query_logs.SOURCES, [each.ends for each in batches])
    starts = _starts(folder / query_logs.SOURCES, batches[-1].ends if batches else {})
    return QueryCheckpoint(name, folder, query, batches, operators, files, digest.hexdigest(), starts, notes)


def _query_id(folder: Path) -> str:
    if folder.is_file():
        raise _foreign(folder, "is no folder")
    try:
        return query_logs.parse_id(text_of(folder / query_logs.ID_FILE))
    except FileNotFoundError:
        what = "is no folder" if not folder.is_dir() else f"holds no file `{query_logs.ID_FILE}`"
        raise _foreign(folder, what) from None
    except Unreadable as error:
        what = f"{folder} is not the checkpoint of a query: {query_logs.ID_FILE}: {error}"
        raise CheckpointForeign(what, hint=HINT_FOREIGN) from error


def _foreign(folder: Path, what: str) -> CheckpointForeign:
    return CheckpointForeign(f"{folder} is not the checkpoint of a query: it {what}", hint=HINT_FOREIGN)


def _log(folder: Path) -> dict[int, Path]:
    return {number: folder / name for name in names(folder) if (number := batch_number(name)) is not None}


def _unfenced(log: dict[int, Path], fenced_by: str | None) -> dict[int, Path]:
    """Return a log without the fence that may be its newest file."""
    # A fence has the name of the next batch, so no older file can be one.
    newest = max(log, default=None)
    text = "" if newest is None else listed_text(log[newest])
    if newest is None or not text.startswith(query_logs.FENCE):
        return log
    if fenced_by is not None and text.startswith(f"{query_logs.FENCE}{fenced_by}:"):
        return {number: path for number, path in log.items() if number != newest}
    # The fence itself says which command opens it, and where its plan is.
    raise RewindUnderWay(
        f"{log[newest]} says that a rewind has begun and is not over", hint=text.partition(": ")[2].strip()
    )


def _unbroken(folder: Path, offsets: Sequence[int], commits: Sequence[int]) -> list[int]:
    """Return the newest batches of the log that have no gap among them."""
    newest = offsets[-1] if offsets else -1
    if commits and commits[-1] > newest:
        what = f"{folder}: batch {commits[-1]} is committed, and its file in `{query_logs.OFFSETS}` is missing"
        raise CheckpointDamaged(what, hint=HINT_DAMAGED)
    # The line counts data by batch, and a gap hides what its batches read: what is older than a gap is left out.
    there, found = set(offsets), newest
    while found - 1 in there:
        found -= 1
    return list(range(found, newest + 1)) if offsets else []


def _check_commits(folder: Path, batches: Sequence[Batch]) -> None:
    # Spark begins a batch only after the commit of the last.
    torn = next((each for each in batches[:-1] if each.committed_ms is None), None)
    if torn is None:
        return
    what = f"{folder}: batch {torn.number} is not committed, and later ones were begun"
    hint = (
        f"{HINT_DAMAGED}. Queries with asyncProgressTrackingEnabled log some batches only: they cannot be planned for"
    )
    raise CheckpointDamaged(what, hint=hint)


def _notes(name: str, offsets: Sequence[int], used: Sequence[int]) -> tuple[str, ...]:
    if not used or used[0] == offsets[0]:
        return ()
    return (f"{name}: batch {used[0] - 1} is missing in the log; batches before {used[0]} are left out",)


def _batch(number: int, offsets: Path, commit: Path | None, digest: hashlib._Hash) -> Batch:
    text = listed_text(offsets)
    with parsing(offsets):
        logged = query_logs.parse_batch(text)
        ends = {name: None if line is None else position_of(line) for name, line in logged.offsets.items()}
    # The numbers separate the texts: otherwise two logs that are cut at other places could have one digest.
    digest.update(f"\0{number}\0{text}".encode())
    committed_ms, state_ids, next_watermark_ms = None, None, 0
    if commit is not None:
        written = listed_text(commit)
        digest.update(f"\0{written}".encode())
        with parsing(commit):
            over = query_logs.parse_commit(written)
        # a batch never ends before it began, even if its file has an older time
        committed_ms = max(changed_ms(commit), logged.began_ms)
        state_ids, next_watermark_ms = over.state_ids, over.next_watermark_ms
    return Batch(
        number,
        logged.began_ms,
        committed_ms,
        ends,
        state_ids,
        query_logs.PLACEHOLDER in logged.conf,
        logged.offsets,
        logged.watermark_ms,
        next_watermark_ms,
        hashlib.sha256(text.encode()).hexdigest(),
    )


def _starts(folder: Path, ends: Mapping[str, Position | None]) -> dict[str, Position]:
    found: dict[str, Position] = {}
    for source, end in ends.items():
        path = folder / source / "0"
        if isinstance(end, KafkaPosition) and path.is_file():
            with parsing(path):
                found[source] = position_of(query_logs.parse_start(listed_text(path)))
    return found
