"""Drafts of a rewind's changes: new versions of tables, and new positions of their readers.

An undo is drafted in the same way, from the kept checkpoints and the earlier versions of the tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote

from spark_ckpt.delta_files import Action, commit_path
from spark_ckpt.errors import CheckpointDamaged, RewindOutOfReach, RewindUnsupported
from spark_ckpt.spark_internals.query_logs import COMMITS, OFFSETS, parse_batch
from spark_rewind.checkpoint import Batch, QueryCheckpoint
from spark_rewind.fences import fence_paths
from spark_rewind.positions import DeltaPosition
from spark_rewind.reading import HINT_DAMAGED, text_of
from spark_rewind.records import QueryChange, TableChange
from spark_rewind.shifts import Shift, moved_text, shift_of
from spark_rewind.table_commits import Stamp, after_replay, commits, needed_files, refusal
from spark_rewind.table_content import commit_lines, contents_at, parsed
from spark_rewind.table_holding import is_held, sizes_of
from spark_rewind.tables import Table, lies_elsewhere


@dataclass(frozen=True, slots=True)
class QueryWish:
    """A query with its wanted position: `batch` of the checkpoint `made_of`, -1 for the beginning.

    `now`: the checkpoint in its place. `goes`: true if the query rolls back. Otherwise it only moves with the tables
    that it reads, or is only fenced.
    """

    now: QueryCheckpoint
    made_of: QueryCheckpoint
    batch: int
    goes: bool


@dataclass(frozen=True, slots=True)
class TableWish:
    """A table with the version whose content it is to have again.

    `writers`: applications that write it. `kept_in`: folders of pinned points with files that the table may have lost.
    `raised`: see `Stamp`. `undoes`: its newest version is that of a rewind, which is undone.
    """

    table: Table
    version: int
    writers: Sequence[str]
    kept_in: Sequence[str] = ()
    raised: Mapping[str, int] = field(default_factory=dict)
    undoes: bool = False


@dataclass(frozen=True, slots=True)
class TableDraft:
    """A table's change with the texts of its commits."""

    change: TableChange
    texts: Sequence[str]


def table_draft(wish: TableWish, queries: Sequence[QueryWish], stamp: Stamp) -> TableDraft:
    """Draft the commits that roll a table back. Changes nothing.

    Raises `RewindUnsupported` (a feature of the table), `RewindOutOfReach` (a file or a commit that it needs is gone).
    """
    table, root = wish.table, wish.table.root
    positions = [each for query in queries for each in positions_in(query, table)]
    # readers with unread versions need these once more: the new versions begin at the oldest base of a reader
    shift = shift_of(wish.version, table.newest, positions)
    # These versions are written once more line by line. A checkpoint of the log has only the files that were left at its end.
    again = range(shift.base + 1, shift.line + 1)
    lost = next((each for each in again if not (root / commit_path(each)).is_file()), None)
    if lost is not None:
        what = f"table {root}: a reader has version {lost} before it at its point, and the log has lost that"
        raise RewindOutOfReach(what, hint="plan again with a later target; nothing was changed")
    # At the base and not at the line: readers in between get the commits from the base on once more.
    then, now = contents_at(root, shift.base, table.newest)
    lines = [commit_lines(root, number) for number in again]
    replayed = [parsed(each, shift.base + 1 + part) for part, each in enumerate(lines)]
    if (why := refusal(now, then, replayed, undoes=wish.undoes)) is not None:
        hint = "restore this table and restart its readers from the beginning, or plan with a later target; nothing was changed"
        raise RewindUnsupported(f"table {root} cannot be rolled back: {why}", hint=hint)
    at_line = after_replay(then, replayed)
    # Every file that may have to come back: the log tells its size, by which a held copy is recognised.
    actions: list[Action] = [{"add": each} for content in (then, at_line) for each in content.files.values()]
    actions += [each for commit in replayed for each in commit]
    # A reader of commits opens no file of the base: an OPTIMIZE before the line may have replaced one, and VACUUM deleted it.
    whole = [after_replay(then, replayed[: each.version - shift.base]) for each in positions if each.snapshot]
    back = _put_back(root, needed_files([at_line, *whole], replayed), sizes_of(actions), wish.kept_in)
    # A table that no publisher's incarnation has written has no older publisher to fence.
    raised = {app: number for app, number in wish.raised.items() if app in now.transactions}
    texts = commits(shift, now, then, lines, wish.writers, replace(stamp, raised=raised))
    # -1: the table did not know the application yet, and a transaction cannot be removed.
    taken_back = {app: at_line.transactions.get(app, -1) for app in now.transactions} | raised
    change = TableChange(
        path=str(root),
        newest=table.newest,
        base=shift.base,
        line=shift.line,
        first=shift.first,
        last=shift.last,
        # For people: the difference between the newest version before and after, not the actions in between.
        files_back=len(at_line.files.keys() - now.files.keys()),
        files_gone=len(now.files.keys() - at_line.files.keys()),
        transactions={app: number for app, number in taken_back.items() if number != now.transactions[app]},
        commits=[hashlib.sha256(each.encode()).hexdigest() for each in texts],
        digest_before=table.digest,
        put_back=back,
    )
    return TableDraft(change, texts)


def stamp_of(table: Table, identity: str, now_ms: int, engine: str) -> Stamp:
    """Return the stamp of a table's commits. `now_ms`: milliseconds since 1970. `engine`: name of the writer."""
    newest = parsed(commit_lines(table.root, table.newest), table.newest)
    # in-commit timestamps must grow from commit to commit
    stamps = [each["commitInfo"].get("inCommitTimestamp") for each in newest if "commitInfo" in each]
    after = next((each for each in stamps if isinstance(each, int)), 0)
    return Stamp(identity, now_ms, after, engine)


def query_change(wish: QueryWish, shifts: Mapping[str, Shift], labels: tuple[str, str]) -> QueryChange:
    """Return the change of a query.

    `shifts`: by table id. `labels`: suffixes of the new checkpoint and of the old one.
    """
    place = wish.now.folder
    ends = _ends(wish, shifts)
    kept = [each for each in wish.made_of.batches if each.number <= wish.batch]
    changed = wish.goes or bool(ends)
    # The exchange does not stop a query that still runs: it would end its unfinished batch in the new checkpoint.
    unfinished = kept and kept[-1].committed_ms is None
    after = [f"{OFFSETS}/{wish.batch + 1}", *([f"{COMMITS}/{wish.batch}"] if unfinished else [])]
    return QueryChange(
        name=wish.now.name,
        query=wish.now.query,
        folder=str(place),
        source=str(wish.made_of.folder),
        batch=wish.batch,
        ends=ends,
        changed=changed,
        side=str(place.with_name(place.name + labels[0])),
        kept=str(place.with_name(place.name + labels[1])),
        fences_before=[str(path.relative_to(place)) for path in fence_paths(wish.now, place)],
        fences_after=after if changed else [],
        digest_before=wish.now.digest,
        digest_after="" if changed else wish.now.digest,
    )


def positions_in(wish: QueryWish, table: Table) -> Iterator[DeltaPosition]:
    """Yield a query's positions in a table at its point.

    An unfinished batch gives two: its beginning and its end.
    """
    for batch in _at_the_point(wish):
        for end in batch.ends.values():
            if isinstance(end, DeltaPosition) and end.table in table.ids:
                yield end


def _at_the_point(wish: QueryWish) -> list[Batch]:
    """Return the newest finished batch, and the unfinished one after it."""
    kept = [each for each in wish.made_of.batches if each.number <= wish.batch]
    if not kept or kept[-1].committed_ms is not None:
        return kept[-1:]
    if len(kept) == 1 and kept[0].number > 0:
        what = f"{wish.made_of.folder}: batch {kept[0].number} is unfinished, and the batch before it is missing"
        raise CheckpointDamaged(what, hint=HINT_DAMAGED)
    return kept[-2:]


def _ends(wish: QueryWish, shifts: Mapping[str, Shift]) -> dict[int, dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    batches = _at_the_point(wish)
    for batch in batches:
        moving = {
            name: end for name, end in batch.ends.items() if isinstance(end, DeltaPosition) and end.table in shifts
        }
        if moving:
            logged = parse_batch(text_of(wish.made_of.folder / OFFSETS / str(batch.number))).offsets
            found[batch.number] = {
                name: moved_text(logged[name] or "", shifts[end.table], end) for name, end in moving.items()
            }
    # all batches at the point are written again, also those without a moved source: the new log begins with them
    return {each.number: found.get(each.number, {}) for each in batches} if found else {}


def _put_back(root: Path, needed: set[str], sizes: Mapping[str, int], kept_in: Sequence[str]) -> dict[str, str]:
    """Return sources for needed files that are missing, by their path below the table."""
    found: dict[str, str] = {}
    for path in sorted(needed):
        if lies_elsewhere(path) or (root / unquote(path)).exists():
            continue
        name = unquote(path)
        places = [Path(each, name) for each in kept_in]
        place = next((each for each in places if name in sizes and is_held(each, sizes[name])), None)
        if place is None:
            what = f"table {root}: data file {path} is missing (VACUUM)"
            raise RewindOutOfReach(what, hint="plan again with a later target; nothing was changed")
        found[name] = str(place)
    return found
