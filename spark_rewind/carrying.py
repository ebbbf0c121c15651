"""Execution of a rewind or an undo: prepare next to the old state, decide, publish, and open, step by step.

Each step is idempotent. After a crash, a user runs the same command again: before the decision it removes all leftovers
and begins again, after the decision it continues. Fences stop queries from starting in between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from spark_ckpt.delta_files import LOG
from spark_ckpt.errors import CheckpointDamaged, CkptError, RewindOutOfReach, RewindStale, RewindUnderWay
from spark_ckpt.failpoints import Failpoint, hit
from spark_rewind import folders, outbox_logs
from spark_rewind.checkpoint import read_checkpoint
from spark_rewind.checkpoint_copy import CheckpointCut, copy_checkpoint
from spark_rewind.drafting import QueryWish, TableDraft, TableWish, query_change, stamp_of, table_draft
from spark_rewind.durable import make_folder, remove_tree, sync_folder, write_new
from spark_rewind.fences import put_fences, remove_fences
from spark_rewind.journal import Journal
from spark_rewind.records import OutboxChange, QueryChange, RewindRecord, TableChange
from spark_rewind.replacing import put_in_place, write_mark
from spark_rewind.shifts import Shift
from spark_rewind.stages import PLAN_AGAIN, Phase
from spark_rewind.table_holding import put_back
from spark_rewind.tables import Table, read_table

_ENGINE = "spark-ckpt"


def redraft(record: RewindRecord, whole: Sequence[bool]) -> tuple[dict[int, TableDraft], dict[str, QueryChange]]:
    """Return tables with new commits, by their index in the record, and queries with a new checkpoint, by name.

    `whole`: true for each table whose commits are all public; it stays as it is. Changes nothing.
    """
    wishes = {each.name: _wish(record, each) for each in record.queries}
    # A table whose commits are all public keeps its numbers, and offsets in prepared checkpoints that count them stay right.
    drafts: dict[int, TableDraft] = {}
    shifts: dict[str, Shift] = {}
    for number, (change, done) in enumerate(zip(record.tables, whole, strict=True)):
        table = read_table(Path(change.path))
        if not done:
            drafts[number] = _draft(record, change, table, list(wishes.values()))
        shifts |= dict.fromkeys(table.ids, drafts[number].change.shift if number in drafts else change.shift)
    again = {each.name: query_change(wishes[each.name], shifts, _endings(each)) for each in record.queries}
    return drafts, {each.name: again[each.name] for each in record.queries if again[each.name].ends != each.ends}


def _wish(record: RewindRecord, change: QueryChange) -> QueryWish:
    now = read_checkpoint(Path(change.folder), change.name, fenced_by=record.identity)
    made_of = read_checkpoint(Path(change.source), change.name, fenced_by=record.identity)
    return QueryWish(now, made_of, change.batch, change.changed)


def _draft(record: RewindRecord, change: TableChange, table: Table, queries: Sequence[QueryWish]) -> TableDraft:
    """Draft a table again.

    An undo restores the content of before, with the late version if it was not written between rewind and undo.
    """
    stamp = stamp_of(table, record.identity, record.made_at_ms, _ENGINE)
    # The folders of the points: each source is a folder and the file's path below the table.
    kept_in = sorted({source.removesuffix(f"/{path}") for path, source in change.put_back.items()})
    undoes = record.kind == "undo"
    wish = TableWish(table, change.line, [*change.transactions], kept_in, record.raised(change.path), undoes)
    draft = table_draft(wish, queries, stamp)
    # Files that were put back already are not missing now, but VACUUM may still take them: no commit names them.
    update: dict[str, object] = {"put_back": {**change.put_back, **draft.change.put_back}}
    # Its first commit is public: the log now begins there, and only the record knows the version before.
    if table.versions[0].number >= change.first:
        update["newest"] = change.newest
    return TableDraft(draft.change.model_copy(update=update), draft.texts)


def _endings(change: QueryChange) -> tuple[str, str]:
    name = Path(change.folder).name
    return Path(change.side).name.removeprefix(name), Path(change.kept).name.removeprefix(name)


_IN_PART = "the rewind is carried out in part: remove the cause, and run the same command again"
_OVERTAKEN_MAX = 10
"""Versions of other writers that one call undoes. More come from a writer that runs, which a user has to stop."""


class _OvertakenError(Exception):
    """Another writer took the version number of a commit."""


class Carrier:
    """Executes one record. A call of any method may follow a crash."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def begin(
        self, record: RewindRecord, drafts: Sequence[TableDraft], settle: Callable[[], None] = lambda: None
    ) -> RewindRecord:
        """Run all steps. An error before the decision leaves everything as it was.

        `settle`: called once the fences are in place, if a query keeps state in files whose names carry no attempt.
        """
        try:
            # The plan before the first fence: it is what a user needs to open the query again.
            self.journal.keep_plan()
            self.journal.write(record)
            hit(Failpoint.REWIND_PREPARING)
            record = self._prepared(record, drafts, settle)
        # Also for an interrupt: no fence may stay without a decision.
        except BaseException:
            self.clean_up(record)
            raise
        # the decided record is durable: after a crash the rewind continues
        hit(Failpoint.REWIND_DECIDED)
        return self.go_on(record)

    def go_on(self, record: RewindRecord) -> RewindRecord:
        """Run the steps after the decision.

        Raises `RewindStale` if another writer changed a table before any commit was public.
        """
        # tables first: a checkpoint in place names versions that its tables must have
        record = self._committed(record)
        with _in_part():
            return self._published(record)

    def _published(self, record: RewindRecord) -> RewindRecord:
        # A log that continues from an older epoch refuses a table that still has the marker of a newer one.
        for outbox in record.outboxes:
            outbox_logs.branch(outbox, record.identity)
            hit(Failpoint.REWIND_OUTBOX_BRANCHED)
        for folder in record.folders:
            folders.publish(folder, record.identity)
        for query in record.queries:
            if query.changed:
                place, side, kept = Path(query.folder), Path(query.side), Path(query.kept)
                put_in_place(place, side, kept, record.identity, Failpoint.REWIND_SWAPPED)
                hit(Failpoint.REWIND_KEPT)
        self.journal.write(record.at(Phase.PUBLISHED))
        hit(Failpoint.REWIND_PUBLISHED)
        # The fences go last: no query can start on a mixture of old and new places.
        return self.finish(record)

    def finish(self, record: RewindRecord) -> RewindRecord:
        """Remove the fences and mark the record as done. Queries may run again."""
        for outbox in record.outboxes:
            outbox_logs.release(outbox, record.identity)
        for query in record.queries:
            fences = query.fences_after if query.changed else query.fences_before
            # The old checkpoint was fenced before the exchange. An undo puts it back, and then its query must start.
            remove_fences(_below(query.kept, query.fences_before) if query.changed else [], record.identity)
            remove_fences(_below(query.folder, fences), record.identity)
            hit(Failpoint.REWIND_UNFENCED)
        done = self.journal.write(record.at(Phase.DONE))
        hit(Failpoint.REWIND_DONE)
        self.journal.remove_texts(record)
        return done

    def clean_up(self, record: RewindRecord) -> None:
        """Remove all traces of an undecided record.

        A decision is revoked if no commit is public.
        """
        # PREPARING first: after a crash in the middle, the next call must clean up again
        if self.journal.phase(record.kind) is Phase.DECIDED:
            self.journal.write(record.at(Phase.PREPARING))
        for query in record.queries:
            if query.changed:
                remove_tree(Path(query.side))
            remove_fences(_below(query.folder, query.fences_before), record.identity)
        for folder in record.folders:
            folders.clean_up(folder)
        # Nothing began at another epoch before the decision, so the log needs only its lease back.
        for number, outbox in enumerate(record.outboxes):
            outbox_logs.release(outbox, record.identity)
            remove_tree(self.journal.rows(record, number))
        self.journal.remove_texts(record)
        self.journal.forget(record)

    # -- before the decision -----------------------------------------------------------------------------------------------

    def _prepared(self, record: RewindRecord, drafts: Sequence[TableDraft], settle: Callable[[], None]) -> RewindRecord:
        # fences first: from here on no query can add a batch to its log
        for query in record.queries:
            put_fences(_below(query.folder, query.fences_before), record.identity)
            hit(Failpoint.REWIND_FENCED)
        # Spark 4 uploads a snapshot up to a minute after its batch, once even after its query had stopped. The new checkpoint
        # would take such a file for one of its own.
        if any(has_nameless_state(record, query) for query in record.queries if query.changed):
            settle()
        # a query may have run until its fence: compare everything with the plan once more
        check_unmoved(record)
        for outbox in record.outboxes:
            outbox_logs.take(outbox, record.identity)
            hit(Failpoint.REWIND_OUTBOX_TAKEN)
        changes = [self._copied(record, query) if query.changed else query for query in record.queries]
        logs = [folders.prepare(each, record.identity) for each in record.folders]
        for draft in drafts:
            self._keep_texts(record, draft)
            _put_files_back(draft.change, PLAN_AGAIN)
        listed = [self._listed(record, number) for number in range(len(record.outboxes))]
        outboxes = [_with_identity(each, changes) for each, _ in listed]
        notes = [*record.notes, *(note for _, each in listed for note in each)]
        hit(Failpoint.REWIND_DRAFTED)
        # the copies took time: compare again, right before the decision
        check_unmoved(record)
        decided = {
            "queries": changes,
            "folders": logs,
            "outboxes": outboxes,
            "notes": notes,
            "phase": Phase.DECIDED,
        }
        return self.journal.write(record.model_copy(update=decided))

    def _listed(self, record: RewindRecord, number: int) -> tuple[OutboxChange, list[str]]:
        outbox = record.outboxes[number]
        rows, notes = outbox_logs.list_rows(outbox, self.journal.rows(record, number))
        return outbox.model_copy(update={"rows": rows}), notes

    def _copied(self, record: RewindRecord, query: QueryChange) -> QueryChange:
        """Copy a checkpoint as of its batch, with a mark that distinguishes it from the old one, and with fences."""
        # Its own fence is in the log of the source by now, and is no batch.
        source = read_checkpoint(Path(query.source), query.name, fenced_by=record.identity)
        copy = copy_checkpoint(source, CheckpointCut(query.batch, query.ends), Path(query.side))
        write_mark(Path(query.side), record.identity, query.kept)
        # Fenced before it is in place: the exchange must not open the query.
        put_fences(_below(query.side, query.fences_after), record.identity)
        hit(Failpoint.REWIND_COPIED)
        return query.model_copy(update={"digest_after": copy.digest})

    def _keep_texts(self, record: RewindRecord, draft: TableDraft) -> None:
        for text, digest in zip(draft.texts, draft.change.commits, strict=True):
            path = self.journal.text_path(record, digest)
            make_folder(path.parent, self.journal.folder)
            # An earlier try that died has kept it: its name is the digest of its content.
            with suppress(FileExistsError):
                write_new(path, text.encode())
            # The folder of the texts may be new, too.
            sync_folder(path.parent.parent)

    def _text(self, record: RewindRecord, digest: str) -> bytes:
        path = self.journal.text_path(record, digest)
        # Compared once more: a commit cannot be corrected once it is public.
        text = path.read_bytes() if path.is_file() else b""
        if hashlib.sha256(text).hexdigest() != digest:
            what = f"{path} is missing, or differs from the decided plan"
            raise CheckpointDamaged(what, hint="restore it from a backup, and run the same command again")
        return text

    # -- after it ----------------------------------------------------------------------------------------------------------

    def _committed(self, record: RewindRecord) -> RewindRecord:
        """Publish every table's commits. Versions of other writers since the decision are undone, too, with a note."""
        late = 0
        while True:
            try:
                for table in record.tables:
                    if not is_public(table):
                        # VACUUM may have deleted them once more if a command died before the commit that names them.
                        _put_files_back(table, "restore it there, and run the same command again")
                    for version in range(table.first, table.last + 1):
                        self._commit(record, table, version)
            except _OvertakenError as overtaken:
                # the decision can be revoked until the first commit is public
                if not any(map(is_public, record.tables)):
                    self.clean_up(record)
                    raise RewindStale(f"{overtaken} while the rewind was carried out", hint=PLAN_AGAIN) from None
                late += 1
                if late > _OVERTAKEN_MAX:
                    hint = "stop the program that writes it, and run the same command again"
                    raise RewindUnderWay(f"{overtaken}; the rewind is carried out in part", hint=hint) from None
                with _in_part():
                    record = self._redrafted(record, str(overtaken))
            else:
                return record

    def _commit(self, record: RewindRecord, table: TableChange, version: int) -> None:
        text, path = self._text(record, table.commits[version - table.first]), commit_path(table, version)
        try:
            write_new(path, text)
        except FileExistsError:
            # a commit with the same text is this rewind's own, from before a crash
            if path.read_bytes() != text:
                raise _OvertakenError(f"table {table.path}: another writer wrote version {version}") from None
            return
        hit(Failpoint.REWIND_TABLE_COMMITTED)

    def _redrafted(self, record: RewindRecord, told: str) -> RewindRecord:
        """Draft new version numbers for overtaken tables and for their readers.

        All checkpoints are still in preparation.
        """
        drafts, queries = redraft(record, [is_whole(each) for each in record.tables])
        # The old texts stay: if this dies before the record names the new ones, the next call reads the old ones first.
        for draft in drafts.values():
            self._keep_texts(record, draft)
        for query in queries.values():
            remove_tree(Path(query.side))
        changes = [
            self._copied(record, queries[each.name]) if each.name in queries else each for each in record.queries
        ]
        tables = [drafts[number].change if number in drafts else each for number, each in enumerate(record.tables)]
        outboxes = [_with_identity(each, changes) for each in record.outboxes]
        notes = [*record.notes, f"{told} while the rewind was carried out: that version is undone, too"]
        update = {"queries": changes, "tables": tables, "notes": notes, "outboxes": outboxes}
        return self.journal.write(record.model_copy(update=update))


@contextmanager
def _in_part() -> Iterator[None]:
    """Correct the advice of errors that are raised before a decision as well, and say there that nothing was changed."""
    try:
        yield
    except CkptError as error:
        if "nothing was changed" in error.hint:
            error.hint = _IN_PART
        raise


def _with_identity(outbox: OutboxChange, queries: Sequence[QueryChange]) -> OutboxChange:
    """Return the change with the identity that the base's batch has in the query's new checkpoint."""
    query = next(each for each in queries if each.name == outbox.query)
    return outbox.model_copy(update={"moved": outbox_logs.moved_batch(outbox, Path(query.side), query.batch)})


def _put_files_back(table: TableChange, hint: str) -> None:
    for path, source in table.put_back.items():
        try:
            # Until a commit names it the file has no effect, and VACUUM may remove it again.
            put_back(Path(source), Path(table.path, path))
        except FileNotFoundError as error:
            what = f"table {table.path}: data file {path} is gone from its pinned point {source}"
            raise RewindOutOfReach(what, hint=hint) from error


def has_nameless_state(record: RewindRecord, query: QueryChange) -> bool:
    """Return true for a query with state in checkpoint format 1. There, files of two histories have equal names."""
    found = read_checkpoint(Path(query.folder), query.name, fenced_by=record.identity)
    newest = next((each for each in reversed(found.batches) if each.committed_ms is not None), None)
    return bool(found.operators) and (newest is None or newest.state_ids is None)


def is_public(table: TableChange) -> bool:
    """Return true if the first commit of a table is public."""
    # Commits are published in order: without the first there is none.
    return _is_there(table, table.first)


def is_whole(table: TableChange) -> bool:
    """Return true if all commits of a table are public."""
    return all(_is_there(table, version) for version in range(table.first, table.last + 1))


def _is_there(table: TableChange, version: int) -> bool:
    path = commit_path(table, version)
    # A commit of another writer may have the number: only the content proves that it is this rewind's.
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == table.commits[version - table.first]


def check_unmoved(record: RewindRecord) -> None:
    """Check that all inputs are as they were when they were read. Raises `RewindStale`."""
    for query in record.queries:
        found = read_checkpoint(Path(query.folder), query.name, fenced_by=record.identity)
        if found.digest != query.digest_before:
            raise RewindStale(f"{query.name} has continued in the meantime", hint=PLAN_AGAIN)
    for table in record.tables:
        if read_table(Path(table.path)).digest != table.digest_before:
            raise RewindStale(f"table {table.path} was written in the meantime", hint=PLAN_AGAIN)
    for folder in record.folders:
        folders.check_unmoved(folder)
    for outbox in record.outboxes:
        outbox_logs.check_unmoved(outbox, record.identity)


def commit_path(table: TableChange, version: int) -> Path:
    """Return the path of a commit in a table's log."""
    return Path(table.path, LOG, f"{version:020d}.json")


def _below(folder: str, paths: Sequence[str]) -> list[Path]:
    return [Path(folder, each) for each in paths]
