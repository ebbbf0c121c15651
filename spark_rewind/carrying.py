"""A rewind carried out, or its undo: prepared beside what is there, decided, made public, step by step.

Each step can be done twice. A process that dies anywhere is followed by one that runs the same command: before the decision it
takes away what it finds and begins again; after it, it goes on. The fences keep queries from starting on what is between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from pathlib import Path

from spark_ckpt.errors import CheckpointDamaged, RewindOutOfReach, RewindStale
from spark_ckpt.failpoints import Failpoint, hit
from spark_rewind import folders
from spark_rewind.checkpoint import read_checkpoint
from spark_rewind.checkpoint_copy import Cut, copy_checkpoint
from spark_rewind.drafting import TableDraft
from spark_rewind.durable import make_folder, remove_tree, sync_folder, write_new
from spark_rewind.fences import put_fences, remove_fences
from spark_rewind.journal import Journal
from spark_rewind.records import QueryChange, Record, TableChange
from spark_rewind.redrafting import redraft
from spark_rewind.replacing import put_in_place, write_mark
from spark_rewind.stages import Phase
from spark_rewind.table_holding import put_back
from spark_rewind.tables import LOG, read_table

_STALE = "plan again, and apply that plan; nothing was changed"


class _OvertakenError(Exception):
    """Somebody else has the number of a commit."""


class Carrier:
    """Carries one record out. Every method may be called again after a crash."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def begin(self, record: Record, drafts: Sequence[TableDraft], settle: Callable[[], None] = lambda: None) -> Record:
        """From nothing to done. Before the decision, whatever goes wrong leaves everything as it was.

        `settle`: called behind the fences if a query keeps state whose files name no attempt. Spark uploads snapshots some time
        after their batch, once even after its query has stopped; such a file would be taken for one of the new checkpoint.
        """
        try:
            self.journal.write(record)
            hit(Failpoint.REWIND_PREPARING)
            record = self._prepared(record, drafts, settle)
        except BaseException:
            self.clean_up(record)
            raise
        hit(Failpoint.REWIND_DECIDED)
        return self.go_on(record)

    def go_on(self, record: Record) -> Record:
        """From the decision to done. Raises `RewindStale` if somebody wrote a table before anything was public."""
        record = self._committed(record)
        for folder in record.folders:
            folders.publish(folder, record.identity)
        for query in record.queries:
            if query.changed:
                place, side, kept = Path(query.folder), Path(query.side), Path(query.kept)
                put_in_place(place, side, kept, record.identity, Failpoint.REWIND_SWAPPED)
                hit(Failpoint.REWIND_KEPT)
        self.journal.write(record.at(Phase.PUBLISHED))
        hit(Failpoint.REWIND_PUBLISHED)
        return self.finish(record)

    def finish(self, record: Record) -> Record:
        """Queries may run again."""
        for query in record.queries:
            fences = query.fences_after if query.changed else query.fences_before
            remove_fences(_below(query.kept, query.fences_before) if query.changed else [], record.identity)
            remove_fences(_below(query.folder, fences), record.identity)
            hit(Failpoint.REWIND_UNFENCED)
        done = self.journal.write(record.at(Phase.DONE))
        hit(Failpoint.REWIND_DONE)
        self.journal.remove_texts(record)
        return done

    def clean_up(self, record: Record) -> None:
        """Take away everything of a record that is not decided, or whose decision is taken back while nothing is public."""
        if self.journal.phase(record.kind) is Phase.DECIDED:
            self.journal.write(record.at(Phase.PREPARING))
        for query in record.queries:
            if query.changed:
                remove_tree(Path(query.side))
            remove_fences(_below(query.folder, query.fences_before), record.identity)
        for folder in record.folders:
            folders.clean_up(folder)
        self.journal.remove_texts(record)
        self.journal.forget(record)

    # -- before the decision -----------------------------------------------------------------------------------------------

    def _prepared(self, record: Record, drafts: Sequence[TableDraft], settle: Callable[[], None]) -> Record:
        for query in record.queries:
            put_fences(_below(query.folder, query.fences_before), record.identity)
            hit(Failpoint.REWIND_FENCED)
        if any(has_nameless_state(record, query) for query in record.queries if query.changed):
            settle()
        check_unmoved(record)
        changes = [self._copied(record, query) if query.changed else query for query in record.queries]
        logs = [folders.prepare(each, record.identity) for each in record.folders]
        for number, draft in enumerate(drafts):
            self._keep_texts(record, number, draft)
            _put_files_back(draft.change)
        hit(Failpoint.REWIND_DRAFTED)
        check_unmoved(record)
        decided = {"queries": changes, "folders": logs, "phase": Phase.DECIDED}
        return self.journal.write(record.model_copy(update=decided))

    def _copied(self, record: Record, query: QueryChange) -> QueryChange:
        """A new checkpoint, with a marker that tells it from the one before, and fences of its own."""
        source = read_checkpoint(Path(query.source), query.name, fenced_by=record.identity)
        copy = copy_checkpoint(source, Cut(query.batch, query.ends), Path(query.side))
        write_mark(Path(query.side), record.identity, query.kept)
        put_fences(_below(query.side, query.fences_after), record.identity)
        hit(Failpoint.REWIND_COPIED)
        return query.model_copy(update={"digest_after": copy.digest})

    def _keep_texts(self, record: Record, number: int, draft: TableDraft) -> None:
        for version, text in enumerate(draft.texts, draft.change.first):
            path = self.journal.text_path(record, number, version)
            make_folder(path.parent, self.journal.folder)
            write_new(path, text.encode())
            sync_folder(path.parent.parent)

    # -- after it ----------------------------------------------------------------------------------------------------------

    def _committed(self, record: Record) -> Record:
        """Every table's commits are public. Whoever wrote a table since the decision is undone, too, and told of."""
        while True:
            try:
                for number, table in enumerate(record.tables):
                    for version in range(table.first, table.last + 1):
                        self._commit(record, number, table, version)
            except _OvertakenError as overtaken:
                if not any(map(is_public, record.tables)):
                    self.clean_up(record)
                    raise RewindStale(f"{overtaken} while the rewind was carried out", hint=_STALE) from None
                record = self._redrafted(record, str(overtaken))
            else:
                return record

    def _commit(self, record: Record, number: int, table: TableChange, version: int) -> None:
        text = self.journal.text_path(record, number, version).read_bytes()
        path = commit_path(table, version)
        if hashlib.sha256(text).hexdigest() != table.commits[version - table.first]:
            what = f"{self.journal.text_path(record, number, version)} is not what was decided"
            raise CheckpointDamaged(what, hint="restore it from a backup, and run the same command again")
        try:
            write_new(path, text)
        except FileExistsError:
            if path.read_bytes() != text:
                raise _OvertakenError(f"table {table.path}: somebody else wrote version {version}") from None
            return
        hit(Failpoint.REWIND_TABLE_COMMITTED)

    def _redrafted(self, record: Record, told: str) -> Record:
        """New numbers for the tables that were overtaken, and for their readers; all checkpoints are still beside theirs."""
        drafts, queries = redraft(record, [is_whole(each) for each in record.tables])
        for number, draft in drafts.items():
            remove_tree(self.journal.text_path(record, number, 0).parent)
            self._keep_texts(record, number, draft)
        for query in queries.values():
            remove_tree(Path(query.side))
        changes = [
            self._copied(record, queries[each.name]) if each.name in queries else each for each in record.queries
        ]
        tables = [drafts[number].change if number in drafts else each for number, each in enumerate(record.tables)]
        notes = [*record.notes, f"{told} while the rewind was carried out: that version is undone, too"]
        return self.journal.write(record.model_copy(update={"queries": changes, "tables": tables, "notes": notes}))


def _put_files_back(table: TableChange) -> None:
    """Until a commit names them they mean nothing to the table, and VACUUM takes them again if none does."""
    for path, source in table.put_back.items():
        try:
            put_back(Path(source), Path(table.path, path))
        except FileNotFoundError as error:
            what = f"table {table.path}: data file {path} is gone from its pinned point {source}"
            raise RewindOutOfReach(what, hint=_STALE) from error


def has_nameless_state(record: Record, query: QueryChange) -> bool:
    """Whether a query has state in checkpoint format 1: two histories give its files the same names."""
    found = read_checkpoint(Path(query.folder), query.name, fenced_by=record.identity)
    newest = next((each for each in reversed(found.batches) if each.committed_ms is not None), None)
    return bool(found.operators) and (newest is None or newest.state_ids is None)


def is_public(table: TableChange) -> bool:
    """Whether the first commit of a table is there."""
    return _is_there(table, table.first)


def is_whole(table: TableChange) -> bool:
    """Whether all of them are."""
    return all(_is_there(table, version) for version in range(table.first, table.last + 1))


def _is_there(table: TableChange, version: int) -> bool:
    path = commit_path(table, version)
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == table.commits[version - table.first]


def check_unmoved(record: Record) -> None:
    """Whether everything is still as it was when it was looked at. Raises `RewindStale`."""
    for query in record.queries:
        found = read_checkpoint(Path(query.folder), query.name, fenced_by=record.identity)
        if found.digest != query.digest_before:
            raise RewindStale(f"{query.name} has gone on in the meantime", hint=_STALE)
    for table in record.tables:
        if read_table(Path(table.path)).digest != table.digest_before:
            raise RewindStale(f"table {table.path} was written in the meantime", hint=_STALE)
    for folder in record.folders:
        folders.check_unmoved(folder, _STALE)


def commit_path(table: TableChange, version: int) -> Path:
    """A commit in a table's log."""
    return Path(table.path, LOG, f"{version:020d}.json")


def _below(folder: str, paths: Sequence[str]) -> list[Path]:
    return [Path(folder, each) for each in paths]
