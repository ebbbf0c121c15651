"""Text of a rewind's plan for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

from rich.console import Console
from rich.tree import Tree

from spark_ckpt.cli.output import Id, print_line, print_table
from spark_ckpt.wording import counted
from spark_rewind.plan import (
    FolderPlan,
    OutboxPlan,
    PublicRange,
    QueryPlan,
    RewindPlan,
    RewindReason,
    TablePlan,
    UndoneVersion,
)
from spark_rewind.records import OutboxChange

_WIDE = 10_000


def print_plan(plan: RewindPlan) -> None:
    """Print the line, its causes, undone work, public records and unknown facts."""
    back = [each for each in plan.queries if not each.stays]
    print_line(f"to {plan.target.text}: {counted(len(back), 'query goes', 'queries go')} back, {_staying(plan)}")
    columns: Sequence[str] = ("query", "newest batch", "rolls back to", "batches undone", "state loaded")
    print_section(columns, map(_query_row, plan.queries))
    columns = ("table", "newest version", "rolls back to", "versions undone", "written by", "read by")
    print_section(columns, map(_table_row, plan.tables))
    columns = ("folder", "newest batch", "rolls back to", "files that go", "written by", "read by")
    print_section(columns, map(_folder_row, plan.folders))
    print_outboxes(plan.outboxes)
    _print_reasons(plan)
    _print_details(plan)
    print_line("\nNothing was changed.")


def print_section(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table after an empty line; nothing without rows."""
    if found := list(rows):
        print_line()
        print_table(columns, found)


def print_list(title: str, lines: Sequence[str]) -> None:
    """Print a list below its title; nothing without lines."""
    if lines:
        print_line(f"\n{title}")
        for line in lines:
            print_line(f"  - {line}")


def print_outboxes(outboxes: Sequence[OutboxPlan | OutboxChange]) -> None:
    """Print the epoch that each outbox continues from."""
    columns = ("outbox", "of query", "newest epoch", "continues from", "epochs left")
    print_section(columns, map(_outbox_row, outboxes))


def _outbox_row(outbox: OutboxPlan | OutboxChange) -> Sequence[object]:
    base = "stays" if outbox.base is None else f"epoch {outbox.base}" if outbox.base else "its beginning"
    left = _numbers([each.epoch for each in outbox.left])
    return outbox.name, outbox.query, Id(outbox.latest), base, left


def rows_again(outboxes: Sequence[OutboxPlan | OutboxChange]) -> Iterator[str]:
    """Yield a sentence per sink and epoch with rows that no table takes back: they are public, and come again."""
    for outbox in outboxes:
        tables = {sink.name for sink in outbox.sinks if sink.table is not None}
        if outbox.dropped and outbox.base is not None:
            yield (
                f"outbox {outbox.name}: every epoch up to {outbox.dropped} that is not kept is left, too; retention dropped its "
                "rows from the store, so they cannot be listed"
            )
        for left in outbox.left:
            for sink in (*left.shown, *left.maybe):
                if sink not in tables:
                    has = "has" if sink in left.shown else "may have"
                    rows = counted(left.rows[sink], "row")
                    yield f"outbox {outbox.name}: sink {sink} {has} {rows} of batch {left.batch} (epoch {left.epoch})"


def _staying(plan: RewindPlan) -> str:
    staying = sum(each.stays for each in plan.queries)
    return f"{staying} {'stays' if staying == 1 else 'stay'}"


def _query_row(query: QueryPlan) -> Sequence[object]:
    newest = "none" if query.newest is None else str(query.newest)
    unfinished = f", {query.unfinished} unfinished" if query.unfinished is not None else ""
    state = None if query.state_version is None else f"version {query.state_version}"
    goes = _goes_to(query.stays, query.batch, "batch") + (f", pinned as {query.point}" if query.point else "")
    return query.name, newest + unfinished, goes, _numbers(query.undone), state


def _table_row(table: TablePlan) -> Sequence[object]:
    undone = _numbers([each.version for each in table.undone])
    goes = _goes_to(table.stays, table.version, "version")
    return (
        table.path,
        Id(table.newest),
        goes,
        undone,
        ", ".join(table.written_by) or None,
        ", ".join(table.read_by) or None,
    )


def _folder_row(folder: FolderPlan) -> Sequence[object]:
    goes = _goes_to(folder.stays, folder.batch, "batch")
    readers = ", ".join(folder.read_by) or None
    return folder.path, Id(folder.newest), goes, folder.files_gone, folder.written_by, readers


def _goes_to(stays: bool, point: int | None, what: str) -> str:
    if stays or point is None:
        return "stays"
    if point < 0:
        return "the beginning" if what == "batch" else "before its first"
    return f"{what} {point}"


def _numbers(numbers: Sequence[int]) -> str | None:
    if not numbers:
        return None
    return str(numbers[0]) if len(numbers) == 1 else f"{min(numbers)} to {max(numbers)}"


def _print_reasons(plan: RewindPlan) -> None:
    """Print a tree: each step below its cause."""
    tree = Tree("why")
    branches: dict[str, Tree] = {}
    chains = [each.reasons for each in plan.queries] + [each.reasons for each in plan.tables]
    for chain in chains:
        above = tree
        for reason in chain:
            # Chains have a common begin: each sentence stands once, below its cause.
            if reason.sentence not in branches:
                branches[reason.sentence] = above.add(_plain(reason))
            above = branches[reason.sentence]
    if branches:
        print_line()
        # Wide, because rich would break sentences; without markup, because paths may have brackets.
        console = Console(width=_WIDE, highlight=False, markup=False)
        with console.capture() as capture:
            console.print(tree)
        for line in capture.get().splitlines():
            print_line(line.rstrip())


def _plain(reason: RewindReason) -> str:
    return reason.sentence if reason.exact else f"{reason.sentence} (bound by time)"


def _print_details(plan: RewindPlan) -> None:
    print_list("files of pinned batches:", [f"{each.name}: {each.kept_in}" for each in plan.queries if each.kept_in])
    print_list("no longer available:", list(_passed_over(plan)))
    print_list("versions undone:", list(_undone(plan)))
    print_list("versions that are read again:", list(_in_flight(plan)))
    print_list("rows that sinks keep and that come again:", list(rows_again(plan.outboxes)))
    print_list("records that are public already:", [_public(each) for each in plan.public])
    print_list("what this plan does not know:", plan.notes)


def _passed_over(plan: RewindPlan) -> Iterator[str]:
    for query in plan.queries:
        yield from (f"{query.name} batch {each.point}: {each.why}" for each in query.passed_over)
    for table in plan.tables:
        yield from (f"{table.path} version {each.point}: {each.why}" for each in table.passed_over)


def _undone(plan: RewindPlan) -> Iterator[str]:
    """Yield undone versions. Consecutive versions of one writer and operation share one line."""
    for table in plan.tables:
        for (operation, writers), group in groupby(table.undone, key=_manner):
            versions = list(group)
            first, last = versions[0], versions[-1]
            which = f"{first.version}" if first is last else f"{first.version} to {last.version}"
            # A batch is a text here, "NAME batch NUMBER".
            batches = [each.rpartition(" ")[2] for each in (*first.batches[:1], *last.batches[-1:])]
            span = (
                f" batches {batches[0]} to {batches[-1]}"
                if len(set(batches)) > 1
                else f" batch {batches[0]}"
                if batches
                else ""
            )
            yield f"{table.path}@{which}: {operation}{', ' + writers + span if writers else ''}"


def _manner(version: UndoneVersion) -> tuple[str, str]:
    writers = [each.partition(" batch ")[0] for each in version.batches]
    return version.operation, ", ".join(
        [*writers, *(f"application {app}, none of these queries" for app in version.strangers)]
    )


def _in_flight(plan: RewindPlan) -> Iterator[str]:
    for table in plan.tables:
        for each in table.in_flight:
            yield f"{each.reader} reads {_versions(each.first, each.last)} of {table.path}"


def _versions(first: int, last: int) -> str:
    return f"version {first}" if first == last else f"versions {first} to {last}"


def _public(each: PublicRange) -> str:
    where = f"{each.topic}, partition {each.partition}"
    if each.last is not None:
        return f"{where}: offsets {each.first} to {each.last}, of {each.writer}"
    known = (
        f"at least to {each.known_last}, which a reader has seen" if each.known_last is not None else "no query read it"
    )
    return f"{where}: from offset {each.first} or later, {known}; of {each.writer}"
