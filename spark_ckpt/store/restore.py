"""Where a new incarnation starts: the target a user names, the epoch that is chosen, and what is still to be published.

"latest" passes over a damaged epoch only if no sink can have its output: going back behind output that is out repeats
it, and that is a decision for a person, made by naming the epoch.

Restoring to an epoch behind the newest one starts another branch.  Decided epochs up to the restored one are published
if their sinks do not have them yet; decided epochs *behind* it that were not published are dropped: their rows never
reach the sink (`RecoveryPoint.dropped` names them, so that a sink's marker can pass over them).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from dataclasses import dataclass, field

from spark_ckpt.errors import ConfigInvalid, EpochDamaged, EpochNotFound, PublishConflict
from spark_ckpt.store.log_state import LogState
from spark_ckpt.store.names import valid_name
from spark_ckpt.store.parts import described, differing
from spark_ckpt.store.records import Manifest
from spark_ckpt.wording import epochs

RestoreTarget = str | int
"""`"latest"`, an epoch's number (also as text), or a savepoint's name."""

LATEST = "latest"

ADOPTING = "adopting a query"
"""Who holds the lease while a store's first epoch is made of a plain query's checkpoint; no job can have such a name. What such
a store begins with is that epoch: before it is decided, the sources' starts are the wrong place."""


@dataclass(frozen=True, slots=True)
class RecoveryPoint:
    """What a new incarnation continues from.

    `manifest`: the epoch it extends, empty with number 0 at the very start. `last`: highest id ever decided; the next
    epoch is above it. `unpublished`: per sink the decided epochs of this lineage it is not known to have, oldest
    first. `dropped`: per sink the ids of decided epochs outside of this lineage that it is not known to have and that
    somebody chose to leave behind, oldest first: a sink that has one of them may go on. `skipped`: newer epochs that
    "latest" passed over, with the reason; a sink that has one of those must not go on. `behind_passed_over`: ids, also lost
    ones, that may stand on one of those: a sink that has one of them has that epoch, too. `beside`: per unpublished epoch the
    higher ids, decided or lost, that do not stand on it, as far as is known: whoever has one of them need not have it.
    """

    incarnation: int
    manifest: Manifest
    last: int
    restored_from: str
    unpublished: Mapping[str, list[Manifest]] = field(default_factory=dict)
    dropped: Mapping[str, list[int]] = field(default_factory=dict)
    skipped: tuple[tuple[int, str], ...] = ()
    passed_over: tuple[int, ...] = ()
    behind_passed_over: tuple[int, ...] = ()
    beside: Mapping[int, tuple[int, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Choice:
    """The epoch chosen as base, and what has to be published for it."""

    base: Manifest
    restored_from: str
    unpublished: Mapping[str, list[Manifest]]
    skipped: tuple[tuple[int, str], ...] = ()


def owed_rows(base: Manifest, unpublished: Mapping[str, Sequence[Manifest]]) -> dict[str, list[Manifest]]:
    """Per sink the decided epochs with rows that it is not known to have: unpublished ones, and `base` if it holds some back."""
    holds = {sink: [base] for sink, held in base.held.items() if held.files}
    return {sink: [*unpublished.get(sink, ()), *holds.get(sink, ())] for sink in {**unpublished, **holds}}


Read = Callable[[int], Manifest]
Verify = Callable[[Manifest], None]


def choose(
    log_state: LogState, target: RestoreTarget, read: Read, verify: Verify, whole: Verify | None = None
) -> Choice:
    """The epoch that `target` means, verified together with what is to be published. `whole`: how epochs are verified that an error
    names as a way out, where that is not `verify`: who does not look at files now does before naming one.

    Raises `EpochNotFound`, and `EpochDamaged` when the named epoch, or for "latest" every epoch of the lineage, is
    damaged.
    """
    if target == LATEST:
        return _newest_good(log_state, read, verify, whole or verify)
    epoch, described = resolve(log_state, target)
    return checked(log_state, epoch, described, read, verify, whole)


def resolve(log_state: LogState, target: RestoreTarget) -> tuple[int, str]:
    """The epoch number of an explicit target, and how to call it. Raises `EpochNotFound`."""
    if isinstance(target, bool) or not isinstance(target, str | int):
        raise ConfigInvalid(
            f"{target!r} is no restore target", hint='give "latest", an epoch number or a savepoint\'s name'
        )
    if isinstance(target, str) and target not in log_state.savepoints and target.isascii() and target.isdigit():
        target = int(target)  # as it comes from a command line; no savepoint has such a name
    if isinstance(target, str):
        return _savepoint(log_state, target), f"savepoint {target}"
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


def _newest_good(log_state: LogState, read: Read, verify: Verify, whole: Verify) -> Choice:
    skipped: list[tuple[int, str]] = []
    for epoch in _candidates(log_state):
        try:
            choice = checked(log_state, epoch, LATEST, read, verify, whole)
        except EpochDamaged as error:
            _refuse_if_published(log_state, epoch, error, read, whole)
            skipped.append((epoch, error.what))
            continue
        if skipped:
            _refuse_another_source(log_state, choice.base, skipped[-1][1], [each for each, _ in skipped], read)
        return Choice(choice.base, choice.restored_from, choice.unpublished, tuple(skipped))
    raise EpochDamaged(
        "no epoch of this job's lineage is whole",
        hint="bring the file back; or restore a savepoint or an epoch of another branch by its number: `spark-ckpt verify` lists "
        "what is whole; or begin anew: job.start(restore=0)",
        damaged="; ".join(f"{epoch}: {reason}" for epoch, reason in skipped),
    )


def _refuse_another_source(log_state: LogState, base: Manifest, why: str, skipped: Sequence[int], read: Read) -> None:
    """Passing over an epoch must not lead to one that reads something else under the name of a source."""
    newest = _first_readable(skipped, read)
    now, before = (newest.source_identities if newest else {}), base.source_identities
    changed = [name for name in sorted(before) if name in now and differing(before[name], now[name])]
    if not changed:
        return
    name, here = changed[0], f"job.start(restore={base.epoch}"
    raise EpochDamaged(
        f"{why}; it cannot be passed over: source '{name}' of epoch {base.epoch}, the next whole one, is another one",
        then=described(before[name]),
        now=described(now[name]),
        hint=f"bring the file back; or go back with the source as it was: {here}); or with the one of now, from its configured "
        f"start: {here}, accept_new_source={name!r})",
    )


def _first_readable(epochs: Sequence[int], read: Read) -> Manifest | None:
    for epoch in epochs:
        with suppress(EpochDamaged):
            return read(epoch)
    return None


def _refuse_if_published(log_state: LogState, epoch: int, damage: EpochDamaged, read: Read, whole: Verify) -> None:
    sinks = [sink for sink in log_state.by_id[epoch].sinks if epoch not in log_state.unacked(sink)]
    if sinks:
        back = newest_whole(log_state, epoch, read, whole)
        raise EpochDamaged(
            f"{damage.what}; its output is published already, so it cannot be passed over without repeating output",
            sinks=", ".join(sinks),
            hint=f"bring the file back; or go back with job.start(restore={back}) and expect what came after epoch {back} again",
            **damage.context,
        ) from damage


def _candidates(log_state: LogState) -> Iterator[int]:
    yield from (brief.epoch for brief in log_state.lineage())
    # Starting over in silence would be a wrong answer: only a job without any epoch starts at 0 by itself.
    if log_state.latest == 0:
        _refuse_unadopted(log_state)
        yield 0


def _refuse_unadopted(log_state: LogState) -> None:
    if not log_state.last and log_state.holder is not None and log_state.holder.name == ADOPTING:
        raise EpochNotFound(
            "a plain query was being adopted into this store, and that was not finished: the job would begin anew",
            adopting=log_state.holder,
            hint="run `spark-ckpt adopt` again with the same store; job.start(restore=0) begins anew all the same",
        )


def checked(
    log_state: LogState, epoch: int, described: str, read: Read, verify: Verify, whole: Verify | None = None
) -> Choice:
    """The epoch of this number, verified with what is to be published. Raises `EpochDamaged`; `PublishConflict` if a sink is
    not known to have rows of its lineage and cannot be given them any more. `whole`: see `choose`.
    """
    base = _base(log_state, epoch, read)
    for sink, numbers in out_of_turn(log_state, epoch, read).items():
        back = newest_whole(log_state, numbers[0], read, whole or verify)
        raise _cannot_be_given(log_state, epoch, sink, numbers, back)
    return _verified_choice(log_state, base, described, read, verify)


def _base(log_state: LogState, epoch: int, read: Read) -> Manifest:
    return read(epoch) if epoch else _initial(log_state)


def _verified_choice(log_state: LogState, base: Manifest, described: str, read: Read, verify: Verify) -> Choice:
    verify(base.model_copy(update={"outputs": {}}))
    unpublished: dict[str, list[Manifest]] = {}
    manifests: dict[int, Manifest] = {}
    for sink, numbers in _owed(log_state, base.epoch).items():
        for number in numbers:
            if number > log_state.acked.get(sink, 0):
                unpublished.setdefault(sink, []).append(_verified(manifests, number, read, verify))
    return Choice(base, described, unpublished)


def _owed(log_state: LogState, epoch: int) -> dict[str, list[int]]:
    """Per sink the epochs of the lineage of `epoch` that it is not known to have, oldest first."""
    lineage = {brief.epoch for brief in log_state.lineage(epoch)} if epoch else set()
    return {sink: [each for each in log_state.unacked(sink) if each in lineage] for sink in log_state.sinks}


def out_of_turn(log_state: LogState, epoch: int, read: Read) -> dict[str, list[int]]:
    """Per sink the epochs with rows in the lineage of `epoch` that it is not known to have, although it has a newer one, of
    another branch, or may have been taken back: its marker is not below them, so that it would take them for published.
    """
    found: dict[str, list[int]] = {}
    for sink, numbers in _owed(log_state, epoch).items():
        older = [each for each in numbers if each <= log_state.acked.get(sink, 0)]
        if rows := [each for each in older if read(each).outputs[sink].files]:
            found[sink] = rows
    return found


def _cannot_be_given(log_state: LogState, epoch: int, sink: str, numbers: Sequence[int], back: int) -> PublishConflict:
    here = "" if epoch == log_state.latest else "go on where the job stands: job.start(); or "
    has = log_state.acked[sink]
    why = (
        "may have been taken back before a loss was accepted"
        if has in numbers
        else f"has epoch {has} of another branch"
    )
    return PublishConflict(
        f"epoch {epoch} cannot be gone on from: sink {sink} is not known to have {epochs(numbers)}, and as it {why} it "
        "cannot be given them any more: their rows would be lost",
        hint=f"{here}go back to where nothing is missing: job.start(restore={back}); what came after epoch {back} is read from "
        "the sources again and published anew, also what the sinks have of it",
        sink=sink,
    )


def newest_whole(
    log_state: LogState, epoch: int, read: Read, verify: Verify, damaged: AbstractSet[str] = frozenset()
) -> int:
    """The newest epoch behind `epoch`, on its lineage, that can be restored and neither owes nor holds back a file of `damaged`.

    0 if there is none: the job can begin anew.
    """
    behind = log_state.by_id[epoch].base if epoch in log_state.by_id else 0
    return whole_at_most(log_state, behind, read, verify, damaged)


def whole_at_most(
    log_state: LogState, newest: int, read: Read, verify: Verify, damaged: AbstractSet[str] = frozenset()
) -> int:
    """As `newest_whole`; `newest` itself may be it."""
    for choice in whole_epochs(log_state, newest, read, verify):
        staged = [choice.base.held, *(each.outputs for due in choice.unpublished.values() for each in due)]
        if not any(file.path in damaged for outputs in staged for each in outputs.values() for file in each.files):
            return choice.base.epoch
    return 0


def whole_epochs(log_state: LogState, newest: int, read: Read, verify: Verify) -> Iterator[Choice]:
    """What can be gone back to of the lineage of `newest`, itself included, newest first. Each is verified when it is asked for."""
    for older in [brief.epoch for brief in log_state.lineage(newest)]:
        with suppress(EpochDamaged):
            if not out_of_turn(log_state, older, read):
                yield _verified_choice(log_state, _base(log_state, older, read), "", read, verify)


def _verified(manifests: dict[int, Manifest], epoch: int, read: Read, verify: Verify) -> Manifest:
    if epoch not in manifests:
        manifest = read(epoch)
        verify(manifest.model_copy(update={"operators": {}, "edges": {}, "held": {}}))
        manifests[epoch] = manifest
    return manifests[epoch]


def _initial(log_state: LogState) -> Manifest:
    return Manifest(job=log_state.job, epoch=0, incarnation=0, attempt="initial", created_ms=0, reason="initial")


def dropped(log_state: LogState, base: int, passed_over: AbstractSet[int] = frozenset()) -> dict[str, list[int]]:
    """Per sink, decided epochs it is not known to have, neither in the lineage of `base` nor passed over; lost ones too."""
    kept = {brief.epoch for brief in log_state.lineage(base)} | passed_over if base else passed_over
    found = {}
    for sink in {*log_state.sinks, *log_state.acked}:
        known, maybe = log_state.acked.get(sink, 0), {*log_state.lost, *log_state.unacked(sink)} - kept
        found[sink] = sorted(epoch for epoch in maybe if epoch > known)
    return {sink: epochs for sink, epochs in found.items() if epochs}


def beside(log_state: LogState, unpublished: Mapping[str, Sequence[Manifest]]) -> dict[int, tuple[int, ...]]:
    """For `RecoveryPoint.beside`."""
    due = {manifest.epoch for manifests in unpublished.values() for manifest in manifests}
    found = {epoch: tuple(log_state.beside(epoch)) for epoch in sorted(due)}
    return {epoch: ids for epoch, ids in found.items() if ids}


def recovery_point(log_state: LogState, target: RestoreTarget, read: Read, verify: Verify) -> RecoveryPoint:
    """What a new incarnation continues from. Raises as `choose`."""
    choice = choose(log_state, target, read, verify)
    passed_over = _passed_over(log_state, target, choice)
    behind = {each for epoch in passed_over for each in log_state.may_stand_on(epoch)} - passed_over
    return RecoveryPoint(
        incarnation=log_state.incarnation + 1,
        manifest=choice.base,
        last=log_state.last,
        restored_from=choice.restored_from,
        unpublished=choice.unpublished,
        dropped=dropped(log_state, choice.base.epoch, passed_over | behind),
        skipped=choice.skipped,
        passed_over=tuple(sorted(passed_over)),
        behind_passed_over=tuple(sorted(behind)),
        beside=beside(log_state, choice.unpublished),
    )


def _passed_over(log_state: LogState, target: RestoreTarget, choice: Choice) -> set[int]:
    """Epochs left out without anybody's word; naming an epoch is a word about everything behind it."""
    return {*log_state.passed_over, *(epoch for epoch, _ in choice.skipped)} if target == LATEST else set()


def no_check(manifest: Manifest) -> None:
    """For logs that are used without their store's files."""
