"""Pinned points as further points of a query: selection by the query's history, and checks of their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from spark_ckpt.errors import CkptError, FormatUnknown, RewindOutOfReach
from spark_rewind.checkpoint import Batch, Pinned, QueryCheckpoint, read_checkpoint
from spark_rewind.pins import KeptPoint, PinnedQuery, damage, kept_points
from spark_rewind.stages import PLAN_AGAIN


@dataclass(frozen=True, slots=True)
class WithPins:
    """Queries with pinned batches of their history.

    `refused`: reason by (query, label of the point). `broken`: sentences about unreadable points.
    """

    queries: Mapping[str, QueryCheckpoint]
    refused: Mapping[tuple[str, str], str]
    broken: Sequence[str]

    @property
    def notes(self) -> Iterator[str]:
        """Sentences about points that are left out."""
        yield from self.broken
        yield from (
            f"pinned point {label} is left out for {query}: {why}" for (query, label), why in self.refused.items()
        )


def with_pins(queries: Mapping[str, QueryCheckpoint], points: Sequence[KeptPoint]) -> WithPins:
    """Add the pinned batches of each query.

    A damaged batch stays a point; the search for a line skips it with its reason.
    """
    refused: dict[tuple[str, str], str] = {}
    found = dict(queries)
    for name, query in queries.items():
        pinned = []
        unbegun = False
        for kept in points:
            for each in kept.point.queries if kept.point else ():
                # By id: a query's folder may have another name now.
                if each.query == query.query and each.batch < 0:
                    unbegun = True
                elif each.query == query.query:
                    one = _pinned(query, kept, each)
                    if isinstance(one, Pinned):
                        pinned.append(one)
                    else:
                        refused[name, kept.point.label if kept.point else ""] = one
        found[name] = replace(query, pinned=tuple(pinned), pinned_unbegun=unbegun)
    broken = [
        f"pinned point {each.folder.name} is left out: {each.broken}" for each in points if each.broken is not None
    ]
    return WithPins(found, refused, broken)


def _pinned(query: QueryCheckpoint, kept: KeptPoint, pinned: PinnedQuery) -> Pinned | str:
    """Return the pinned batch, or the reason why it is left out."""
    folder = kept.folder / pinned.kept_in
    try:
        copy = read_checkpoint(folder, query.name)
    except FormatUnknown:
        raise
    except CkptError as error:
        return error.what
    batch = copy.batch(pinned.batch)
    if batch is None or copy.query != query.query:
        return f"{folder} is not a checkpoint of this query at batch {pinned.batch}"
    label = kept.point.label if kept.point else ""
    # Cached: the check reads all small files of the point.
    return _not_of_its_past(query, batch, pinned.inode) or Pinned(
        batch, folder, label, cache(partial(_damage, kept, pinned, copy))
    )


def _not_of_its_past(query: QueryCheckpoint, batch: Batch, inode: int) -> str | None:
    """Return the reason why a pinned batch is not in the query's history, None if it is.

    The query may have rolled back since and run a batch of this number again. A batch that the log still has is compared.
    For an older one, the checkpoint's folder must be the same: a rewind replaces the folder, and tables may have
    renumbered their versions since.
    """
    newest, oldest = (query.batches[-1].number, query.batches[0].number) if query.batches else (-1, 0)
    if batch.number > newest:
        return f"the query has gone back since: its newest batch is {newest}, not {batch.number}"
    if batch.number >= oldest:
        own = query.batch(batch.number)
        # A batch that runs again under its number begins later, even if it reads the same rows.
        same = own is not None and (own.began_ms, dict(own.ends)) == (batch.began_ms, dict(batch.ends))
        return None if same else f"the query has gone back since: its batch {batch.number} is another one now"
    if query.folder.stat().st_ino != inode:
        dropped = f"its log no longer has batch {batch.number}"
        return f"{query.folder} is another folder now, and {dropped}: the query may have gone back since"
    return None


def whole_copy(folder: Path, name: str) -> QueryCheckpoint:
    """Return a pinned checkpoint by the folder that a plan names, after a check of its files.

    Raises `RewindOutOfReach` if the point was removed or its files are damaged.
    """
    # the folder is PINS/points/<id>/queries/<number>
    if len(folder.parents) < 4:
        raise RewindOutOfReach(f"{name}: {folder} is no part of a pinned point", hint=PLAN_AGAIN)
    kept = next((each for each in kept_points(folder.parents[3]) if each.folder == folder.parents[1]), None)
    if kept is None or kept.point is None:
        raise RewindOutOfReach(
            f"{name}: pinned point {folder.parents[1]} was taken away since the plan", hint=PLAN_AGAIN
        )
    for each in kept.point.queries:
        if kept.folder / each.kept_in == folder:
            if (why := damage(kept, each)) is not None:
                raise RewindOutOfReach(f"{name}: {why}", hint=PLAN_AGAIN)
            return read_checkpoint(folder, name)
    raise RewindOutOfReach(f"{name}: {folder} is no part of pinned point {kept.point.label}", hint=PLAN_AGAIN)


def _damage(kept: KeptPoint, pinned: PinnedQuery, copy: QueryCheckpoint) -> str | None:
    batch = copy.batch(pinned.batch)
    wrong = damage(kept, pinned)
    if wrong is None and batch is not None:
        wrong = copy.state_gone(batch) or copy.state_torn(batch)
    return wrong
