"""Pinned points among the points of a query: which of them are of its past, and whether their files are as they were."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path

from spark_ckpt.errors import CkptError, FormatUnknown, RewindOutOfReach
from spark_rewind.checkpoint import Batch, Checkpoint, Pinned, read_checkpoint
from spark_rewind.pins import Kept, PinnedQuery, damage, kept_points


@dataclass(frozen=True, slots=True)
class WithPins:
    """Queries with the pinned batches that are of their past. `refused`: (query, label of the point): why it is left out."""

    queries: Mapping[str, Checkpoint]
    refused: Mapping[tuple[str, str], str]
    broken: Sequence[str]

    @property
    def notes(self) -> Iterator[str]:
        """What is to be said of points that are left out."""
        yield from self.broken
        yield from (
            f"pinned point {label} is left out for {query}: {why}" for (query, label), why in self.refused.items()
        )


def with_pins(queries: Mapping[str, Checkpoint], points: Sequence[Kept]) -> WithPins:
    """Add what is pinned of each query. What is damaged stays a point, and is passed over with its reason if a line needs it."""
    refused: dict[tuple[str, str], str] = {}
    found = dict(queries)
    for name, query in queries.items():
        pinned = []
        unbegun = False
        for kept in points:
            for each in kept.point.queries if kept.point else ():
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


def _pinned(query: Checkpoint, kept: Kept, pinned: PinnedQuery) -> Pinned | str:
    """The batch as it was pinned, or why it is not taken into account."""
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
    return _not_of_its_past(query, batch, pinned.inode) or Pinned(
        batch, folder, label, cache(partial(_damage, kept, pinned, copy))
    )


def _not_of_its_past(query: Checkpoint, batch: Batch, inode: int) -> str | None:
    """A batch with this number may be another one: the query went back since, and did it again.

    What the log still has is compared. What it has let go of is taken for the query's past only if its folder is still the same
    one: a rewind puts another folder in its place, and tables may count their versions anew since.
    """
    newest, oldest = (query.batches[-1].number, query.batches[0].number) if query.batches else (-1, 0)
    if batch.number > newest:
        return f"the query has gone back since: its newest batch is {newest}, not {batch.number}"
    if batch.number >= oldest:
        own = query.batch(batch.number)
        same = own is not None and (own.began_ms, dict(own.ends)) == (batch.began_ms, dict(batch.ends))
        return None if same else f"the query has gone back since: its batch {batch.number} is another one now"
    if query.folder.stat().st_ino != inode:
        let_go = f"its log has let go of batch {batch.number}"
        return f"{query.folder} is another folder now, and {let_go}: the query may have gone back since"
    return None


def whole_copy(folder: Path, name: str) -> Checkpoint:
    """A pinned checkpoint, by the folder that a plan names, once its files were looked at again.

    Raises `RewindOutOfReach` if the point was taken away or its files are damaged.
    """
    kept = next((each for each in kept_points(folder.parents[3]) if each.folder == folder.parents[1]), None)
    hint = "plan again, and apply that plan; nothing was changed"
    if kept is None or kept.point is None:
        raise RewindOutOfReach(f"{name}: pinned point {folder.parents[1]} was taken away since the plan", hint=hint)
    for each in kept.point.queries:
        if kept.folder / each.kept_in == folder:
            if (why := damage(kept, each)) is not None:
                raise RewindOutOfReach(f"{name}: {why}", hint=hint)
            return read_checkpoint(folder, name)
    raise RewindOutOfReach(f"{name}: {folder} is no part of pinned point {kept.point.label}", hint=hint)


def _damage(kept: Kept, pinned: PinnedQuery, copy: Checkpoint) -> str | None:
    batch = copy.batch(pinned.batch)
    wrong = damage(kept, pinned)
    if wrong is None and batch is not None:
        wrong = copy.state_gone(batch) or copy.state_torn(batch)
    return wrong
