"""What a rewind will write, worked out from what is there: which versions tables get, and where their readers go on.

An undo is worked out in the same way, from the checkpoints that were kept and the versions that tables had.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote

from spark_ckpt.errors import CheckpointDamaged, RewindOutOfReach, RewindUnsupported
from spark_ckpt.spark_internals.query_logs import COMMITS, OFFSETS, parse_batch
from spark_rewind.checkpoint import HINT_DAMAGED, Batch, Checkpoint
from spark_rewind.fences import fence_paths
from spark_rewind.positions import DeltaPosition
from spark_rewind.reading import text_of
from spark_rewind.records import QueryChange, TableChange
from spark_rewind.shifts import Shift, moved_text, shift_of
from spark_rewind.table_commits import Stamp, after_replay, commits, needed_files, refusal
from spark_rewind.table_content import Action, commit_lines, commit_name, contents_at, parsed
from spark_rewind.table_holding import is_held, sizes_of
from spark_rewind.tables import Table


@dataclass(frozen=True, slots=True)
class QueryWish:
    """A query and where it shall stand: `batch` of `made_of`, -1 to begin anew. `now`: the checkpoint in its place.

    `goes`: it goes back; else it only moves with the tables that it reads, or is kept from running.
    """

    now: Checkpoint
    made_of: Checkpoint
    batch: int
    goes: bool


@dataclass(frozen=True, slots=True)
class TableWish:
    """A table and the version that it shall have again. `writers`: applications that write it. `kept_in`: folders of pinned
    points that hold files which the table may have lost."""

    table: Table
    version: int
    writers: Sequence[str]
    kept_in: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class TableDraft:
    """A table's change and the texts of its commits."""

    change: TableChange
    texts: Sequence[str]


def table_draft(wish: TableWish, queries: Sequence[QueryWish], stamp: Stamp) -> TableDraft:
    """Commits that take a table back. Changes nothing.

    Raises `RewindUnsupported` (a feature of the table), `RewindOutOfReach` (a file or a commit that it needs is gone).
    """
    table, root = wish.table, wish.table.root
    positions = [each for query in queries for each in positions_in(query, table)]
    shift = shift_of(wish.version, table.newest, positions)
    lost = next(
        (each for each in range(shift.base + 1, shift.line + 1) if not (root / commit_name(each)).is_file()), None
    )
    if lost is not None:
        what = f"table {root}: a reader has version {lost} before it at its point, and the log has lost that"
        raise RewindOutOfReach(what, hint="plan again with a later target; nothing was changed")
    then, now = contents_at(root, shift.base, table.newest)
    lines = [commit_lines(root, number) for number in range(shift.base + 1, shift.line + 1)]
    replayed = [parsed(each, shift.base + 1 + part) for part, each in enumerate(lines)]
    if (why := refusal(now, then, replayed)) is not None:
        hint = "restore this table and begin its readers anew by hand, or plan with a later target; nothing was changed"
        raise RewindUnsupported(f"table {root} cannot be taken back: {why}", hint=hint)
    at_line = after_replay(then, replayed)
    actions: list[Action] = [{"add": each} for content in (then, at_line) for each in content.files.values()]
    actions += [each for commit in replayed for each in commit]
    back = _put_back(root, needed_files(then, at_line, replayed), sizes_of(actions), wish.kept_in)
    texts = commits(shift, now, then, lines, wish.writers, stamp)
    taken_back = {app: at_line.transactions.get(app, -1) for app in now.transactions}
    change = TableChange(
        path=str(root),
        newest=table.newest,
        base=shift.base,
        line=shift.line,
        first=shift.first,
        last=shift.last,
        files_back=len(at_line.files.keys() - now.files.keys()),
        files_gone=len(now.files.keys() - at_line.files.keys()),
        transactions={app: number for app, number in taken_back.items() if number != now.transactions[app]},
        commits=[hashlib.sha256(each.encode()).hexdigest() for each in texts],
        digest_before=table.digest,
        put_back=back,
    )
    return TableDraft(change, texts)


def stamp_of(table: Table, identity: str, now_ms: int, engine: str) -> Stamp:
    """What a table's commits say of themselves."""
    newest = parsed(commit_lines(table.root, table.newest), table.newest)
    stamps = [each["commitInfo"].get("inCommitTimestamp") for each in newest if "commitInfo" in each]
    after = next((each for each in stamps if isinstance(each, int)), 0)
    return Stamp(identity, now_ms, after, engine)


def query_change(wish: QueryWish, shifts: Mapping[str, Shift], labels: tuple[str, str]) -> QueryChange:
    """What happens to a query. `shifts`: by table id. `labels`: endings of the new one's name and the one before's."""
    place = wish.now.folder
    ends = _ends(wish, shifts)
    kept = [each for each in wish.made_of.batches if each.number <= wish.batch]
    changed = wish.goes or bool(ends)
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
    """Where a query stands in a table at its point; two places where a batch is unfinished, its beginning and its end."""
    for batch in _at_the_point(wish):
        for end in batch.ends.values():
            if isinstance(end, DeltaPosition) and end.table in table.ids:
                yield end


def _at_the_point(wish: QueryWish) -> list[Batch]:
    """The newest finished batch, and the unfinished one after it."""
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
    return {each.number: found.get(each.number, {}) for each in batches} if found else {}


def _put_back(root: Path, needed: set[str], sizes: Mapping[str, int], kept_in: Sequence[str]) -> dict[str, str]:
    """Where files that are needed and missing can be had from, by their path below the table."""
    found: dict[str, str] = {}
    for path in sorted(needed):
        if "://" in path or (root / unquote(path)).exists():
            continue
        name = unquote(path)
        places = [Path(each, name) for each in kept_in]
        place = next((each for each in places if name in sizes and is_held(each, sizes[name])), None)
        if place is None:
            what = f"table {root}: data file {path} is missing (VACUUM)"
            raise RewindOutOfReach(what, hint="plan again with a later target; nothing was changed")
        found[name] = str(place)
    return found
