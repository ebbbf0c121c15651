"""Retention: the epochs that the log keeps, and the files that no kept epoch needs.

The order makes a crash harmless at any point. First one commit drops an epoch from the log, so that it cannot be
restored. Then tables stop showing its rows. Then its files are deleted.

A listing finds the files that a crash leaves: no kept epoch names them, and their names carry a dead incarnation. Files
of the current incarnation or a newer one are deleted only if a dropped epoch named them. Tasks may be about to make the
others part of an epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from types import MappingProxyType

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.readers import held_epochs
from spark_ckpt.epochs.records import EpochBrief, Manifest

# Names are `i<incarnation>-...`, or `<prefix>-i<incarnation>-...` with the prefix of a sink.
_INCARNATION = re.compile(r"(?:^|-)i(\d+)-")


_MINUTE_MS, _HOUR_MS = 60_000, 3_600_000
MOST_RECENT = 120
"""Number of the newest epochs of the last hour that are all kept. Before them one a minute is kept, and one an hour."""


@dataclass(frozen=True, slots=True)
class Retention:
    """Keep the last `keep_last` epochs, epochs younger than `keep_age_ms`, and savepoints for ever.

    `thinned_ms`: keep epochs until they are so old, ever fewer of them (`thinned`).
    `readers_ms`: keep an epoch for the readers of an edge until it is so old.
    `slack`: number of epochs that must be droppable before any is dropped, because a drop rewrites the log. A quarter of
    the kept ones at least, so that an epoch costs the same however many are kept; 0 drops at once.
    """

    keep_last: int = 20
    keep_age_ms: int = 0
    readers_ms: int = 0
    slack: int = 16
    thinned_ms: int = 0

    def drops(self, kept: int, droppable: int) -> bool:
        """Return True if it is time to drop `droppable` epochs and to keep `kept`."""
        return droppable > (max(self.slack, kept // 4) if self.slack else 0)


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """Result of a retention: dropped epochs, deleted files and their bytes, deleted folders of dead incarnations."""

    epochs: tuple[int, ...] = ()
    files: int = 0
    bytes: int = 0
    folders: int = 0


def kept_epochs(
    log_state: LogState, policy: Retention, now_ms: int, newest_rows: Mapping[str, int] = MappingProxyType({})
) -> set[int]:
    """Return the ids of the epochs to keep.

    `now_ms`: ms since 1970 UTC. `newest_rows`: see `readers.held_epochs`.

    - the newest by id, and the newest of the current branch (an older branch stays for a while after a restore),
    - young epochs and savepoints,
    - epochs of the current branch from the last days, ever fewer of them (`thinned`),
    - the epoch that the newest incarnation started from,
    - epochs that some sink may still have to get, and the epochs before them: a restore needs these if unpublished rows
      are damaged,
    - the newest epoch that defers no rows,
    - epochs that a registered reader of an edge has not read.

    A kept epoch also keeps its ancestors, down to the oldest one that a sink has not acknowledged. A job that continues
    from it must know them.
    """
    # By number, so that a branch that a restore has just left can be restored for a while.
    by_number = sorted(log_state.by_id)[-policy.keep_last :]
    # After a restore the newest ids belong to the branch that was left, and would push the current one out.
    lineage = [brief.epoch for brief in log_state.lineage()][: policy.keep_last]
    young = [epoch for epoch, brief in log_state.by_id.items() if brief.created_ms > now_ms - policy.keep_age_ms]
    unpublished = [epoch for sink in log_state.sinks for epoch in log_state.unsettled(sink)]
    # If unpublished rows turn out damaged, the job has to restore the epoch before them.
    before_unpublished = [log_state.by_id[epoch].base for epoch in unpublished]
    # The same for deferred rows: an epoch without any is restorable when they are damaged.
    behind_held = next((brief.epoch for brief in log_state.ancestry() if not brief.holds), 0)
    unpublished_or_before = {*unpublished, *before_unpublished, behind_held}
    wanted = {
        log_state.latest,
        log_state.base,
        *by_number,
        *lineage,
        *young,
        *thinned(log_state.ancestry(), policy.thinned_ms, now_ms),
        *unpublished_or_before,
        *log_state.savepoints.values(),
        *held_epochs(log_state, newest_rows, now_ms - policy.readers_ms),
    }
    # Some of these ids may be 0 (no epoch) or dropped already.
    kept = wanted & log_state.by_id.keys()
    return kept | _unpublished_ancestry(log_state, kept)


def thinned(lineage: Iterable[EpochBrief], until_ms: int, now_ms: int) -> set[int]:
    """Return the epochs of a branch to keep up to the age `until_ms`, ever fewer of them.

    - every epoch of the last hour, `MOST_RECENT` of them at most,
    - the first of each minute of the last hour,
    - the first of each hour before.

    An epoch with an index counts to the minute and the hour that its lines begin with, and is as old as the newest of them:
    programs with common lines keep the same ones, of each minute and hour the first.

    `lineage`: newest first. At most `MOST_RECENT` + 61 + one for each hour begun are kept, at any rate of epochs.
    The first of an hour is the first of its minute as well. So a pass drops nothing that a later one would keep, and
    the result does not depend on how often epochs are dropped.
    """
    if not until_ms:
        return set()
    recent: list[int] = []
    first: dict[tuple[int, int], int] = {}
    for brief in lineage:
        age_ms = now_ms - max(brief.created_ms, 1000 * brief.index)
        if age_ms > until_ms:
            continue
        if age_ms <= _HOUR_MS:
            recent.append(brief.epoch)
        # Also within the last hour: the first of the hour that has begun must outlive it.
        for part_ms in (_MINUTE_MS, _HOUR_MS) if age_ms <= _HOUR_MS else (_HOUR_MS,):
            # Newest first, so the oldest epoch of a minute or hour is written last, and stays.
            if (part := _part_begun(brief, part_ms)) is not None:
                first[part_ms, part] = brief.epoch
    return {*recent[:MOST_RECENT], *first.values()}


def _part_begun(brief: EpochBrief, part_ms: int) -> int | None:
    """Return the number of the minute or hour (`part_ms`) that an epoch counts to; None if it serves no line at its begin."""
    if not brief.index:
        return brief.created_ms // part_ms
    part = 1000 * brief.index // part_ms
    # Otherwise an epoch before it serves the line at that moment.
    return part if 1000 * brief.after < part * part_ms else None


def _unpublished_ancestry(log_state: LogState, kept: Iterable[int]) -> set[int]:
    """Return the ancestors of kept epochs that a sink has not acknowledged, or that descend from such an epoch."""
    unpublished = {epoch for epochs in log_state.unpublished.values() for epoch in epochs}
    affected: set[int] = set()
    # Oldest first, so that a base is classified before the epochs that extend it.
    for brief in log_state.epochs:
        if brief.epoch in unpublished or brief.base in affected:
            affected.add(brief.epoch)
    found: set[int] = set()
    for epoch in kept:
        while epoch in affected and epoch not in found:
            found.add(epoch)
            epoch = log_state.by_id[epoch].base
    return found


def state_files(manifests: Iterable[Manifest], operator: str) -> set[str]:
    """Return the paths of one operator's files that the manifests need."""
    snapshots = [manifest.operators[operator] for manifest in manifests if operator in manifest.operators]
    return {file.path for snapshot in snapshots for file in snapshot.files}


def staged_files(manifests: Iterable[Manifest], sink: str) -> set[str]:
    """Return the paths of one sink's files in the store that the manifests need, to publish or deferred."""
    outputs = [each[sink] for manifest in manifests for each in (manifest.outputs, manifest.held) if sink in each]
    # Files at a root of their own lie in the sink's folder: its publisher removes those of older incarnations.
    return {file.path for output in outputs if not output.root for file in output.files}


def segments(manifests: Iterable[Manifest], edge: str) -> set[str]:
    """Return the paths of one edge's segments that were in flight at one of the manifests."""
    cuts = [manifest.edges[edge] for manifest in manifests if edge in manifest.edges]
    return {file.path for cut in cuts for file in cut.files}


def garbage(
    paths: Iterable[str], prefix: str, needed: AbstractSet[str], forgotten: AbstractSet[str], incarnation: int
) -> list[str]:
    """Return those of the files named `prefix...` that can be deleted.

    They are in no kept epoch, and a dropped epoch named them or an incarnation before `incarnation` (the caller's)
    wrote them.
    """
    ours = ((path, incarnation_of(path, prefix)) for path in paths if path not in needed)
    # A name without an incarnation is not ours. Files of `incarnation` and later ones may be about to join an epoch.
    return [path for path, writer in ours if writer is not None and (path in forgotten or writer < incarnation)]


def incarnation_of(path: str, prefix: str = "") -> int | None:
    """Return the incarnation that wrote a file, from its name; None for a name of another form.

    `prefix` precedes the incarnation in the name. It may itself look like one (a sink's name).
    """
    name = path.rsplit("/", 1)[-1]
    match = _INCARNATION.search(name.removeprefix(prefix))
    return int(match[1]) if match and name.startswith(prefix) else None
