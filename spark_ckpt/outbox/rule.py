"""The rule of a batch: it is new, it runs again, or its query was rewound. Everything else is refused. Pure.

Spark calls the function of `foreachBatch` again for a batch that Spark did not commit. It writes `offsets/N` before the
first call, so a repeated call has the same digests. The outbox's log has the identity of every batch that it decided.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import EpochBrief, SparkBatch
from spark_ckpt.errors import BatchUnexpected, EpochNotFound, Fenced, QueryForeign


class BatchVerdict(Enum):
    """Answer of the rule."""

    NEW = "new"
    """Stage, commit, publish."""
    AGAIN = "again"
    """The log has this batch. Run the plan, discard its rows, publish what is unpublished."""
    REWOUND = "rewound"
    """The checkpoint went back. Begin a branch after the batch before this one, then as for a new batch."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """A verdict, and the epoch that the outbox continues from; 0 for none."""

    verdict: BatchVerdict
    base: int


@dataclass(frozen=True, slots=True)
class Accepted:
    """Changes that the operator confirmed by name.

    - `query`: id of a query that may continue the outbox of another one; empty for none.
    - `restore`: epoch to continue from; None for the newest one.
    """

    query: str = ""
    restore: int | None = None


NO_CHANGES = Accepted()


def still_accepted(log_state: LogState, run: str, accepted: Accepted) -> Accepted:
    """Return the confirmed changes that count for a process of `run`, the holder's name of one start of a query.

    A host may move a run to another process. The changes are for the first incarnation of the run only. An empty `run`
    stays in one process.

    Raises `Fenced` if another driver has begun since.
    """
    if not run:
        return accepted
    if log_state.holder is not None and log_state.holder.name == run:
        return NO_CHANGES
    # The run began earlier and is no longer the holder: another driver has begun since.
    if any(each.holder.startswith(f"{run} ") for each in log_state.incarnations):
        raise Fenced(
            f"'{run}' was replaced by incarnation {log_state.incarnation}",
            holder=log_state.holder,
            hint="stop this query; another driver runs it",
        )
    return accepted


def judge(log_state: LogState, batch: SparkBatch, accepted: Accepted = NO_CHANGES) -> Ruling:
    """Return the verdict on a call for `batch`.

    Raises `QueryForeign` for a batch of another query, `BatchUnexpected` for one that does not continue the log.
    """
    if accepted.restore is not None:
        return restored(log_state, batch, accepted, accepted.restore)
    newest = log_state.by_id.get(log_state.latest)
    known = newest.spark_batch if newest is not None else None
    if newest is None or known is None or known.query != batch.query:
        _refuse_foreign(log_state, batch, accepted)
        return Ruling(BatchVerdict.NEW, log_state.latest)
    if known == batch:
        return Ruling(BatchVerdict.AGAIN, newest.epoch)
    if follows(batch, known):
        return Ruling(BatchVerdict.NEW, newest.epoch)
    # A batch with the number of the newest one and other offsets is no rewind: Spark plans a batch once, so that the
    # checkpoint was edited or a copy of it ran.
    back = branch_point(log_state, batch) if batch.number < known.number else None
    if back is None:
        raise _unexpected(log_state, known, batch)
    return Ruling(BatchVerdict.REWOUND, back)


def _refuse_foreign(log_state: LogState, batch: SparkBatch, accepted: Accepted) -> None:
    """Raise unless the query may continue a branch that ends without an epoch of it.

    That is a confirmed query, the first one, or one that was rewound to its beginning and decided no batch since.
    """
    last = _last(log_state)
    if last is None or (batch.query == accepted.query and not _has_more(log_state, batch)):
        return
    if last.query != batch.query:
        raise _foreign(log_state, last, batch)
    if not has_begun_at(log_state, batch, log_state.latest):
        raise _unexpected(log_state, last, batch)


def owners(log_state: LogState) -> list[str]:
    """Return the queries that continue the outbox without a confirmation.

    These are the query that decided last, and the one at the end of the current branch. They differ after a rewind.
    """
    newest = log_state.by_id.get(log_state.latest)
    batches = (_last(log_state), newest.spark_batch if newest is not None else None)
    return [batch.query for batch in batches if batch is not None]


def _last(log_state: LogState) -> SparkBatch | None:
    """Return the batch that was decided last, on any branch: its query has the outbox."""
    return log_state.by_id[max(log_state.by_id)].spark_batch if log_state.by_id else None


def has_begun_at(log_state: LogState, batch: SparkBatch, epoch: int) -> bool:
    """Return True if the query of `batch` has begun right after `epoch`, with a batch at the place of this one."""
    begins = [each.spark_batch for each in log_state.by_id.values() if each.base == epoch]  # of any branch
    return any(known is not None and _begins_alike(known, batch) for known in begins)


def _begins_alike(known: SparkBatch, batch: SparkBatch) -> bool:
    # Not the batch's own offsets: after a rewind Spark plans it again, perhaps to another end.
    return (known.query, known.number, known.before) == (batch.query, batch.number, batch.before)


def branch_point(log_state: LogState, batch: SparkBatch) -> int | None:
    """Return the epoch of the batch right before `batch`, on the current branch; 0 for the time before the first epoch.

    Return None if the log has no such epoch. The number of a batch is not enough: after a rewind, several batches have
    it.
    """
    oldest: EpochBrief | None = None
    for brief, known in _of_query(log_state, batch.query):
        if follows(batch, known):
            return brief.epoch
        oldest = brief
    first = oldest.spark_batch if oldest is not None else None
    if oldest is not None and first is not None and _begins_alike(first, batch):
        # The query had an unknown life before its outbox: the branch begins where the outbox began. A base that
        # retention dropped cannot be restored.
        return oldest.base if oldest.base == 0 or oldest.base in log_state.by_id else None
    return None


def _of_query(log_state: LogState, query: str) -> Iterator[tuple[EpochBrief, SparkBatch]]:
    # Up to the epoch of another query: only a named epoch leads to those before it, see `_own`.
    for brief in log_state.lineage():
        if brief.spark_batch is None or brief.spark_batch.query != query:
            return
        yield brief, brief.spark_batch


def follows(batch: SparkBatch, known: SparkBatch) -> bool:
    """Return True if `batch` comes right after `known` in the same query."""
    return (batch.query, batch.number, batch.before) == (known.query, known.number + 1, known.offsets)


def restored(log_state: LogState, batch: SparkBatch, accepted: Accepted, restore: int) -> Ruling:
    """Return the verdict for an epoch that the operator named: the query must continue right there."""
    known = log_state.by_id[restore].spark_batch if restore in log_state.by_id else None
    newest = log_state.by_id.get(log_state.latest)
    current = newest.spark_batch if newest is not None else None
    if newest is not None and newest.base == restore and current == batch:
        # A program that starts again after a crash, with the same arguments: the first start has begun the branch.
        return Ruling(BatchVerdict.AGAIN, newest.epoch)
    # 0: before the first epoch. A batch that continues the current branch is refused below: the argument was for an
    # earlier start.
    if restore == 0 and (current is None or not (current == batch or follows(batch, current))):
        last = _last(log_state)
        if last is not None and batch.query not in (last.query, accepted.query):
            raise _foreign(log_state, last, batch)
        return Ruling(BatchVerdict.REWOUND if log_state.latest else BatchVerdict.NEW, 0)
    if restore and restore not in log_state.by_id:
        kept = ", ".join(str(epoch) for epoch in sorted(log_state.by_id)) or "none"
        raise EpochNotFound(
            f"epoch {restore} is not in the log of outbox '{log_state.job}': retention has dropped it, or it was never there",
            kept=kept,
            hint="take restore= out of the program; or rewind the query to the batch of a kept epoch and restore that one: "
            "`spark-ckpt rewind plan --outbox STORE`",
        )
    if known == batch:
        return Ruling(BatchVerdict.AGAIN, restore)
    foreign = known is not None and known.query != batch.query
    # The second: the epoch is another query's, and this query has begun right after it before.
    if known is not None and (follows(batch, known) or (foreign and has_begun_at(log_state, batch, restore))):
        return Ruling(BatchVerdict.NEW if restore == log_state.latest else BatchVerdict.REWOUND, restore)
    after = "" if known is None else f", which is batch {known.number} of query {known.query}"
    raise BatchUnexpected(
        f"batch {batch.number} does not come right after epoch {restore}{after}",
        query=batch.query,
        hint="take restore= out of the program: it is for one start; or rewind the query to the batch of that epoch first: "
        "`spark-ckpt rewind plan --outbox STORE`",
    )


def _foreign(log_state: LogState, known: SparkBatch, batch: SparkBatch) -> QueryForeign:
    hint = "if the checkpoint was deleted, bring it back; if two queries share the outbox, give each its own store"
    place = _place_of(log_state, batch)
    if not _has_more(log_state, batch):
        hint += (
            f"; if this query is to continue the outbox, start it with accept_query='{batch.query}': rows of input that the other "
            "query has read come again if this one reads it, too"
        )
    elif place is not None:
        hint += (
            f"; to continue with this query here, start it with restore={place}: the outbox leaves what came after epoch {place}, "
            "and rows that sinks have of it come again"
        )
    return QueryForeign(
        f"outbox '{log_state.job}' belongs to query {known.query}, and this is query {batch.query}",
        epoch=log_state.latest,
        batch=batch.number,
        hint=hint,
    )


def _own(log_state: LogState, batch: SparkBatch) -> Iterator[tuple[EpochBrief, SparkBatch]]:
    """Yield the epochs of the batch's query on the current branch, newest first, those before another query's too."""
    for brief in log_state.lineage():
        if brief.spark_batch is not None and brief.spark_batch.query == batch.query:
            yield brief, brief.spark_batch


def _has_more(log_state: LogState, batch: SparkBatch) -> bool:
    """Return True if the query had the outbox before, and `batch` does not come right after its newest epoch."""
    newest = next(_own(log_state, batch), None)
    return newest is not None and not follows(batch, newest[1])


def _place_of(log_state: LogState, batch: SparkBatch) -> int | None:
    """Return the epoch to restore for a batch of a query that had the outbox before; None if it has none."""
    return next((brief.epoch for brief, own in _own(log_state, batch) if own == batch or follows(batch, own)), None)


def _unexpected(log_state: LogState, known: SparkBatch, batch: SparkBatch) -> BatchUnexpected:
    said: dict[str, object] = {"query": batch.query, "epoch": log_state.latest, "newest batch": known.number}
    before = branch_point(log_state, batch)
    if batch.number == known.number and before is not None:
        return BatchUnexpected(
            f"batch {batch.number} has other offsets than the batch {known.number} that outbox '{log_state.job}' committed",
            hint="bring back the checkpoint as it was: it was edited, or a copy of it ran elsewhere; if the query was rewound on "
            f"purpose, start it with restore={before}: the rows of this batch come again",
            **said,
        )
    kept = [each.number for _, each in _of_query(log_state, batch.query)]
    if kept and batch.number > known.number + 1:
        return BatchUnexpected(
            f"outbox '{log_state.job}' has no batch between {known.number} and {batch.number}: rows would be missing",
            hint=f"bring back a newer backup of the outbox's store; or rewind the query to batch {known.number}: "
            "`spark-ckpt rewind plan --outbox STORE`",
            **said,
        )
    hint = "bring back the checkpoint as it was, or a newer backup of the outbox's store"
    if kept:
        hint += (
            f"; or rewind the query to a batch that the outbox still has, {kept[-1]} to {kept[0]}: "
            "`spark-ckpt rewind plan --outbox STORE`"
        )
    if not log_state.latest:  # a start restored the beginning, and ended before its first batch was committed
        hint += "; or repeat the start that restored the beginning, with restore=0: rows that sinks have come again"
    return BatchUnexpected(
        f"batch {batch.number} does not continue a batch that outbox '{log_state.job}' knows", hint=hint, **said
    )


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """An epoch that a branch leaves, and the sinks that have its rows, or may have them."""

    epoch: int
    batch: int
    rows: int
    shown: tuple[str, ...]
    maybe: tuple[str, ...]


def left_behind(log_state: LogState, base: int) -> list[LeftBehind]:
    """Return the epochs with rows that the current branch has after `base`, oldest first. The new branch leaves them."""
    kept = {brief.epoch for brief in log_state.lineage(base)} if base else set()
    left = [brief for brief in log_state.lineage() if brief.epoch not in kept and brief.rows_out]
    return [_left(log_state, brief) for brief in reversed(left)]


def dropped_with(log_state: LogState, base: int) -> int:
    """Return the newest epoch that a new branch after `base` leaves and that retention dropped; 0 if there is none."""
    kept = {brief.epoch for brief in log_state.lineage(base)} if base else set()
    current = list(log_state.lineage())
    # A branch that does not meet the base's lineage ends above a gap, or with the first epoch, whose base is 0.
    return 0 if not current or any(brief.epoch in kept for brief in current) else current[-1].base


def _left(log_state: LogState, brief: EpochBrief) -> LeftBehind:
    # Without an acknowledgement a sink may have the rows or not.
    unanswered = {sink for sink in brief.sinks if brief.epoch in log_state.unpublished.get(sink, ())}
    shown = tuple(sorted(set(brief.sinks) - unanswered))
    number = brief.spark_batch.number if brief.spark_batch is not None else -1
    return LeftBehind(brief.epoch, number, brief.rows_out, shown, tuple(sorted(unanswered)))
