"""The restore plan: what starting a job from an epoch would do, computed without doing any of it.

What a plan has to say about output: a sink cannot take back what it published.  Epochs behind the restored one that are
visible stay visible, and the restored job produces their rows once more under new epoch numbers.  Only rows that no
sink has yet are really undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from spark_ckpt.connector import Json
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.store import restore
from spark_ckpt.store.identity import check_owed
from spark_ckpt.store.log_state import LogState
from spark_ckpt.store.records import EpochBrief, Manifest
from spark_ckpt.store.ways_back import whole_manifests


@dataclass(frozen=True, slots=True)
class StateToLoad:
    """What one operator reads back."""

    operator: str
    key_groups: int
    files: int
    bytes: int


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """What a restore means for one sink; epochs oldest first.

    `publish`: decided, in the restored lineage, not known to be published: will be. `again`: behind the restored epoch
    and visible already: their input is read and their rows are produced once more. `never`: behind it and not
    published: their staged rows never become visible, the restored job produces them anew. `elsewhere`:
    visible epochs of branches that were left before; they may hold rows of the same input. `held_rows`: what the restored epoch
    holds back for a later publish: its rows go out with the first new epoch.
    """

    sink: str
    publish: tuple[int, ...]
    publish_rows: int
    again: tuple[int, ...]
    again_rows: int
    never: tuple[int, ...]
    elsewhere: tuple[int, ...] = ()
    replaced: bool = False
    """Another table or topic takes its place: it begins with the first new epoch."""
    complete: bool = True
    """False if epochs between were forgotten by retention: `again` may be more than the log can tell."""
    held_rows: int = 0


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What `job.start(restore=target)` would do now. `abandoned`: epochs of the current lineage that it leaves."""

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
    skipped: tuple[tuple[int, str], ...]


def plan(
    log_state: LogState,
    target: restore.RestoreTarget,
    read: restore.Read,
    verify: restore.Verify,
    new_sinks: AbstractSet[str] = frozenset(),
) -> RestorePlan:
    """The plan for a target, every file that the restore needs verified. `new_sinks`: confirmed as other tables or topics.

    Raises `EpochNotFound`, `EpochDamaged`, `IdentityChanged` (a new sink while the old one is owed rows) as the restore
    itself would; `ConfigInvalid` for sinks that no epoch knows.
    """
    if unknown := sorted(new_sinks - set(log_state.sinks)):
        raise ConfigInvalid(f"no epoch knows a sink '{unknown[0]}'", hint=f"one of: {', '.join(log_state.sinks)}")
    choice = restore.choose(log_state, target, read, verify)
    base = choice.base
    for sink in sorted(new_sinks):
        owed = restore.owed_rows(base, choice.unpublished).get(sink, [])
        check_owed(sink, owed, lambda: whole_manifests(log_state, base.epoch, read, verify))
    sinks = tuple(_sink(log_state, sink, base, choice.unpublished.get(sink, []), read) for sink in log_state.sinks)
    return RestorePlan(
        job=log_state.job,
        restored_from=choice.restored_from,
        epoch=base.epoch,
        created_ms=base.created_ms,
        incarnation=log_state.incarnation + 1,
        next_epoch=log_state.last + 1,
        latest=log_state.latest,
        cursors=base.cursors,
        watermark_ms=base.watermark_ms,
        state=_state(base),
        sinks=tuple(replace(each, replaced=each.sink in new_sinks) for each in sinks),
        abandoned=abandoned(log_state, base.epoch),
        skipped=choice.skipped,
    )


def abandoned(log_state: LogState, base: int) -> tuple[int, ...]:
    """Epochs of the current lineage that are not part of the lineage of `base`, oldest first."""
    kept = {brief.epoch for brief in log_state.lineage(base)} if base else set()
    return tuple(sorted(brief.epoch for brief in log_state.lineage() if brief.epoch not in kept and brief.epoch > base))


def behind(log_state: LogState, base: int) -> tuple[list[EpochBrief], bool]:
    """Kept epochs of any branch that stand on `base`, oldest first, and whether the log still knows all of them.

    An epoch whose ancestors were forgotten by retention counts as standing on `base`: rather one too many.
    """
    found: list[EpochBrief] = []
    complete = True
    for brief in log_state.epochs:
        if brief.epoch <= base:
            continue
        root = _oldest_above(log_state, brief, base)
        if root.base == base:
            found.append(brief)
        elif root.base > base:
            found.append(brief)
            complete = False
    return found, complete


def _oldest_above(log_state: LogState, brief: EpochBrief, base: int) -> EpochBrief:
    """The oldest kept ancestor of an epoch that is newer than `base`, maybe itself."""
    while brief.base > base and brief.base in log_state.by_id:
        brief = log_state.by_id[brief.base]
    return brief


def _state(base: Manifest) -> tuple[StateToLoad, ...]:
    return tuple(
        StateToLoad(each.operator, each.key_groups, len(each.files), sum(file.size_bytes for file in each.files))
        for each in base.operators.values()
    )


def _sink(log_state: LogState, sink: str, base: Manifest, publish: Iterable[Manifest], read: restore.Read) -> SinkPlan:
    due = list(publish)
    followers, complete = behind(log_state, base.epoch)
    unacked = set(log_state.unacked(sink))
    lineage = log_state.lineage(base.epoch) if base.epoch else ()
    known = {brief.epoch for brief in (*followers, *lineage)}
    others = (each.epoch for each in log_state.epochs if each.epoch not in known and sink in each.sinks)
    again = tuple(brief.epoch for brief in followers if sink in brief.sinks and brief.epoch not in unacked)
    return SinkPlan(
        sink=sink,
        publish=tuple(each.epoch for each in due),
        publish_rows=_rows(sink, due),
        held_rows=base.held[sink].rows if sink in base.held else 0,
        again=again,
        again_rows=_rows(sink, map(read, again)),
        never=tuple(brief.epoch for brief in followers if brief.epoch in unacked),
        elsewhere=tuple(each for each in others if each not in unacked and _rows(sink, [read(each)])),
        complete=complete,
    )


def _rows(sink: str, manifests: Iterable[Manifest]) -> int:
    return sum(each.outputs[sink].rows for each in manifests if sink in each.outputs)
