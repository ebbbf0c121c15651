"""Second draft of a rewind after its decision, for tables that another writer changed before their commits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spark_rewind.checkpoint import read_checkpoint
from spark_rewind.drafting import QueryWish, TableDraft, TableWish, query_change, stamp_of, table_draft
from spark_rewind.records import QueryChange, Record, TableChange
from spark_rewind.shifts import Shift
from spark_rewind.tables import Table, read_table

_ENGINE = "spark-ckpt"


def redraft(record: Record, whole: Sequence[bool]) -> tuple[dict[int, TableDraft], dict[str, QueryChange]]:
    """Return tables with new commits, by their index in the record, and queries with a new checkpoint, by name.

    `whole`: true for each table whose commits are all public; it stays as it is. Changes nothing.
    """
    wishes = {each.name: _wish(record, each) for each in record.queries}
    drafts: dict[int, TableDraft] = {}
    shifts: dict[str, Shift] = {}
    for number, (change, done) in enumerate(zip(record.tables, whole, strict=True)):
        table = read_table(Path(change.path))
        if not done:
            drafts[number] = _draft(record, change, table, list(wishes.values()))
        shifts |= dict.fromkeys(table.ids, drafts[number].change.shift if number in drafts else change.shift)
    again = {each.name: query_change(wishes[each.name], shifts, _endings(each)) for each in record.queries}
    return drafts, {each.name: again[each.name] for each in record.queries if again[each.name].ends != each.ends}


def _wish(record: Record, change: QueryChange) -> QueryWish:
    now = read_checkpoint(Path(change.folder), change.name, fenced_by=record.identity)
    made_of = read_checkpoint(Path(change.source), change.name, fenced_by=record.identity)
    return QueryWish(now, made_of, change.batch, change.changed)


def _draft(record: Record, change: TableChange, table: Table, queries: Sequence[QueryWish]) -> TableDraft:
    """Draft a table again.

    An undo restores the content of before, with the late version if it was not written between rewind and undo.
    """
    stamp = stamp_of(table, record.identity, record.made_at_ms, _ENGINE)
    draft = table_draft(TableWish(table, change.line, [*change.transactions]), queries, stamp)
    between = table.versions[0].number >= change.first
    return TableDraft(draft.change.model_copy(update={"newest": change.newest}), draft.texts) if between else draft


def _endings(change: QueryChange) -> tuple[str, str]:
    name = Path(change.folder).name
    return Path(change.side).name.removeprefix(name), Path(change.kept).name.removeprefix(name)
