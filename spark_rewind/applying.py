"""`spark-ckpt rewind apply` and `undo`: execute a plan, or restore the state before it. Needs no JVM."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from spark_ckpt.delta_files import LOG
from spark_ckpt.errors import (
    CheckpointForeign,
    RewindNotPermitted,
    RewindOutOfReach,
    RewindQueryRuns,
    RewindStale,
    RewindUnderWay,
    RewindUnsupported,
)
from spark_ckpt.spark_internals.query_logs import COMMITS, OFFSETS, SINK_LOG
from spark_rewind.carrying import Carrier, commit_path
from spark_rewind.checkpoint import QueryCheckpoint, read_checkpoint
from spark_rewind.checkpoint_copy import check_known
from spark_rewind.drafting import QueryWish, TableDraft, TableWish, query_change, stamp_of, table_draft
from spark_rewind.folders import Labels, brought_back, folders_to_write, taken_back
from spark_rewind.journal import Journal
from spark_rewind.outbox_logs import only_prepared, require_stopped
from spark_rewind.outboxes import left_epochs, opened, opened_once
from spark_rewind.pinned_points import whole_copy
from spark_rewind.plan import OutboxPlan, QueryPlan, RewindPlan, TablePlan
from spark_rewind.positions import DeltaPosition
from spark_rewind.reading import typed_errors
from spark_rewind.records import UNDO, FolderChange, OutboxChange, QueryChange, RewindRecord, TableChange
from spark_rewind.replacing import check_link, check_swap, is_mount_point
from spark_rewind.stages import KEEP, PLAN_AGAIN, WOULD_BE_LOST, Move, Phase, on_apply, on_undo
from spark_rewind.tables import Table, read_table


@dataclass(frozen=True, slots=True)
class Seen:
    """A folder's files at one moment. `newest`: file that was written last, at `newest_ns` (nanoseconds since 1970)."""

    files: int
    newest_ns: int
    newest: str


def seen(folder: Path) -> Seen:
    """Return the files of a folder and all folders below it. Raises `CheckpointUnreadable`."""
    found = Seen(0, 0, "")
    count = 0
    with typed_errors(folder):
        for root, _, listed in os.walk(folder, onerror=_raise_unless_gone):
            for name in listed:
                path = Path(root, name)
                try:
                    at_ns = path.stat().st_mtime_ns
                # a running query deletes old files meanwhile
                except FileNotFoundError:
                    continue
                count += 1
                if at_ns > found.newest_ns:
                    found = Seen(0, at_ns, str(path))
    return Seen(count, found.newest_ns, found.newest)


def _raise_unless_gone(error: OSError) -> None:
    # By itself `os.walk` passes over a folder that it cannot list, and a query that writes there would not be seen.
    if not isinstance(error, FileNotFoundError):
        raise error


def watch(queries: Mapping[str, Iterable[Path]], wait: Callable[[], None], now_ns: int) -> list[str]:
    """Compare the files of queries before and after a wait.

    `queries`: folders of each query. Return one sentence per query with the age of its newest file. Raises
    `RewindQueryRuns` for a query whose files changed.
    """
    before = {name: [seen(folder) for folder in folders] for name, folders in queries.items()}
    wait()
    # Only changes show that a query runs. One that waits for input writes nothing, and meets its fence later.
    for name, folders in queries.items():
        for was, is_now in zip(before[name], map(seen, folders), strict=True):
            if was != is_now:
                what = f"{name} is running: {is_now.newest} was written while it was watched"
                raise RewindQueryRuns(what, hint=f"stop the query, {PLAN_AGAIN}")
    return [_quiet(name, max((each.newest_ns for each in found), default=0), now_ns) for name, found in before.items()]


def _quiet(name: str, newest_ns: int, now_ns: int) -> str:
    # A file may be younger than `now_ns`, the time at which the command began.
    quiet_s = max(now_ns - newest_ns, 0) // 1_000_000_000
    return f"{name}: its newest file is {quiet_s} s old"


@dataclass(frozen=True, slots=True)
class ApplySettings:
    """Settings of an execution.

    - `wait`: waits while files of queries are watched.
    - `now_ms`: milliseconds since 1970.
    - `engine`: writer of the tables' commits.
    - `from_snapshot`: queries that read a table from a snapshot and without a `startingVersion`. Only queries that
      start from the beginning need it.
    - `settle`: waits until applications of stopped queries have written their last state files.
    """

    wait: Callable[[], None]
    now_ms: int
    engine: str
    from_snapshot: Sequence[str] = ()
    settle: Callable[[], None] = lambda: None


@opened_once()
def apply(plan: RewindPlan, settings: ApplySettings, *, dry: bool = False) -> RewindRecord:
    """Execute a plan, or continue after a crash. `dry`: compute the changes and write nothing.

    Raises `RewindStale` (a query or table changed since the plan), `RewindQueryRuns`, `RewindNotPermitted`,
    `RewindUnsupported`, `RewindUnderWay`, `RewindOutOfReach`, and the errors of reading. After an error nothing is
    changed, unless the error says so.
    """
    journal = Journal(plan)
    # Without the lock, whose folder would be a change.
    if dry:
        _refuse_begun(journal)
        return _drafted(plan, journal, settings)[0]
    # Before the fences: after the decision, a folder that refuses a write leaves every query fenced.
    check_rights(plan)
    with journal.locked():
        # Under the lock: another call may have written it a moment ago.
        record, carrier = journal.read("apply"), Carrier(journal)
        move = on_apply(record.phase if record else None, journal.phase("undo"))
        if record is None or move in (Move.BEGIN, Move.CLEAN_UP_AND_BEGIN):
            if record is not None:
                # an undecided record of an earlier call: nothing of it counts
                carrier.clean_up(record)
            record, drafts = _drafted(plan, journal, settings)
            # Only now is it known in which folders files move.
            _require_writable(*(place for each in record.folders for place in folders_to_write(each)))
            record = _watched(record, settings)
            return carrier.begin(record, drafts, settings.settle)
        return _moved_on(carrier, record, move)


@opened_once()
def undo(plan: RewindPlan, settings: ApplySettings) -> RewindRecord | None:
    """Undo an `apply`, or continue after a crash. Return None if the rewind was never decided.

    Raises the errors of `apply`. Raises `RewindStale` also if a query ran, or a table was written, since the rewind.
    """
    journal = Journal(plan)
    # Before the lock, whose folder would be a change.
    with typed_errors(journal.folder):
        known = journal.folder.is_dir()
    if not known:
        raise _not_carried_out(None)
    with journal.locked():
        applied, undone, carrier = journal.read("apply"), journal.read("undo"), Carrier(journal)
        move = on_undo(applied.phase if applied else None, undone.phase if undone else None)
        if applied is None or move is Move.APPLY_FIRST:
            raise _not_carried_out(applied)
        if move is Move.CLEAN_UP:
            carrier.clean_up(applied)
            return None
        if undone is None or move in (Move.BEGIN, Move.CLEAN_UP_AND_BEGIN):
            if undone is not None:
                carrier.clean_up(undone)
            record, drafts = _undo_drafted(applied, settings)
            record = _watched(record, settings)
            return carrier.begin(record, drafts, settings.settle)
        return _moved_on(carrier, undone, move)


def _moved_on(carrier: Carrier, record: RewindRecord, move: Move) -> RewindRecord:
    """Continue a record after its decision."""
    if move is Move.GO_ON:
        return carrier.go_on(record)
    if move is Move.FINISH:
        return carrier.finish(record)
    _refuse_undone(move)
    return record


def _refuse_undone(move: Move) -> None:
    if move is Move.UNDO_FIRST:
        raise RewindUnderWay(
            "an undo of this rewind has begun", hint="run `spark-ckpt rewind undo` with this plan again"
        )
    if move is Move.PLAN_AGAIN:
        raise RewindStale("this plan was carried out and undone", hint="plan again, and apply that plan")


def _refuse_begun(journal: Journal) -> None:
    """Raise for a plan that was carried out, also in part: its queries and tables are no longer as it describes them."""
    applied = journal.read("apply")
    move = on_apply(applied.phase if applied else None, journal.phase("undo"))
    _refuse_undone(move)
    if move is Move.NOTHING:
        hint = "start the queries; or take it back: `spark-ckpt rewind undo` with this plan; nothing was changed"
        raise RewindStale("this plan was carried out already", hint=hint)
    if move in (Move.GO_ON, Move.FINISH):
        raise _not_carried_out(applied)


def _not_carried_out(applied: RewindRecord | None) -> Exception:
    if applied is None:
        return CheckpointForeign("this plan was not carried out", hint="there is nothing to undo; nothing was changed")
    return RewindUnderWay(
        "this plan is carried out in part", hint="run `spark-ckpt rewind apply` with it again; then it can be undone"
    )


def _watched(record: RewindRecord, settings: ApplySettings) -> RewindRecord:
    folders = {each.name: [Path(each.folder)] for each in record.queries}
    folders |= {f"a writer of {each.path}": [Path(each.path, LOG)] for each in record.tables}
    folders |= {f"a writer of {each.path}": [Path(each.path, SINK_LOG)] for each in record.folders}
    quiet = watch(folders, settings.wait, settings.now_ms * 1_000_000)
    return record.model_copy(update={"notes": [*record.notes, *quiet]})


# -- apply ---------------------------------------------------------------------------------------------------------------


def _drafted(plan: RewindPlan, journal: Journal, settings: ApplySettings) -> tuple[RewindRecord, list[TableDraft]]:
    """Compute the changes of a plan. Changes nothing."""
    back = [each for each in plan.tables if not each.stays]
    _refuse_what_cannot(plan, back)
    tables = [_read_table(each) for each in back]
    found = {each.name: _read_query(each) for each in plan.queries}
    ids = {each for table in tables for each in table.ids}
    # Also of queries that stay: readers of a table that rolls back get offsets in its new versions.
    wishes = [
        QueryWish(found[each.name], _made_of(each, found[each.name]), _batch(each, found[each.name]), not each.stays)
        for each in plan.queries
    ]
    _refuse_unknown_beginnings(wishes, ids, settings)
    writers = {each.name: each.query for each in plan.queries}
    outboxes = [_outbox_change(each, journal.id, settings.now_ms) for each in plan.outboxes]
    table_wishes = [
        TableWish(
            table,
            each.version,
            # Delta's sink writes under the query's id.
            [*(writers[name] for name in each.written_by if name in writers), *_applications(outboxes, table)],
            each.kept_in,
            {app: number for one in outboxes for app, number in one.raised(each.path).items()},
        )
        for each, table in zip(back, tables, strict=True)
    ]
    # The id keeps the folders of two rewinds apart, and lets a call after a crash find its own.
    endings = (f".rewinding-{journal.id}", f".before-rewind-{journal.id}")
    record, drafts = _record("apply", journal.id, wishes, table_wishes, endings, settings)
    # The third is no suffix but a hidden folder, which readers without the log ignore.
    labels = Labels(endings[0], endings[1], f".before-rewind-{journal.id}")
    folders = [taken_back(each, labels) for each in plan.folders if not each.stays]
    notes = [*plan.notes, *_foreign_readers(back, folders)]
    update = {
        "target": plan.target.text,
        "public": plan.public,
        "notes": notes,
        "folders": folders,
        "outboxes": [_with_tables(each, record.tables) for each in outboxes if _goes(each, record.queries)],
    }
    record = record.model_copy(update=update)
    _refuse_taken_names(record)
    _refuse_fixed_names(record)
    return record, drafts


def _record(
    kind: str,
    journal: str,
    queries: Sequence[QueryWish],
    tables: Sequence[TableWish],
    endings: tuple[str, str],
    settings: ApplySettings,
) -> tuple[RewindRecord, list[TableDraft]]:
    empty = {"target": "", "queries": [], "tables": [], "public": [], "notes": []}
    record = RewindRecord.model_validate(
        {"id": journal, "kind": kind, "phase": Phase.PREPARING, "made_at_ms": settings.now_ms, **empty}
    )
    drafts = []
    for wish in tables:
        stamp = stamp_of(wish.table, record.identity, settings.now_ms, settings.engine)
        drafts.append(table_draft(wish, queries, stamp))
    # Tables first: the shift of their versions moves the offsets of their readers.
    shifts = {each: draft.change.shift for wish, draft in zip(tables, drafts, strict=True) for each in wish.table.ids}
    changes = [query_change(wish, shifts, endings) for wish in queries]
    for query, change in zip(queries, changes, strict=True):
        # A query that is only fenced keeps its checkpoint, so its entries need not be known.
        if change.changed:
            check_known(query.made_of)
    return record.model_copy(update={"queries": changes, "tables": [each.change for each in drafts]}), drafts


def _outbox_change(outbox: OutboxPlan, identity: str, now_ms: int) -> OutboxChange:
    """Return the change of an outbox by a plan, with the rows that it leaves as of now.

    Raises `RewindStale`, `RewindQueryRuns` for a lease that runs.
    """
    store = opened(outbox.store)
    log_state = store.log.state()
    require_stopped(log_state, now_ms)
    # An earlier try of this rewind that died before its decision has begun incarnations of its own. They are no progress.
    # Another token of the same incarnation: its driver has renewed the lease since.
    moved = log_state.incarnation == outbox.incarnation and log_state.lease_token != outbox.token
    if moved or not only_prepared(log_state, outbox.incarnation, identity):
        raise RewindStale(f"outbox '{outbox.name}' has continued since the plan", hint=PLAN_AGAIN)
    base = outbox.latest if outbox.base is None else outbox.base
    return OutboxChange(
        store=outbox.store,
        name=outbox.name,
        query=outbox.query,
        base=base,
        latest=outbox.latest,
        token=log_state.lease_token,
        incarnation=log_state.incarnation + 1,
        taken_back={},
        acked={},
        acked_before={},
        left=left_epochs(store, log_state, base),
        dropped=outbox.dropped,
        sinks=outbox.sinks,
    )


def _goes(outbox: OutboxChange, queries: Sequence[QueryChange]) -> bool:
    """Return true for the outbox of a query that gets a new checkpoint."""
    return any(each.changed and each.name == outbox.query for each in queries)


def _applications(outboxes: Sequence[OutboxChange], table: Table) -> list[str]:
    """Return the names under which outboxes have written a table."""
    known = {app for version in table.versions for app, _ in version.transactions} | set(table.before)
    return [app for each in outboxes for sink in each.sinks for app in sink.applications if app in known]


def _with_tables(outbox: OutboxChange, tables: Sequence[TableChange]) -> OutboxChange:
    """Return the change with the epochs that its tables have after their rollback."""
    from spark_ckpt_delta.marker import epoch_in

    taken_back = {
        sink.name: int(epoch_in(table.transactions[app]))
        for sink in outbox.sinks
        for table in tables
        for app in sink.applications
        if table.path == sink.table and app in table.transactions
    }
    # An undo records these acknowledgements again, once its tables have the epochs again.
    acked = opened(outbox.store).log.state().acked
    before = {sink: acked[sink] for sink in taken_back if sink in acked}
    return outbox.model_copy(update={"taken_back": taken_back, "acked_before": before})


def _made_of(query: QueryPlan, now: QueryCheckpoint) -> QueryCheckpoint:
    """Return the checkpoint with the batch that a query rolls back to: its own, or a pinned one."""
    return whole_copy(Path(query.kept_in), query.name) if query.kept_in and not query.stays else now


def _batch(query: QueryPlan, now: QueryCheckpoint) -> int:
    """Return the newest batch that stays."""
    if not query.stays and query.batch is not None:
        return query.batch
    return now.batches[-1].number if now.batches else -1


def _read_query(query: QueryPlan) -> QueryCheckpoint:
    found = read_checkpoint(Path(query.folder), query.name)
    if found.digest != query.digest:
        newest = found.batches[-1].number if found.batches else None
        what = f"{query.name} is not as it was planned for; its newest batch is now {newest}"
        raise RewindStale(what, hint=PLAN_AGAIN)
    return found


def _read_table(table: TablePlan) -> Table:
    found = read_table(Path(table.path))
    if found.digest != table.digest:
        what = f"table {table.path} is not as it was planned for; its newest version is now {found.newest}"
        raise RewindStale(what, hint=PLAN_AGAIN)
    return found


def _refuse_what_cannot(plan: RewindPlan, back: Sequence[TablePlan]) -> None:
    if all(each.stays for each in plan.queries) and not back:
        raise RewindUnsupported("this plan rolls nothing back", hint="there is nothing to do")


def _refuse_unknown_beginnings(wishes: Sequence[QueryWish], ids: set[str], settings: ApplySettings) -> None:
    """Refuse a query that starts from the beginning and reads a table that rolls back."""
    for wish in wishes:
        if wish.batch >= 0 or wish.now.name in settings.from_snapshot:
            continue
        read = [end for batch in wish.now.batches for end in batch.ends.values() if isinstance(end, DeltaPosition)]
        # Without a `startingVersion` it reads the table's snapshot. With one it would read undone versions.
        if any(each.table in ids for each in read):
            what = f"{wish.now.name} begins from its start and reads a table that is rolled back; its checkpoint lacks the start"
            hint = (
                f"if it has no startingVersion and no startingTimestamp: --from-snapshot {wish.now.name}. "
                "If it has one: plan with a later target; nothing was changed"
            )
            raise RewindUnsupported(what, hint=hint)


def _refuse_taken_names(record: RewindRecord) -> None:
    taken = [each for query in record.queries if query.changed for each in (query.side, query.kept)]
    taken += [each for folder in record.folders for each in (folder.side, folder.kept)]
    taken += [folder.aside for folder in record.folders if folder.away]
    # After the decision a taken name would stop the exchange halfway: no rename replaces a folder with content.
    for each in taken:
        if Path(each).exists():
            raise RewindNotPermitted(f"{each} is there already", hint="move it away; nothing was changed")


def _refuse_fixed_names(record: RewindRecord) -> None:
    # The exchange would fail after the decision, and every later call with it.
    for folder in (Path(query.folder) for query in record.queries if query.changed):
        if is_mount_point(folder):
            raise RewindNotPermitted(
                f"{folder} is the root of a mounted volume, so its name cannot be exchanged",
                hint="mount the volume one folder higher, with the checkpoint as a folder in it; nothing was changed",
            )
        # The kernel's rule for a sticky folder, such as /tmp: write permission alone renames no file of another user there.
        above = folder.parent.stat()
        if above.st_mode & stat.S_ISVTX and os.geteuid() not in (0, above.st_uid, folder.lstat().st_uid):
            raise RewindNotPermitted(
                f"only its owner may rename {folder}: {folder.parent} is sticky",
                hint="run as the user that the queries run as; nothing was changed",
            )


def _foreign_readers(back: Sequence[TablePlan], folders: Sequence[FolderChange]) -> Iterator[str]:
    for folder in folders:
        yield f"folder {folder.path}: a reader outside of this plan keeps the rows that it has read from removed files"
    for table in back:
        yield (
            f"table {table.path}: a reader outside of this plan keeps the rows that it has read from removed versions. It "
            "stops at the version that rolls them back, unless it skips changes"
        )


def check_rights(plan: RewindPlan) -> None:
    """Check that all places can be written.

    Raises `RewindNotPermitted`. Leaves no changes, only tries in a temporary folder.
    """
    for query in plan.queries:
        folder = Path(query.folder)
        _require_writable(
            folder.parent, folder, *(folder / each for each in (OFFSETS, COMMITS) if (folder / each).is_dir())
        )
    for parent in {Path(each.folder).parent for each in plan.queries}:
        check_swap(parent)
        check_link(parent)
    for table in plan.tables:
        log = Path(table.path, LOG)
        if not table.stays:
            _require_writable(log)
            # A commit that fails after the decision would leave every query fenced. A missing log has an error of its own.
            if log.is_dir():
                check_link(log)
    for each in plan.folders:
        if not each.stays:
            _require_writable(Path(each.path), Path(each.path, SINK_LOG))
            check_swap(Path(each.path))


def _require_writable(*folders: Path) -> None:
    for folder in folders:
        if folder.exists() and not os.access(folder, os.W_OK | os.X_OK | os.R_OK):
            hint = "run as the user that the queries run as; nothing was changed"
            raise RewindNotPermitted(f"{folder} may not be written", hint=hint)


# -- undo ----------------------------------------------------------------------------------------------------------------


def _undo_drafted(applied: RewindRecord, settings: ApplySettings) -> tuple[RewindRecord, list[TableDraft]]:
    """Compute the changes of an undo: the kept checkpoints, and tables at their earlier versions. Changes nothing."""
    # an undo rolls the tables back, too: to their newest version before the rewind
    outboxes = [_outbox_undo(each, applied, settings.now_ms) for each in applied.outboxes]
    raised = applied.model_copy(update={"outboxes": outboxes}).raised
    # The rewind changed the numbers of these applications. Commits that name them conflict with a writer that has just begun.
    tables = [
        TableWish(_unwritten(each), each.newest, [*each.transactions], raised=raised(each.path), undoes=True)
        for each in applied.tables
    ]
    endings = (f".undoing-{applied.id}", f".rewound-{applied.id}")
    with _of_an_undo():
        wishes = [_undo_wish(each) for each in applied.queries]
        record, drafts = _record("undo", applied.id, wishes, tables, endings, settings)
    folders = [brought_back(each, Labels(endings[0], endings[1], "")) for each in applied.folders]
    update = {"target": f"before --to {applied.target}", "folders": folders, "outboxes": outboxes}
    record = record.model_copy(update=update)
    _refuse_taken_names(record)
    _refuse_fixed_names(record)
    return record, drafts


@contextmanager
def _of_an_undo() -> Iterator[None]:
    """Correct the advice of errors that a plan raises, too: an undo has no other target, and no other checkpoint."""
    try:
        yield
    except (CheckpointForeign, RewindOutOfReach, RewindUnsupported) as error:
        error.hint = KEEP
        raise


def _outbox_undo(change: OutboxChange, applied: RewindRecord, now_ms: int) -> OutboxChange:
    """Return the change that makes an outbox continue from its newest epoch before the rewind. Raises `RewindStale`."""
    log_state = opened(change.store).log.state()
    require_stopped(log_state, now_ms)
    if not only_prepared(log_state, change.incarnation + 1, f"{applied.id}{UNDO}"):
        what = f"outbox '{change.name}' has continued since the rewind: its newest epoch is {log_state.latest}"
        raise RewindStale(what, hint=WOULD_BE_LOST)
    return change.model_copy(
        update={
            "base": change.latest,
            "latest": log_state.latest,
            "token": log_state.lease_token,
            "incarnation": log_state.incarnation + 1,
            "taken_back": {},
            "acked": change.acked_before,
            "acked_before": {},
            "left": [],
            "dropped": 0,
            "moved": None,
            "rows": {},
        }
    )


def _unwritten(change: TableChange) -> Table:
    """Return a table that is as the rewind left it. Raises `RewindStale`."""
    table = read_table(Path(change.path))
    # The number alone is not enough: another rewind may have ended with the same one.
    if table.newest != change.last or not _is_ours(change):
        what = f"table {change.path} was written since the rewind, which ended with version {change.last}: it has {table.newest}"
        raise RewindStale(what, hint=WOULD_BE_LOST)
    return table


def _is_ours(change: TableChange) -> bool:
    text = commit_path(change, change.last).read_bytes()
    return hashlib.sha256(text).hexdigest() == change.commits[-1]


def _undo_wish(change: QueryChange) -> QueryWish:
    now = read_checkpoint(Path(change.folder), change.name)
    if not change.changed:
        return QueryWish(now, now, now.batches[-1].number if now.batches else -1, goes=False)
    # `digest_after` is of the copy before its fences, which are gone by now.
    if now.digest != change.digest_after:
        newest = now.batches[-1].number if now.batches else None
        what = f"{change.name} has run since the rewind: its newest batch is {newest}"
        raise RewindStale(what, hint=WOULD_BE_LOST)
    kept = read_checkpoint(Path(change.kept), change.name)
    # Without its newest batches it is a valid checkpoint, too, whose query runs them again: a sink that has them skips them.
    if kept.digest != change.digest_before:
        what = f"the checkpoint {change.kept} lacks files, or was changed since the rewind"
        raise RewindOutOfReach(what, hint=WOULD_BE_LOST)
    # The whole old checkpoint comes back, with an unfinished batch if it had one.
    return QueryWish(now, kept, kept.batches[-1].number if kept.batches else -1, goes=True)
