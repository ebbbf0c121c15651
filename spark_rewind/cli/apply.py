"""`spark-ckpt rewind apply` and `undo`: execute a plan, or undo it.

Their modules are loaded when a command runs: planning, in the same application, needs none and takes less time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_ckpt.cli.options import AsJson
from spark_ckpt.cli.output import Id, print_json, print_line
from spark_rewind.cli.plan_text import print_list, print_outboxes, print_section, rows_again
from spark_rewind.records import FolderChange, QueryChange, RewindRecord, TableChange

if TYPE_CHECKING:
    from spark_rewind.applying import ApplySettings


_TITLES = {"apply": "rolled back", "undo": "put back"}


def print_record(record: RewindRecord, *, dry: bool) -> None:
    """Print queries and tables, kept folders and next steps."""
    print_line(f"{'would be ' if dry else ''}{_TITLES[record.kind]}: {record.target}")
    columns: Sequence[str] = ("query", "newest batch", "its next batch reads on", "checkpoint before is kept as")
    print_section(columns, map(_query_row, record.queries))
    columns = ("table", "version before", "holds again", "new versions", "files back", "files gone")
    print_section(columns, map(_table_row, record.tables))
    columns = ("folder", "batch before", "newest batch", "files", "log before is kept as")
    print_section(columns, map(_folder_row, record.folders))
    print_outboxes(record.outboxes)
    print_list("rows that sinks keep and that come again:", list(_again(record)))
    print_list("not known:", record.notes)
    print_list("next:", list(_next(record, dry)))
    if dry:
        print_line("\nNothing was changed.")


def _query_row(query: QueryChange) -> Sequence[object]:
    if not query.changed:
        return query.name, Id(query.batch), "as before", None
    batch = Id(query.batch) if query.batch >= 0 else "none: it starts from the beginning"
    return query.name, batch, "in new versions" if query.ends else "as it did then", query.kept


def _table_row(table: TableChange) -> Sequence[object]:
    versions = f"{table.first} to {table.last}" if table.last > table.first else f"{table.first}"
    line = Id(table.line) if table.line >= 0 else "nothing"
    return table.path, Id(table.newest), line, versions, table.files_back, table.files_gone


def _folder_row(folder: FolderChange) -> Sequence[object]:
    files = f"{len(folder.files)} {'set aside in' if folder.away else 'back from'} {Path(folder.aside).name}"
    batch = Id(folder.batch) if folder.batch >= 0 else "none"
    return folder.path, Id(folder.newest), batch, files, folder.kept


def _again(record: RewindRecord) -> Iterator[str]:
    yield from rows_again(record.outboxes)
    for outbox in record.outboxes:
        yield from (
            f"outbox {outbox.name}: the rows of sink {sink} are in {folder}" for sink, folder in outbox.rows.items()
        )


def _next(record: RewindRecord, dry: bool) -> Iterator[str]:
    if dry:
        yield "stop the queries, then run the same command without --dry-run"
        return
    if record.kind == "apply":
        yield "fix the cause, then start the queries: their checkpoints are in their old places"
        yield "to take this back before anything has run: spark-ckpt rewind undo with the same plan"
        if record.public:
            yield "records of undone batches are in topics: their readers will meet them again, see the plan"
    else:
        yield "start the queries: they continue from where they were"
    kept = [each.kept for each in record.queries if each.changed] + [each.kept for each in record.folders]
    kept += [each.aside for each in record.folders if each.away and each.files]
    if kept:
        yield f"when all is well: delete {', '.join(kept)}"


PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A file with what `rewind plan --json` printed.")]
Watch = Annotated[
    float, typer.Option("--watch-s", min=0, help="How long files are watched to see whether a query runs.")
]
Settle = Annotated[
    float,
    typer.Option(
        "--settle-s",
        min=0,
        help="Seconds to wait after the fences for the last snapshots of state whose file names have no attempts: longer than "
        "spark.sql.streaming.stateStore.maintenanceInterval. 0 if the applications have ended, not only the queries.",
    ),
]


def apply(
    plan: PlanFile,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan; change nothing.")] = False,
    watch_s: Watch = 10,
    settle_s: Settle = 75,
    from_snapshot: Annotated[
        list[str] | None,
        typer.Option(metavar="QUERY", help="It begins its tables as they are: no startingVersion. May be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Execute a plan: create new checkpoints and roll tables back. Stop the queries first; the old checkpoints are kept.

    Run the same command again after a crash. Until it is complete, queries of the plan refuse to start.
    """
    from spark_rewind import applying
    from spark_rewind.journal import read_plan

    record = applying.apply(read_plan(plan), _settings(watch_s, settle_s, from_snapshot or ()), dry=dry_run)
    if as_json:
        print_json(record.model_dump(mode="json"))
    else:
        print_record(record, dry=dry_run)


def undo(plan: PlanFile, watch_s: Watch = 10, settle_s: Settle = 75, as_json: AsJson = False) -> None:
    """Undo `rewind apply` of a plan: restore checkpoints and tables to their state before it.

    Refused if a query has run or a table was written since. Run the same command again after a crash.
    """
    from spark_rewind import applying
    from spark_rewind.journal import read_plan

    record = applying.undo(read_plan(plan), _settings(watch_s, settle_s, ()))
    if as_json:
        print_json(None if record is None else record.model_dump(mode="json"))
    elif record is None:
        print_line("Nothing of this plan had been carried out. What an earlier try left was taken away.")
    else:
        print_record(record, dry=False)


def _settings(watch_s: float, settle_s: float, from_snapshot: Sequence[str]) -> ApplySettings:
    from spark_rewind.applying import ApplySettings

    now_ms, engine = time.time_ns() // 1_000_000, f"spark-ckpt/{version('spark-ckpt')}"
    return ApplySettings(pause(watch_s), now_ms, engine, from_snapshot, pause(settle_s))


_LONGEST_S = 1e9


def pause(seconds: float) -> Callable[[], None]:
    """Return a function that waits. Raises `typer.BadParameter` for a wait without an end."""
    # Typer reads `inf` and `1e300` as numbers. `time.sleep` refuses both, for --settle-s only after the fences are put.
    if seconds > _LONGEST_S:
        raise typer.BadParameter("--watch-s and --settle-s are seconds, such as 10")
    return partial(time.sleep, seconds)
