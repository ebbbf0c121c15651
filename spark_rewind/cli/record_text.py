"""Text of a rewind's record for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from spark_ckpt.cli.output import Id, print_line, print_table
from spark_rewind.records import FolderChange, QueryChange, Record, TableChange

_TITLES = {"apply": "taken back", "undo": "put back"}


def print_record(record: Record, *, dry: bool) -> None:
    """Print queries and tables, kept folders and next steps."""
    print_line(f"{'would be ' if dry else ''}{_TITLES[record.kind]}: {record.target}")
    print_line()
    print_table(
        ("query", "newest batch", "its next batch reads on", "checkpoint before is kept as"),
        map(_query_row, record.queries),
    )
    if record.tables:
        print_line()
        columns = ("table", "version before", "holds again", "new versions", "files back", "files gone")
        print_table(columns, map(_table_row, record.tables))
    if record.folders:
        print_line()
        print_table(
            ("folder", "batch before", "newest batch", "files", "log before is kept as"),
            map(_folder_row, record.folders),
        )
    for title, lines in (("what is not known:", record.notes), ("next:", list(_next(record, dry)))):
        if lines:
            print_line(f"\n{title}")
            for line in lines:
                print_line(f"  - {line}")
    if dry:
        print_line("\nNothing was changed.")


def _query_row(query: QueryChange) -> Sequence[object]:
    if not query.changed:
        return query.name, Id(query.batch), "as before", None
    batch = Id(query.batch) if query.batch >= 0 else "none: it begins anew"
    return query.name, batch, "in new versions" if query.ends else "as it did then", query.kept


def _table_row(table: TableChange) -> Sequence[object]:
    versions = f"{table.first} to {table.last}" if table.last > table.first else f"{table.first}"
    line = Id(table.line) if table.line >= 0 else "nothing"
    return table.path, Id(table.newest), line, versions, table.files_back, table.files_gone


def _folder_row(folder: FolderChange) -> Sequence[object]:
    files = f"{len(folder.files)} {'set aside in' if folder.away else 'back from'} {Path(folder.aside).name}"
    batch = Id(folder.batch) if folder.batch >= 0 else "none"
    return folder.path, Id(folder.newest), batch, files, folder.kept


def _next(record: Record, dry: bool) -> Iterator[str]:
    if dry:
        yield "stop the queries, then run the same command without --dry-run"
        return
    if record.kind == "apply":
        yield "mend what was wrong, and start the queries as ever: their checkpoints are in their old places"
        yield "to take this back before anything has run: spark-ckpt rewind undo with the same plan"
        if record.public:
            yield "records of undone batches are in topics: their readers will meet them again, see the plan"
    else:
        yield "start the queries as ever: they go on where they were"
    kept = [each.kept for each in record.queries if each.changed] + [each.kept for each in record.folders]
    kept += [each.aside for each in record.folders if each.away and each.files]
    if kept:
        yield f"when all is well: delete {', '.join(kept)}"
