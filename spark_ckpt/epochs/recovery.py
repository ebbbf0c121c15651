"""The restore plan: the effects of starting a job from an epoch, computed without any of them.

A sink cannot undo a publish. Visible epochs after the restored one stay visible. The restored job produces their rows
once more, under new epoch numbers. Only rows that no sink has yet are really undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from spark_ckpt.connector import Json
from spark_ckpt.epochs import restore
from spark_ckpt.epochs.identity import Confirmed, check_unpublished
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import EpochBrief, Manifest
from spark_ckpt.epochs.ways_back import whole_manifests
from spark_ckpt.errors import UNREADABLE, ConfigInvalid


@dataclass(frozen=True, slots=True)
class StateToLoad:
    """State files that one operator reads. `bytes`: their total size."""

    operator: str
    key_groups: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """Effect of a restore on one sink; epochs are oldest first.

    - `publish`: epochs of the restored lineage that the sink may lack; they will be published.
    - `again`: visible epochs after the restored one; their input is read and their rows are produced again.
    - `never`: epochs after the restored one that the sink has not acknowledged. Staged rows that it lacks never become
      visible; the restored job produces all of them again.
    - `elsewhere`: visible epochs of branches that earlier restores left; they may hold rows of the same input.
    - `held_rows`: deferred rows of the restored epoch; they are published with the first new epoch.
    """

    sink: str
    publish: tuple[int, ...]
    publish_rows: int
    again: tuple[int, ...]
    again_rows: int
    never: tuple[int, ...]
    elsewhere: tuple[int, ...] = ()
    replaced: bool = False
    """True if another table or topic replaces the sink: it begins with the first new epoch."""
    complete: bool = True
    """False if retention has removed epochs in between: `again` may be more than the log knows."""
    held_rows: int = 0
    damaged: tuple[int, ...] = ()
    """Epochs of `again` and `elsewhere` that cannot be read: their rows are not counted."""


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """Effects of `job.start(restore=target)` if it ran now. `abandoned`: epochs of the current lineage that it
    leaves.
    """

    job: str
    restored_from: str
    epoch: int
    created_ms: int
    incarnation: int
    next_epoch: int
    latest: int
    cursors: Mapping[str, Mapping[str, Json]]
    watermark_ms: int
    state: tuple[StateToLoad, ...]
    sinks: tuple[SinkPlan, ...]
    abandoned: tuple[int, ...]


def plan(
    log_state: LogState,
    target: restore.RestoreTarget,
    read: restore.Read,
    verify: restore.Verify,
    new_sinks: AbstractSet[str] = frozenset(),
) -> RestorePlan:
    """Return the plan for a target; verifies every file that the restore needs.

    `new_sinks`: sinks that are confirmed as other tables or topics.

    Raises the errors of the restore itself:
    - `EpochNotFound`, `EpochDamaged`;
    - `IdentityChanged`, for a new sink while the old one has unpublished rows;
    - `ConfigInvalid` for a sink that no epoch knows.
    """
    if unknown := sorted(new_sinks - set(log_state.sinks)):
        raise ConfigInvalid(f"no epoch knows a sink '{unknown[0]}'", hint=f"one of: {', '.join(log_state.sinks)}")
    # The very decision of a start, so that the plan cannot promise a restore that a start refuses.
    choice = restore.choose(log_state, target, read, verify)
    base = choice.base
    unpublished = restore.unpublished_rows(base, choice.unpublished)
    check_unpublished(
        {sink: unpublished.get(sink, []) for sink in sorted(new_sinks)},
        lambda: whole_manifests(log_state, base.epoch, read, verify),
        Confirmed(new_sinks=frozenset(new_sinks)),
    )
    sinks = tuple(_sink(log_state, sink, base, choice.unpublished.get(sink, []), read) for sink in log_state.sinks)
    return RestorePlan(
        job=log_state.job,
        restored_from=choice.restored_from,
        epoch=base.epoch,
        created_ms=base.created_ms,
        incarnation=log_state.incarnation + 1,  # unless another driver begins first
        next_epoch=log_state.last + 1,  # no branch gets a number again
        latest=log_state.latest,
        cursors=base.cursors,
        watermark_ms=base.watermark_ms,
        state=_state(base),
        sinks=tuple(replace(each, replaced=each.sink in new_sinks) for each in sinks),
        abandoned=abandoned(log_state, base.epoch),
    )


def abandoned(log_state: LogState, base: int) -> tuple[int, ...]:
    """Return the epochs of the current lineage outside of the lineage of `base`, oldest first."""
    kept = {brief.epoch for brief in log_state.ancestry(base)} if base else set()
    return tuple(sorted(brief.epoch for brief in log_state.ancestry() if brief.epoch not in kept))


def behind(log_state: LogState, base: int) -> tuple[list[EpochBrief], bool]:
    """Return the retained descendants of `base` on any branch, oldest first, and if the log still knows all of them.

    An epoch counts as a descendant if the log does not know its ancestors: the result may be too large, never too
    small.
    """
    found: list[EpochBrief] = []
    complete = True
    roots: dict[int, tuple[int, bool]] = {}
    # Oldest first, so that the root of an ancestor is known: the newest kept ancestor up to `base`, and if epochs
    # between the two were dropped.
    for brief in log_state.epochs:
        # Numbers grow along a branch, so no descendant is at or below its ancestor.
        if brief.epoch <= base:
            continue
        above = log_state.parent(brief)
        root, gap = roots.get(above, (above, False))
        # Its base was dropped, and other descendants may have been with it.
        gap = gap or not (brief.base in roots or brief.base in (0, base))
        roots[brief.epoch] = root, gap
        # A root above `base` is an ancestor that the log has dropped: it may descend from `base`.
        if root >= base:
            found.append(brief)
            complete = complete and not gap
    return found, complete


def _state(base: Manifest) -> tuple[StateToLoad, ...]:
    return tuple(
        StateToLoad(each.operator, each.key_groups, len(each.files), sum(file.size_bytes for file in each.files))
        for each in base.operators.values()
    )


def _sink(log_state: LogState, sink: str, base: Manifest, publish: Iterable[Manifest], read: restore.Read) -> SinkPlan:
    due = list(publish)
    followers, complete = behind(log_state, base.epoch)
    unacked = set(log_state.unacked(sink))
    lineage = log_state.ancestry(base.epoch) if base.epoch else ()
    known = {brief.epoch for brief in (*followers, *lineage)}
    others = [each.epoch for each in log_state.epochs if each.epoch not in known | unacked and sink in each.sinks]
    again = tuple(brief.epoch for brief in followers if sink in brief.sinks and brief.epoch not in unacked)
    rows = {epoch: _rows_of(sink, epoch, read) for epoch in (*again, *others)}
    return SinkPlan(
        sink=sink,
        publish=tuple(each.epoch for each in due),
        publish_rows=_rows(sink, due),
        held_rows=base.held[sink].rows if sink in base.held else 0,
        again=again,
        again_rows=sum(rows[epoch] or 0 for epoch in again),
        never=tuple(brief.epoch for brief in followers if brief.epoch in unacked),
        elsewhere=tuple(epoch for epoch in others if rows[epoch] != 0),
        complete=complete,
        damaged=tuple(epoch for epoch, count in rows.items() if count is None),
    )


def _rows_of(sink: str, epoch: int, read: restore.Read) -> int | None:
    # The restore needs none of these manifests, and its plan is what an operator runs because one is damaged.
    try:
        return _rows(sink, [read(epoch)])
    except UNREADABLE:
        return None


def _rows(sink: str, manifests: Iterable[Manifest]) -> int:
    return sum(each.outputs[sink].rows for each in manifests if sink in each.outputs)
