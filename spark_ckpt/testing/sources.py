"""The promises of a source, each as a test. Derive a class from `SourceConformance` and give it a fixture `subject`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from spark_ckpt.connector import (
    ChecksMemory,
    Cursor,
    Identified,
    Json,
    KnowsColumns,
    LimitsBatches,
    MayNeverEnd,
    Remembers,
    SkipsLost,
    Source,
)
from spark_ckpt.errors import CkptError, SourceInvalid
from spark_ckpt.testing.promises import Row, refused, require, require_described, require_rows, skip
from spark_ckpt.testing.reading import Reading

_JUNK: tuple[Json, ...] = ("no such place", None, -1.5, [], {})


@dataclass(frozen=True)
class SourceSubject:
    """A source on fresh, empty input, and control of that input.

    - `make`: creates the source as a user's program does; called for every new driver.
    - `add`: adds to the input and returns the rows that the source must give for it: at least two, all different. Only
      their columns are compared.
    - `reading`: runs the streams.
    - `lose`: removes input of the first `add`, and of no other.
    - `renew`: replaces the input by another, empty one under the same name.
    - `secrets`: texts that must not be shown.
    """

    make: Callable[[], Source]
    add: Callable[[], Sequence[Row]]
    reading: Reading
    lose: Callable[[], None] | None = None
    renew: Callable[[], None] | None = None
    secrets: Sequence[str] = ()


class MemoryFolder:
    """A source's folder of the store, in memory."""

    uri = "memory:"

    def __init__(self) -> None:
        self.content: dict[str, bytes] = {}

    def read_bytes(self, path: str) -> bytes:
        """Return the bytes of a file. Raises FileNotFoundError."""
        if path not in self.content:
            raise FileNotFoundError(path)
        return self.content[path]

    def write_bytes(self, path: str, data: bytes) -> None:
        """Create or replace a file."""
        self.content[path] = data

    def entries(self) -> list[str]:
        """Return the names of the files."""
        return sorted(self.content)

    def delete(self, paths: Iterable[str]) -> None:
        """Delete files. Missing files are ignored."""
        for path in list(paths):
            self.content.pop(path, None)


@dataclass(frozen=True)
class SourceCut:
    """A position of the job, and the rows of the batch that ended there."""

    cursor: Cursor
    rows: list[Row]


@dataclass
class ReadingJob:
    """A job that reads the subject's source, with the added rows and the folder that its drivers share."""

    subject: SourceSubject
    folder: MemoryFolder = field(default_factory=MemoryFolder)
    added: list[Row] = field(default_factory=list)

    def add(self, pieces: int = 1) -> list[Row]:
        """Add input and return its rows."""
        fresh = [row for _ in range(pieces) for row in self.subject.add()]
        self.added += fresh
        return fresh

    def driver(self) -> Source:
        """Return the source of a new driver."""
        source = self.subject.make()
        if isinstance(source, Remembers):
            source.remember_in(self.folder)
        source.check(self.subject.reading.session)
        return source

    def start(self) -> Cursor:
        """Return the cursor at which the job begins."""
        return as_stored(self.driver().start(self.subject.reading.session))

    def cuts(self, cursor: Cursor, source: Source | None = None) -> list[SourceCut]:
        """Read from a cursor as a new driver does. Return each batch with its cursor as the store keeps it."""
        reader = source or self.driver()
        found = []
        for batch in self.subject.reading.batches(reader, cursor):
            cursor = as_stored(reader.cursor(batch.offset, cursor))
            found.append(SourceCut(cursor, batch.rows))
        return found

    def last_cut(self, cursor: Cursor, source: Source | None = None) -> Cursor:
        """Read input that is there, and return the last cursor."""
        found = self.cuts(cursor, source)
        require(bool(found), "input that is there gives a batch", cursor=cursor, added=len(self.added))
        return found[-1].cursor

    def grown_cuts(self, pieces: int = 3) -> list[SourceCut]:
        """Return the start as a cut without rows, then the cuts of a job that reads after each piece of input."""
        found = [SourceCut(self.start(), [])]
        for _ in range(pieces):
            self.add()
            found += self.cuts(found[-1].cursor)
        require(len(found) > pieces, "each piece of input gives a batch", cuts=[cut.cursor for cut in found])
        return found

    def end(self) -> Cursor:
        """Return the end of the present input."""
        return as_stored(self.driver().end(self.subject.reading.session))

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        """Return the answer of a new driver's source."""
        return self.driver().reached(cursor, end)

    @property
    def endless(self) -> bool:
        """True if the source says that it cannot be drained."""
        source = self.subject.make()
        return isinstance(source, MayNeverEnd) and source.endless is not None


def as_stored(cursor: Cursor) -> Cursor:
    """Return a cursor as a later driver finds it in the store."""
    try:
        stored = json.loads(json.dumps(cursor, allow_nan=False))
    except (TypeError, ValueError) as error:
        require(False, "a cursor is JSON", cursor=cursor, error=error)
    require(isinstance(stored, dict) and stored == cursor, "a cursor is a JSON object", cursor=cursor, stored=stored)
    return cast("Cursor", stored)


def rows_of(cuts: Iterable[SourceCut]) -> list[Row]:
    """Return the rows of batches."""
    return [row for cut in cuts for row in cut.rows]


class _Replay:
    """Reading from a cursor gives the same rows, every time and to every driver."""

    def test_every_row_is_read_once(self, subject: SourceSubject) -> None:
        """Rows that exist before the job, and rows that arrive while it runs."""
        job = ReadingJob(subject)
        job.add(2)
        cuts = job.cuts(job.start())
        require_rows(rows_of(cuts), job.added, "every row that is there is read once")
        require(bool(cuts), "input that is there gives a batch")
        fresh = job.add()
        require_rows(rows_of(job.cuts(cuts[-1].cursor)), fresh, "only what is new is read after the last cut")

    def test_a_new_driver_continues_at_every_cut(self, subject: SourceSubject) -> None:
        """Rows before the cut and rows after it are all rows."""
        job = ReadingJob(subject)
        cuts = job.grown_cuts()
        for number, cut in enumerate(cuts):
            before, after = rows_of(cuts[: number + 1]), rows_of(job.cuts(cut.cursor))
            require_rows([*before, *after], job.added, "no row is lost or doubled at a cut", cursor=cut.cursor)

    def test_the_same_rows_come_again(self, subject: SourceSubject) -> None:
        """Another driver reads from the same cursor."""
        job = ReadingJob(subject)
        job.add(2)
        start = job.start()
        first, again = (rows_of(job.cuts(start)) for _ in range(2))
        require_rows(again, first, "reading from the same cursor gives the same rows again", cursor=start)

    def test_a_batch_that_is_run_again_has_the_same_rows(self, subject: SourceSubject) -> None:
        """Spark runs a batch again up to its logged end, although more input has arrived."""
        job = ReadingJob(subject)
        job.add()
        first, again = subject.reading.replayed(job.driver, job.start(), job.add)
        require(bool(first), "input that is there gives rows")
        require_rows(again, first, "a batch that is run again has the same rows, also if more input came")

    def test_columns_are_the_same_at_every_cursor(self, subject: SourceSubject) -> None:
        """The job is planned with these columns."""
        job = ReadingJob(subject)
        columns = {subject.reading.columns(job.driver(), cut.cursor) for cut in job.grown_cuts(2)}
        source = job.driver()
        if isinstance(source, KnowsColumns):
            columns.add(source.columns(subject.reading.session).simpleString())
        require(len(columns) == 1, "the schema is the same on every call", schemas=columns)


class _Ends:
    """`start`, `end` and `reached` agree with what is read."""

    def test_the_end_is_reached_when_everything_is_read(self, subject: SourceSubject) -> None:
        """The end is not reached earlier; an endless source never reaches it."""
        job = ReadingJob(subject)
        job.add(2)
        start, end = job.start(), job.end()
        last = job.last_cut(start)
        require(not job.reached(start, end), "the end is not reached before anything is read", start=start, end=end)
        kept = job.reached(last, end) is not job.endless
        require(kept, "the end is reached when everything is read, unless the source is endless", cursor=last, end=end)

    def test_the_end_moves_with_the_input(self, subject: SourceSubject) -> None:
        """An older end stays reached, a newer one is not reached yet."""
        job = ReadingJob(subject)
        if job.endless:
            skip("the source is endless")
        job.add()
        end = job.end()
        last = job.last_cut(job.start())
        job.add()
        require(job.reached(last, end), "an end that was reached stays reached", cursor=last, end=end)
        newer = job.end()
        require(not job.reached(last, newer), "more input moves the end", cursor=last, end=newer)

    def test_cursors_only_go_forward(self, subject: SourceSubject) -> None:
        """A later cut has reached every end that an earlier cut has.

        A cut that reached an end reached all earlier ends.
        """
        job = ReadingJob(subject)
        if job.endless:
            skip("the source is endless")
        cuts, ends = [SourceCut(job.start(), [])], []
        for _ in range(3):
            job.add()
            ends.append(job.end())
            cuts += job.cuts(cuts[-1].cursor)
        table = [[job.reached(cut.cursor, end) for end in ends] for cut in cuts]
        # A cut that reached an end has reached the earlier ones; an end that is reached stays so at later cuts.
        by_cut = all(row == sorted(row, reverse=True) for row in table)
        by_end = all(list(column) == sorted(column) for column in zip(*table, strict=True))
        require(by_cut and by_end, "cursors and ends only go forward", reached_by_cut_and_end=table)


class _SourceRefusals:
    """A source continues from its cursor, or raises."""

    def test_a_cursor_of_something_else_is_refused(self, subject: SourceSubject) -> None:
        """Happens if two sources of a job exchange their names."""
        job = ReadingJob(subject)
        job.add()
        with refused(CkptError, "a cursor that is not the source's is refused with a typed error"):
            subject.reading.batches(job.driver(), {"nobody": "knows"})

    def test_a_damaged_cursor_is_refused_or_harmless(self, subject: SourceSubject) -> None:
        """Each field in turn gets another value: the source raises a typed error, or gives the same rows."""
        job = ReadingJob(subject)
        cut = job.grown_cuts(2)[-1]
        job.add()
        due = rows_of(job.cuts(cut.cursor))
        for name in cut.cursor:
            for junk in _JUNK:
                _refused_or_the_same(job, cast("Cursor", {**cut.cursor, name: junk}), due, name)

    def test_input_that_is_lost_is_not_passed_over(self, subject: SourceSubject) -> None:
        """A job that restores a position before the loss gets all rows, or an error."""
        job = ReadingJob(subject)
        if subject.lose is None:
            return skip("the subject has no `lose`")
        cuts = job.grown_cuts()
        subject.lose()
        source = job.driver()
        if isinstance(source, Remembers):
            source.check_cursor(cuts[-1].cursor, cuts[-1].cursor)
            with refused(SourceInvalid, "`check_cursor` refuses a cursor whose rows are gone"):
                source.check_cursor(cuts[0].cursor, cuts[-1].cursor)
            return None
        try:
            found = rows_of(job.cuts(cuts[0].cursor))
        except Exception:  # noqa: BLE001 - any error stops the query, so no rows are skipped
            return None
        require_rows(found, job.added, "rows that are gone are reported")
        return None

    def test_a_confirmed_loss_skips_no_row_behind_the_lost_ones(self, subject: SourceSubject) -> None:
        """After the user has confirmed a loss, the job reads from `past_lost`. A cursor without a loss stays as it is."""
        job = ReadingJob(subject)
        source = job.driver()
        if subject.lose is None or not isinstance(source, SkipsLost):
            return skip("the subject has no `lose`, or the source no `past_lost`")
        oldest = job.add()
        cuts = job.grown_cuts()
        subject.lose()
        past = [as_stored(source.past_lost(subject.reading.session, cut.cursor)) for cut in (cuts[0], cuts[-1])]
        require(past[1] == cuts[-1].cursor, "`past_lost` returns a cursor without a loss", cursor=past[1])
        again = as_stored(source.past_lost(subject.reading.session, past[0]))
        require(again == past[0], "nothing is lost behind `past_lost`", past_lost=past[0], again=again)
        job.add()
        read = rows_of(job.cuts(past[0]))
        # A source may lose a part of the oldest input or all of it. What was added later is not lost, before the loss or after it.
        least = len(job.added) - len(oldest)
        behind = job.added[-max(len(read), least) :]
        require_rows(read, behind, "the rows behind the loss are read", past_lost=past[0])
        return None


class _OptionalSourcePromises:
    """Promises that a source may make in addition; each is tested if the source makes it."""

    def test_descriptions_are_texts_without_secrets(self, subject: SourceSubject) -> None:
        """Reports show `describe`."""
        require_described(
            subject.make().describe(), subject.secrets, "a description is texts by name, none of them a secret"
        )

    def test_an_identity_is_the_same_at_every_start(self, subject: SourceSubject) -> None:
        """The identity does not depend on the amount of read or added input."""
        job = ReadingJob(subject)
        job.add()
        before = _identity(job)
        if before is None:
            return skip("the source has no identity")
        require_described(before, subject.secrets, "an identity is texts by name, none of them a secret")
        job.cuts(job.start())
        job.add()
        require(_identity(job) == before, "an identity is the same at every start", before=before, after=_identity(job))
        return None

    def test_another_input_has_another_identity(self, subject: SourceSubject) -> None:
        """A table, topic or folder was re-created under its old name."""
        job = ReadingJob(subject)
        job.add()
        before = _identity(job)
        if before is None or subject.renew is None:
            return skip("the subject has no `renew`, or the source no identity")
        subject.renew()
        require(_identity(job) != before, "another input under the same name has another identity", identity=before)
        return None

    def test_another_input_under_a_running_driver_is_not_passed_over(self, subject: SourceSubject) -> None:
        """The job queries the same source object before each commit. It reports the replacement, or reads all new rows."""
        job = ReadingJob(subject)
        if subject.renew is None:
            return skip("the subject has no `renew`")
        job.add(2)
        source, session = job.driver(), subject.reading.session
        before = dict(source.identity(session)) if isinstance(source, Identified) else None
        cursor = job.last_cut(job.start(), source)
        subject.renew()
        if isinstance(source, Identified) and dict(source.identity(session)) != before:
            return None
        # More than before: the old position then lies within the new input, and looks valid.
        fresh = [row for _ in range(3) for row in subject.add()]
        try:
            found = rows_of(job.cuts(cursor, source))
        except Exception:  # noqa: BLE001 - any error stops the query, so no rows are skipped
            return None
        require_rows(found, fresh, "a running job refuses another input, or reads all of its rows", cursor=cursor)
        return None

    def test_what_can_be_read_again_is_not_refused(self, subject: SourceSubject) -> None:
        """`check_cursor` accepts every cut, and changes nothing."""
        job = ReadingJob(subject)
        if not isinstance(job.driver(), Remembers):
            return skip("the source does not remember")
        cuts = job.grown_cuts()
        source = cast("Remembers", job.driver())
        before = dict(job.folder.content)
        for cut in cuts:
            source.check_cursor(cut.cursor, cuts[-1].cursor)
        source.check_cursor(None, cuts[-1].cursor)  # None: the configured start
        require(job.folder.content == before, "`check_cursor` changes nothing", before=sorted(before))
        return None

    def test_damaged_memory_is_found_without_the_job(self, subject: SourceSubject) -> None:
        """`memory_damage` finds nothing in a whole folder, and everything that stops a new driver at a cursor."""
        job = ReadingJob(subject)
        kind = type(job.driver())
        if not issubclass(kind, ChecksMemory):
            return skip("the source cannot check its memory without the job")
        cursors = [cut.cursor for cut in job.grown_cuts()]
        whole = dict(job.folder.content)
        found = kind.memory_damage(job.folder, cursors)
        require(not any(found), "nothing is found in a whole folder", found=found)
        for name, content in whole.items():
            # The file is missing, or cut.
            for damaged in ({}, {name: content[: len(content) // 2]}):
                there = {each: data for each, data in whole.items() if each != name} | damaged
                for cursor in cursors:
                    job.folder.content = dict(there)  # a driver may repair damaged files
                    [error] = kind.memory_damage(job.folder, [cursor])
                    promise = "damage is found where a driver cannot start, and nowhere else"
                    require(_starts(job, cursor) == (error is None), promise, file=name, cursor=cursor, found=error)
        return None

    def test_what_is_kept_can_be_read_after_a_release(self, subject: SourceSubject) -> None:
        """Released cuts may be gone; kept ones continue as before."""
        job = ReadingJob(subject)
        if not isinstance(job.driver(), Remembers):
            return skip("the source does not remember")
        cuts = job.grown_cuts(4)
        kept = [cuts[2], cuts[-1]]
        due = [rows_of(job.cuts(cut.cursor)) for cut in kept]
        cast("Remembers", job.driver()).release([cut.cursor for cut in kept])
        for cut, rows in zip(kept, due, strict=True):
            found = rows_of(job.cuts(cut.cursor))
            require_rows(found, rows, "a kept cursor gives its rows after a release", cursor=cut.cursor)
        return None

    def test_limited_batches_have_no_more_rows_and_the_same_ones(self, subject: SourceSubject) -> None:
        """`limited` is the same source with the same cursors. The limit is half of the rows added at once."""
        job = ReadingJob(subject)
        limit = max(1, len(job.add()) // 2)
        job.add(2)
        source = job.driver()
        limited = source.limited(limit) if isinstance(source, LimitsBatches) else None
        if limited is None or not isinstance(limited, LimitsBatches):
            return skip("the source does not limit batches, or they have other bounds")
        require(
            limited.rows_per_batch == limit, "a limited source says its limit", rows_per_batch=limited.rows_per_batch
        )
        require(limited.limited(limit) is None, "a source whose batches are no larger is not limited again")
        cuts = job.cuts(job.start(), limited)
        require(bool(cuts), "input that is there gives a batch", added=len(job.added))
        sizes = [len(cut.rows) for cut in cuts]
        require(
            max(sizes) <= limit, "a limited batch has no more rows than its limit", rows_by_batch=sizes, limit=limit
        )
        rest = job.cuts(cuts[0].cursor)
        require_rows(rows_of([cuts[0], *rest]), job.added, "the unlimited source continues where the limited one ended")
        return None


class SourceConformance(_Replay, _Ends, _SourceRefusals, _OptionalSourcePromises):
    """Every promise of a source. Derive from it and define the fixture `subject`: a new `SourceSubject` for each test."""


def _refused_or_the_same(job: ReadingJob, cursor: Cursor, due: list[Row], name: str) -> None:
    from pyspark.errors import PySparkException

    try:
        found = rows_of(job.cuts(cursor))
    except (CkptError, PySparkException):  # Spark's own check of an offset is typed as well
        return
    except Exception as error:
        require(
            False, "a damaged cursor is refused with a typed error", field=name, value=cursor[name], raised=repr(error)
        )
        raise
    require_rows(found, due, "a damaged cursor gives no other rows", field=name, value=cursor[name])


def _starts(job: ReadingJob, cursor: Cursor) -> bool:
    """Return True if a new driver continues from a cursor."""
    try:
        job.cuts(cursor)
    except CkptError:
        return False
    return True


def _identity(job: ReadingJob) -> Mapping[str, str] | None:
    source = job.driver()
    return dict(source.identity(job.subject.reading.session)) if isinstance(source, Identified) else None
