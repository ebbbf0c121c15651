"""The restore decision: the target that a user names, the epoch that it means, and the epochs still to be published.

No start skips a damaged epoch by itself. Going back before it repeats work, and output that a sink may have. An operator
decides that by naming an epoch; the error names it.

A restore of an older epoch starts another branch. Committed epochs up to the restored one are published if their sinks
lack them. Committed, unpublished epochs *after* it are dropped: their rows never reach the sink.
`RecoveryPoint.dropped` names them, so that a sink's marker can skip them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.names import valid_name
from spark_ckpt.epochs.parts import differing
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.errors import UNREADABLE, ConfigInvalid, EpochDamaged, EpochNotFound, PublishConflict
from spark_ckpt.wording import epochs

RestoreTarget = str | int
"""`"latest"`, an epoch number (also as text), or a savepoint's name."""

LATEST = "latest"

ADOPTING = "adopting a query"
"""Name of the lease holder while the checkpoint of a plain query becomes the store's first epoch.

No job can have such a name. Until that epoch is committed, a start from the sources' configured positions would be
wrong.
"""


REWINDING = "rewind "
"""Beginning of the lease holder's name while a rewind takes the query of an outbox back; the rewind's id follows.

No outbox can have such a name. Until the rewind releases the lease, only the rewind itself begins incarnations.
"""


RESTORING_LINE = "restore to "
"""Beginning of the lease holder's name while several stores are restored to one line; the target follows.

Until the restore has reached all stores and frees their leases, only the restore itself begins incarnations.
"""

REWOUND = "rewound"
"""Reason for the end of the incarnation of a rewind."""
RESTORED_LINE = "restored to "
"""Beginning of the reason for the end of an incarnation that restored its store to a line; the target follows."""


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """The point that a new incarnation continues from."""

    incarnation: int
    manifest: Manifest
    """Epoch that the incarnation extends; an empty manifest with number 0 at the very start."""
    last: int
    """Highest id ever committed. The next epoch gets a higher one."""
    restored_from: str
    unpublished: Mapping[str, list[Manifest]] = field(default_factory=dict)
    """Committed epochs of this branch that each sink has not acknowledged, oldest first."""
    dropped: Mapping[str, list[int]] = field(default_factory=dict)
    """Ids outside of this branch that each sink has not acknowledged and that an operator chose to leave, oldest first.

    A sink that has one of them may continue.
    """
    diverged: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """Diverged ids above each unpublished epoch, committed or lost. A sink that has one of them may lack that epoch."""


@dataclass(frozen=True, slots=True)
class Choice:
    """The epoch chosen as base, and the epochs to publish before the job continues from it."""

    base: Manifest
    restored_from: str
    unpublished: Mapping[str, list[Manifest]]


def unpublished_rows(base: Manifest, unpublished: Mapping[str, Sequence[Manifest]]) -> dict[str, list[Manifest]]:
    """Return per sink the epochs whose rows it may lack: the unpublished ones, and `base` if it defers rows."""
    holds = {sink: [base] for sink, held in base.held.items() if held.files}
    return {sink: [*unpublished.get(sink, ()), *holds.get(sink, ())] for sink in {**unpublished, **holds}}


Read = Callable[[int], Manifest]
Verify = Callable[[Manifest], None]


def choose(
    log_state: LogState, target: RestoreTarget, read: Read, verify: Verify, whole: Verify | None = None
) -> Choice:
    """Return the epoch that `target` means, verified together with the epochs to publish.

    - `read`: function from an id to its manifest.
    - `verify`: function that checks the files of a manifest.
    - `whole`: like `verify`, for epochs that the recovery advice of an error names. Default: `verify`. A caller that
      reads no files itself still verifies an epoch before it recommends it.

    Raises `EpochNotFound`, `ConfigInvalid` for an invalid target, and `PublishConflict` as `checked`. Raises
    `EpochDamaged` if the epoch is damaged; for "latest" the error names the epoch to go back to.
    """
    if target == LATEST:
        return latest(log_state, read, verify, whole or verify)
    epoch, described = resolve(log_state, target)
    return checked(log_state, epoch, described, read, verify, whole)


def resolve(log_state: LogState, target: RestoreTarget) -> tuple[int, str]:
    """Return the epoch number of an explicit target, and its name for messages.

    Raises `EpochNotFound`, `ConfigInvalid`.
    """
    # A bool is an int in Python: True must not mean epoch 1.
    if isinstance(target, bool) or not isinstance(target, str | int):
        raise ConfigInvalid(
            f"{target!r} is no restore target", hint='give "latest", an epoch number or a savepoint\'s name'
        )
    if isinstance(target, str) and target not in log_state.savepoints and target.isascii() and target.isdigit():
        target = int(target)  # text from a command line; no savepoint has such a name
    if isinstance(target, str):
        return _savepoint(log_state, target), f"savepoint {target}"
    # 0 is the beginning, which no row of the log records.
    if target != 0 and target not in log_state.by_id:
        kept = ", ".join(str(epoch) for epoch in sorted(log_state.by_id)) or "none"
        raise EpochNotFound(f"epoch {target} is not in the log", kept=kept, hint="choose a kept epoch or a savepoint")
    return target, f"epoch {target}"


def _savepoint(log_state: LogState, name: str) -> int:
    if valid_name("savepoint", name) not in log_state.savepoints:
        known = ", ".join(sorted(log_state.savepoints)) or "none"
        raise EpochNotFound(
            f"there is no savepoint '{name}'", savepoints=known, hint='choose one of these, or "latest"'
        )
    return log_state.savepoints[name]


def latest(log_state: LogState, read: Read, verify: Verify, whole: Verify) -> Choice:
    """Return the newest epoch. Raises `EpochDamaged` that names the epoch to go back to."""
    # Without an epoch a start would read its sources from their configured positions, and the query's offsets would be
    # lost.
    if log_state.latest == 0:
        _refuse_unadopted(log_state)
    try:
        return checked(log_state, log_state.latest, LATEST, read, verify, whole)
    except EpochDamaged as error:
        raise _with_way_back(log_state, error, read, whole) from error


def _with_way_back(log_state: LogState, damage: EpochDamaged, read: Read, whole: Verify) -> EpochDamaged:
    """Return the error of a damaged newest epoch, with the command that goes back before it."""
    epoch = log_state.latest
    back = newest_whole(log_state, epoch, read, whole)
    # A sink may have published these without an answer. The advice must not promise that their rows come once.
    unacked = {sink: max(log_state.unacked(sink), default=0) for sink in log_state.sinks}
    again = would_be_repeated(log_state.sinks, log_state.acked, unacked, back)
    context = {**damage.context, "restore": back, "would be repeated": "; ".join(again) or None}
    if not back:
        return EpochDamaged(
            f"{damage.what}; no earlier epoch of its branch is whole",
            hint="bring the file back; or restore a savepoint or an epoch of another branch by its number: `spark-ckpt verify` "
            "lists the whole ones; or start over: job.start(restore=0)",
            **context,
        )
    here = f"job.start(restore={back}"
    other = "".join(
        f", with source '{name}' as it was; or with the present one: {here}, accept_new_source={name!r})"
        for name in _changed_sources(epoch, back, read)[:1]
    )
    return EpochDamaged(
        f"{damage.what}; a start skips no damaged epoch",
        hint=f"bring the file back; or go back with {here}): it reads the input after epoch {back} again, and sinks that have rows "
        f"of it get them again{other}",
        **context,
    )


def would_be_repeated(
    sinks: Iterable[str], published: Mapping[str, int], unanswered: Mapping[str, int], back: int
) -> list[str]:
    """Return sentences about the sinks that have, or may have, epochs after `back`.

    `published`: per sink, the newest epoch that it is known to have. `unanswered`: the newest that it may have as well.
    """
    found = []
    for sink in sinks:
        has, may_have = published.get(sink, 0), unanswered.get(sink, 0)
        if has > back:
            found.append(f"{sink} has epoch {has}")
        if may_have > max(has, back):
            found.append(f"{sink} may have epoch {may_have}")
    return found


def _changed_sources(epoch: int, back: int, read: Read) -> list[str]:
    """Return the sources that are other endpoints at `epoch` than at `back`; none if `epoch` cannot be read."""
    try:
        now, before = read(epoch).source_identities, read(back).source_identities
    except UNREADABLE:
        return []
    return [name for name in sorted(before) if name in now and differing(before[name], now[name])]


def _refuse_unadopted(log_state: LogState) -> None:
    # With an epoch the adoption is over, also if its command died before it freed the lease.
    if not log_state.last and log_state.holder is not None and log_state.holder.name == ADOPTING:
        raise EpochNotFound(
            "a plain query was being adopted into this store, and that was not finished: the job would begin without it",
            adopting=log_state.holder,
            hint="run `spark-ckpt adopt` again with the same store; job.start(restore=0) begins from nothing all the same",
        )


def checked(
    log_state: LogState, epoch: int, described: str, read: Read, verify: Verify, whole: Verify | None = None
) -> Choice:
    """Return epoch `epoch`, verified together with the epochs to publish. Parameters as `choose`.

    Raises `EpochDamaged`. Raises `PublishConflict` if a sink has not acknowledged rows of the branch and can no longer
    get them.
    """
    base = _base(log_state, epoch, read)
    # One sink is enough for the refusal; the advised epoch has no such gap at any.
    for sink, numbers in out_of_turn(log_state, epoch, read).items():
        back = newest_whole(log_state, numbers[0], read, whole or verify)
        raise _unpublishable(log_state, epoch, sink, numbers, back)
    return _verified_choice(log_state, base, described, read, verify)


def _base(log_state: LogState, epoch: int, read: Read) -> Manifest:
    manifest = read(epoch) if epoch else _initial(log_state)
    if log_state.kind == "job" and manifest.spark_batch is not None:
        # It has no cursors: the job would read its sources from their start.
        raise EpochDamaged(
            f"epoch {epoch} is a batch of the plain query that became this job: no job can continue from it",
            epoch=epoch,
            hint="restore an epoch of the job itself, the first of which `spark-ckpt adopt` made",
        )
    return manifest


def _verified_choice(log_state: LogState, base: Manifest, described: str, read: Read, verify: Verify) -> Choice:
    # Outputs are verified epoch by epoch below, and only those that some sink still needs.
    verify(base.model_copy(update={"outputs": {}}))
    unpublished: dict[str, list[Manifest]] = {}
    manifests: dict[int, Manifest] = {}
    for sink, numbers in _unpublished(log_state, base.epoch).items():
        for number in numbers:
            # Lower ones have no rows, or `checked` has refused them: the sink's marker is above them already.
            if number > log_state.acked.get(sink, 0):
                unpublished.setdefault(sink, []).append(_verified(manifests, number, read, verify))
    return Choice(base, described, unpublished)


def _unpublished(log_state: LogState, epoch: int) -> dict[str, list[int]]:
    """Return per sink the epochs of the branch of `epoch` that it has not acknowledged, oldest first."""
    lineage = {brief.epoch for brief in log_state.lineage(epoch)} if epoch else set()
    return {sink: [each for each in log_state.unacked(sink) if each in lineage] for sink in log_state.sinks}


def out_of_turn(log_state: LogState, epoch: int, read: Read) -> dict[str, list[int]]:
    """Return per sink the epochs of the branch of `epoch` that have rows, are unpublished, and can no longer be
    published.

    The sink's marker is at or above them: it has a newer epoch of another branch, or it may have been rolled back. So
    it would take these epochs for published.
    """
    found: dict[str, list[int]] = {}
    for sink, numbers in _unpublished(log_state, epoch).items():
        older = [each for each in numbers if each <= log_state.acked.get(sink, 0)]
        # Without rows for the sink nothing of the epoch would be lost.
        if rows := [each for each in older if read(each).outputs[sink].files]:
            found[sink] = rows
    return found


def _unpublishable(log_state: LogState, epoch: int, sink: str, numbers: Sequence[int], back: int) -> PublishConflict:
    here = "" if epoch == log_state.latest else "continue where the job stopped: job.start(); or "
    # Only an accepted loss makes an acknowledged epoch unpublished again, see `UnpublishedEpochs`.
    has = log_state.acked[sink]
    why = (
        "may have been rolled back before a loss was accepted"
        if has in numbers
        else f"has epoch {has} of another branch"
    )
    return PublishConflict(
        f"cannot restore epoch {epoch}: sink '{sink}' is not known to have {epochs(numbers)}, and it {why}, so they can no "
        "longer be published and their rows would be lost",
        hint=f"{here}restore the newest epoch without such a gap: job.start(restore={back}); the input after epoch {back} is read "
        "and published again, also the rows that the sinks have of it",
        sink=sink,
    )


def newest_whole(
    log_state: LogState, epoch: int, read: Read, verify: Verify, damaged: AbstractSet[str] = frozenset()
) -> int:
    """Return the latest restorable epoch before `epoch` on its branch; 0 if there is none and the job must start over.

    `damaged`: paths of files. An epoch that still has to publish one of them, or that defers it, does not count.
    """
    behind = log_state.parent(log_state.by_id[epoch]) if epoch in log_state.by_id else 0
    return whole_at_most(log_state, behind, read, verify, damaged)


def whole_at_most(
    log_state: LogState, newest: int, read: Read, verify: Verify, damaged: AbstractSet[str] = frozenset()
) -> int:
    """Return the latest restorable epoch as `newest_whole` does, but consider `newest` itself, too."""
    for choice in whole_epochs(log_state, newest, read, verify):
        staged = [choice.base.held, *(each.outputs for due in choice.unpublished.values() for each in due)]
        if not any(file.path in damaged for outputs in staged for each in outputs.values() for file in each.files):
            return choice.base.epoch
    return 0


def whole_epochs(log_state: LogState, newest: int, read: Read, verify: Verify) -> Iterator[Choice]:
    """Yield the restorable epochs of the branch that ends with `newest`, newest first.

    Each is verified when it is requested.
    """
    for older in [brief.epoch for brief in log_state.ancestry(newest)]:
        with suppress(*UNREADABLE):  # an older one may be whole
            # Advice must lead to an epoch that a start accepts, so it runs the same checks.
            if not out_of_turn(log_state, older, read):
                yield _verified_choice(log_state, _base(log_state, older, read), "", read, verify)


def _verified(manifests: dict[int, Manifest], epoch: int, read: Read, verify: Verify) -> Manifest:
    # Several sinks may lack the same epoch: its files are verified once.
    if epoch not in manifests:
        manifest = read(epoch)
        # Only the outputs of an earlier epoch are needed. Its state may be damaged without harm.
        verify(manifest.model_copy(update={"operators": {}, "edges": {}, "held": {}, "spark_state": None}))
        manifests[epoch] = manifest
    return manifests[epoch]


def _initial(log_state: LogState) -> Manifest:
    return Manifest(job=log_state.job, epoch=0, incarnation=0, attempt="initial", created_ms=0, reason="initial")


def dropped(log_state: LogState, base: int) -> dict[str, list[int]]:
    """Return per sink the ids that it has not acknowledged and that are not in the branch of `base`, lost ids included."""
    kept = {brief.epoch for brief in log_state.lineage(base)} if base else set()
    found = {}
    # Lost ids have no brief: a sink without a kept epoch is known by its acknowledgements only.
    for sink in {*log_state.sinks, *log_state.acked}:
        known, maybe = log_state.acked.get(sink, 0), {*log_state.lost, *log_state.unacked(sink)} - kept
        # The sink's marker is at least at `known`, so it cannot name a lower id.
        found[sink] = sorted(epoch for epoch in maybe if epoch > known)
    return {sink: epochs for sink, epochs in found.items() if epochs}


def diverged(log_state: LogState, unpublished: Mapping[str, Sequence[Manifest]]) -> dict[int, tuple[int, ...]]:
    """Return the diverged ids for `RecoveryPoint`, per unpublished epoch."""
    due = {manifest.epoch for manifests in unpublished.values() for manifest in manifests}
    found = {epoch: tuple(log_state.diverged(epoch)) for epoch in sorted(due)}
    return {epoch: ids for epoch, ids in found.items() if ids}


def recovery_point(log_state: LogState, target: RestoreTarget, read: Read, verify: Verify) -> RecoveryPoint:
    """Return the point that a new incarnation continues from. Raises as `choose`."""
    choice = choose(log_state, target, read, verify)
    return RecoveryPoint(
        # No other driver gets this number: the row is appended right after the state it was computed on, or computed
        # again.
        incarnation=log_state.incarnation + 1,
        manifest=choice.base,
        last=log_state.last,
        restored_from=choice.restored_from,
        unpublished=choice.unpublished,
        dropped=dropped(log_state, choice.base.epoch),
        diverged=diverged(log_state, choice.unpublished),
    )


def no_check(manifest: Manifest) -> None:
    """Accept every manifest: for logs that are used without the files of their store."""
