"""What may go: which epochs are kept, and which files no kept epoch needs.

The order makes a crash harmless at any point: first the log forgets an epoch (one commit, after which nobody can
restore it), then tables stop showing its rows, then its files go.  What a crash leaves behind is found again by
listing: a file that no kept epoch names and whose name carries a dead incarnation.  Files of the current incarnation
or a newer one are only touched if a forgotten epoch named them: tasks may be about to make them part of an epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from spark_ckpt.store.log_state import LogState
from spark_ckpt.store.records import Manifest

_INCARNATION = re.compile(r"(?:^|-)i(\d+)-")


@dataclass(frozen=True, slots=True)
class Retention:
    """Keep the last `keep_last` epochs, those younger than `keep_age_ms`, and savepoints for ever.

    `slack`: wait until so many epochs can go, because forgetting costs a rewrite of the log.
    """

    keep_last: int = 20
    keep_age_ms: int = 0
    slack: int = 16


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """What went: epochs by number, files and bytes of state tables and outboxes, folders of dead incarnations."""

    epochs: tuple[int, ...] = ()
    files: int = 0
    bytes: int = 0
    folders: int = 0


def kept_epochs(log_state: LogState, policy: Retention, now_ms: int) -> set[int]:
    """Numbers of the epochs that stay.

    The newest by number and the newest of the current lineage (an older branch stays for a while after a restore),
    young ones, savepoints, the epoch the job stands on, everything some sink is still owed, and what comes before that:
    where to go back to if owed rows are damaged, or rows that are held back.  What stays keeps what it stands on, down to the
    oldest epoch that a sink is not known to have: who goes on from it has to know that.
    """
    by_number = sorted(log_state.by_id)[-policy.keep_last :]
    lineage = [brief.epoch for brief in log_state.lineage()][: policy.keep_last]
    young = [epoch for epoch, brief in log_state.by_id.items() if brief.created_ms > now_ms - policy.keep_age_ms]
    owed = [epoch for sink in log_state.sinks for epoch in log_state.awaited(sink)]
    behind_owed = [log_state.by_id[epoch].base for epoch in owed]
    behind_held = next((brief.epoch for brief in log_state.lineage() if not brief.holds), 0)
    owed_or_behind = {*owed, *behind_owed, behind_held}
    wanted = {
        log_state.latest,
        log_state.base,
        *by_number,
        *lineage,
        *young,
        *owed_or_behind,
        *log_state.savepoints.values(),
    }
    kept = wanted & log_state.by_id.keys()
    return kept | _indebted(log_state, kept)


def _indebted(log_state: LogState, kept: Iterable[int]) -> set[int]:
    """Epochs that the kept ones stand on and that are owed to a sink, or stand on one that is."""
    owed = {epoch for epochs in log_state.owed.values() for epoch in epochs}
    indebted: set[int] = set()
    for brief in log_state.epochs:
        if brief.epoch in owed or brief.base in indebted:
            indebted.add(brief.epoch)
    found: set[int] = set()
    for epoch in kept:
        while epoch in indebted and epoch not in found:
            found.add(epoch)
            epoch = log_state.by_id[epoch].base
    return found


def state_files(manifests: Iterable[Manifest], operator: str) -> set[str]:
    """Paths of one operator's files that some of the manifests need."""
    snapshots = [manifest.operators[operator] for manifest in manifests if operator in manifest.operators]
    return {file.path for snapshot in snapshots for file in snapshot.files}


def staged_files(manifests: Iterable[Manifest], sink: str) -> set[str]:
    """Paths of one sink's files in the outbox that some of the manifests need, to publish or held back."""
    outputs = [each[sink] for manifest in manifests for each in (manifest.outputs, manifest.held) if sink in each]
    return {file.path for output in outputs if not output.root for file in output.files}


def segments(manifests: Iterable[Manifest], edge: str) -> set[str]:
    """Paths of one edge's files that were in flight at some of the manifests."""
    cuts = [manifest.edges[edge] for manifest in manifests if edge in manifest.edges]
    return {file.path for cut in cuts for file in cut.files}


def garbage(
    paths: Iterable[str], prefix: str, needed: AbstractSet[str], forgotten: AbstractSet[str], incarnation: int
) -> list[str]:
    """Those of the files called `prefix...` that may go: not needed, and named by a forgotten epoch or written by an incarnation
    before `incarnation`, the one that asks.
    """
    ours = ((path, incarnation_of(path, prefix)) for path in paths if path not in needed)
    return [path for path, writer in ours if writer is not None and (path in forgotten or writer < incarnation)]


def incarnation_of(path: str, prefix: str = "") -> int | None:
    """The incarnation that wrote a file, from its name; None for a name that is not ours.

    `prefix` is what precedes the incarnation in the name and may itself look like one (a sink's name).
    """
    name = path.rsplit("/", 1)[-1]
    match = _INCARNATION.search(name.removeprefix(prefix))
    return int(match[1]) if match and name.startswith(prefix) else None
