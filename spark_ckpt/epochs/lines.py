"""Consistent cuts over the stores of several programs: one epoch of each, so that no program has read undone rows.

Pure. The search is the recovery line of `checkpoint_protocols`, which rewinds of plain queries use as well. A program is
a process, an epoch of its current branch a checkpoint, an edge a channel, and an epoch of the sender one message. A reader
with rows of an epoch that its sender goes back behind has an orphan. Rows after a reader's position are replayed from the
sender's store; they are lost only if retention has deleted them. Loops of programs need nothing more.

Programs with an index also have named lines: `line-N` is the first epoch of each program that serves index N.
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from checkpoint_protocols.checkpoints.recovery_line import (
    Candidate,
    LineStep,
    RecoveryLine,
    StepCause,
    recovery_line,
)
from checkpoint_protocols.ids import ChannelId, ProcessId
from spark_ckpt.errors import ConfigInvalid, EpochNotFound

# Above every epoch: a reader of undone rows is an orphan of each epoch of its sender, so the search takes it back.
UNDONE = 2**62
"""Number of the sender's epoch that stands for rows which the sender has undone already, or cannot complete."""

LINE = "line-"


@dataclass(frozen=True, slots=True)
class CutEpoch:
    """An epoch of a program's current branch.

    - `index`: the newest index that it serves; 0 for a program without `protocol="index"`.
    - `after`: the newest index that the epoch before it serves. Rows of this epoch are stamped with it.
    - `read`: per edge source the newest epoch of the sender that it has rows of, or `UNDONE`.
    """

    epoch: int
    created_ms: int = 0
    index: int = 0
    after: int = 0
    read: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Input:
    """An edge source of a program: the sending program, its edge, and the newest of its epochs that may be deleted.

    `damaged`: later epochs with rows that cannot be read.
    """

    sender: str
    edge: str
    deleted: int = 0
    damaged: frozenset[int] = frozenset()

    @property
    def lost(self) -> Collection[int]:
        """Epochs whose rows a reader can no longer get."""
        # The last deleted one stands for all: every kept epoch of the sender is after it, and there may be millions.
        return {self.deleted, *self.damaged} - {0} if self.damaged else range(1, self.deleted + 1)


@dataclass(frozen=True, slots=True)
class Program:
    """A program in the search. `epochs`: those of its current branch, oldest first. `inputs`: by source."""

    name: str
    epochs: tuple[CutEpoch, ...]
    inputs: Mapping[str, Input] = field(default_factory=dict)

    def at(self, epoch: int) -> CutEpoch:
        """Return an epoch of the branch. Raises `EpochNotFound`."""
        for each in self.epochs:
            if each.epoch == epoch:
                return each
        kept = ", ".join(str(each.epoch) for each in self.epochs) or "none"
        raise EpochNotFound(
            f"epoch {epoch} is not on the current branch of {self.name}, or is damaged",
            kept=kept,
            hint="choose one of these",
        )

    def serving(self, number: int) -> CutEpoch | None:
        """Return the first epoch that serves index `number`, None if it is deleted or does not exist yet."""
        # An epoch serves the indices above its base's, up to its own: at most one epoch of a branch serves a number.
        return next((each for each in self.epochs if each.after < number <= each.index), None)


Programs = Mapping[str, Program]
Limits = Mapping[str, int]
"""Newest epoch allowed per program; a program without a limit is missing."""


@dataclass(frozen=True, slots=True)
class Line:
    """A consistent cut: `epochs` by program. `number`: the index that names it, 0 without a name.

    `reasons`: why a program is at this epoch and not at a later one.
    """

    epochs: Mapping[str, int]
    number: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Return `line-N`, or an empty text."""
        return f"{LINE}{self.number}" if self.number else ""


def greatest(programs: Programs, limits: Limits | None = None) -> Line:
    """Return the greatest line within the limits. Raises `EpochNotFound` if there is none, with the reasons."""
    found = _search(programs, limits or {})
    reasons = tuple(_sentence(step) for step in found.steps)
    if found.missing is not None:
        raise EpochNotFound(
            f"there is no consistent line: {found.missing} keeps no epoch that is old enough",
            reasons="; ".join(reasons) or None,
            hint="choose a later target, or start the programs with new stores",
        )
    return Line({name: _epoch(found.chosen[ProcessId(name)]) for name in programs}, 0, reasons)


def lines(programs: Programs, most: int) -> list[Line]:
    """Return up to `most` consistent lines, newest first; every line is older than the one before in one program at
    least, and newer in none. Named lines are among them.
    """
    # Named lines last: of two lines with the same epochs, the one with a name stays.
    found = {tuple(each.epochs.items()): each for each in (*_chain(programs, most), *_named_lines(programs))}
    moment = {name: {each.epoch: each.created_ms for each in program.epochs} for name, program in programs.items()}

    def age(line: Line) -> tuple[int, ...]:
        # The newest first, by the sum of its times; the numbers decide between equal ones.
        return (-sum(moment[name][epoch] for name, epoch in line.epochs.items()), *(-e for e in line.epochs.values()))

    return sorted(found.values(), key=age)[:most]


def named(programs: Programs, number: int) -> Line:
    """Return `line-N`. Raises `EpochNotFound` if a program does not have it, or cannot go back to it."""
    epochs = {name: program.serving(number) for name, program in programs.items()}
    wrong = [_without(programs[name], number) for name, found in epochs.items() if found is None]
    if wrong:
        complete = next((line for line in _named_lines(programs)), None)
        raise EpochNotFound(
            f"{LINE}{number} is not complete: {'; '.join(wrong)}",
            hint=f"the newest complete one is {complete.name}" if complete else "spark-ckpt line lists the lines",
        )
    limits = {name: found.epoch for name, found in epochs.items() if found is not None}
    # The number alone proves nothing: a program may have restored an older epoch since, or retention may have deleted
    # rows.
    line = greatest(programs, limits)
    if line.epochs != limits:
        raise EpochNotFound(
            f"{LINE}{number} cannot be restored any more",
            reasons="; ".join(line.reasons),
            hint="spark-ckpt line lists the lines that can",
        )
    return Line(limits, number)


def to_target(programs: Programs, target: str) -> Line:
    """Return the line that a target names: `latest`, `line-N`, `PROGRAM@EPOCH`, or a time in ISO format (UTC by default).

    An epoch of each program, `PROGRAM@EPOCH,PROGRAM@EPOCH`, names a line of these, on any branch.

    Raises `EpochNotFound`, `ConfigInvalid`.
    """
    if ends := branch_ends(target, len(programs)):
        return exactly(programs, ends)
    if target == "latest":
        return greatest(programs)
    number = target.removeprefix(LINE)
    if number != target and number.isdecimal():
        return named(programs, int(number))
    name, at, epoch = target.rpartition("@")
    if at and epoch.isdecimal():
        return through(programs, name, int(epoch))
    return greatest(programs, epochs_at(programs, moment_ms(target)))


def branch_ends(target: str, programs: int) -> dict[str, int]:
    """Return the epochs that a target names if it names one of each program. Their branches end with them.

    `programs`: how many there are. `PROGRAM@EPOCH` is the epoch of each only if there is one program.

    Raises `ConfigInvalid`.
    """
    if "," not in target and (programs > 1 or "@" not in target):
        return {}
    parts = [part.strip().rpartition("@") for part in target.split(",")]
    ends = {name: int(epoch) for name, at, epoch in parts if at and epoch.isdecimal()}
    if len(ends) < len(parts):
        raise ConfigInvalid(f"'{target}' does not name an epoch of each program", hint="write orders@17,totals@12")
    return ends


def named_by(epochs: Mapping[str, int]) -> str:
    """Return the target that names these epochs, of several programs or of one."""
    return ",".join(f"{name}@{epoch}" for name, epoch in epochs.items())


def exactly(programs: Programs, epochs: Mapping[str, int]) -> Line:
    """Return the line of these epochs. Raises `EpochNotFound` with the reasons if they are none, `ConfigInvalid`."""
    if wrong := sorted(set(epochs) ^ set(programs)):
        without = "no store" if wrong[0] in epochs else "no epoch"
        raise ConfigInvalid(
            f"{without} of program '{wrong[0]}' is given",
            hint=f"give an epoch of each program, and their stores: {', '.join(sorted(programs))}",
        )
    # The greatest line within these epochs consists of them, if they are a line at all.
    line = greatest(programs, epochs)
    if line.epochs != dict(epochs):
        raise EpochNotFound(
            f"{named_by(epochs)} is no consistent line",
            reasons="; ".join(line.reasons),
            hint=f"the greatest line before it is {named_by(line.epochs)}",
        )
    return line


def epochs_at(programs: Programs, at_ms: int) -> dict[str, int]:
    """Return the newest epoch of each program at a moment, in ms since 1970 UTC, by the program's own clock; 0 for none."""
    return {
        name: max((each.epoch for each in program.epochs if each.created_ms <= at_ms), default=0)
        for name, program in programs.items()
    }


def through(programs: Programs, name: str, epoch: int) -> Line:
    """Return the greatest line with this epoch of a program. Raises `EpochNotFound` with the reasons if it is in none."""
    if name not in programs:
        raise ConfigInvalid(f"no store of a program '{name}' is given", hint=f"programs: {', '.join(sorted(programs))}")
    programs[name].at(epoch)
    line = greatest(programs, {name: epoch})
    if line.epochs[name] != epoch:
        raise EpochNotFound(
            f"epoch {epoch} of {name} is in no consistent line",
            reasons="; ".join(line.reasons),
            hint=f"the greatest line before it has epoch {line.epochs[name]}: {name}@{line.epochs[name]}",
        )
    return line


def _search(programs: Programs, limits: Limits) -> RecoveryLine:
    channels = {
        _channel(name, source): (ProcessId(each.sender), ProcessId(name))
        for name, program in programs.items()
        for source, each in program.inputs.items()
        # A program that reads its own edge has read only epochs before its own, so no line of it is inconsistent.
        if each.sender in programs and each.sender != name
    }
    candidates = {
        ProcessId(name): [
            _candidate(name, each, channels)
            for each in program.epochs
            if each.epoch <= limits.get(name, program.epochs[-1].epoch)
        ]
        for name, program in programs.items()
    }
    # Rows that are gone and unread are lost, unless their sender goes back and sends them again.
    lost = {
        _channel(name, source): each.lost
        for name, program in programs.items()
        for source, each in program.inputs.items()
    }
    return recovery_line(candidates, channels, (), {channel: lost[channel] for channel in channels})


def _candidate(name: str, taken: CutEpoch, channels: Mapping[ChannelId, tuple[ProcessId, ProcessId]]) -> Candidate:
    # One message per epoch: its rows become readable together, by the commit.
    sent = {channel: taken.epoch for channel, (sender, _) in channels.items() if sender == name}
    received = {_channel(name, source): epoch for source, epoch in taken.read.items()}
    return Candidate(taken.epoch, sent, {channel: received[channel] for channel in received if channel in channels})


def _channel(reader: str, source: str) -> ChannelId:
    return ChannelId(f"{reader}/{source}")


def _chain(programs: Programs, most: int) -> Iterator[Line]:
    """Yield consistent lines from the greatest on; each takes the youngest epoch out of the one before."""
    limits: dict[str, int] = {}
    for _ in range(most):
        try:
            line = greatest(programs, limits)
        except EpochNotFound:
            return
        yield line
        limits = dict(line.epochs)
        older = {
            name: _before(programs[name], epoch)
            for name, epoch in line.epochs.items()
            if _before(programs[name], epoch) is not None
        }
        if not older:
            return
        # The youngest epoch of any program, so that the lines step back in time and not program by program.
        youngest = max(older, key=lambda name: (programs[name].at(limits[name]).created_ms, name))
        limits[youngest] = older[youngest] or 0


def _named_lines(programs: Programs) -> Iterator[Line]:
    """Yield every complete named line, newest first; of lines with the same epochs the one with the highest number."""
    numbers = {each.index for program in programs.values() for each in program.epochs}
    numbers |= {each.after for program in programs.values() for each in program.epochs}
    known: set[tuple[tuple[str, int], ...]] = set()
    for number in sorted(numbers - {0}, reverse=True):
        if any(program.serving(number) is None for program in programs.values()):
            continue
        try:
            # No endless recursion: `named` lists the lines only if a program lacks this one.
            line = named(programs, number)
        except EpochNotFound:
            continue
        epochs = tuple(line.epochs.items())
        if epochs not in known:
            known.add(epochs)
            yield line


def _without(program: Program, number: int) -> str:
    newest = program.epochs[-1].index if program.epochs else 0
    if not newest:
        return f'{program.name} has no index: it runs without protocol="index"'
    if newest < number:
        return f"{program.name} has reached {LINE}{newest} only"
    return f"{program.name} has deleted its epoch of it"


def _before(program: Program, epoch: int) -> int | None:
    return max((each.epoch for each in program.epochs if each.epoch < epoch), default=None)


def moment_ms(written: str) -> int:
    """Return a time in ISO format, UTC by default, in ms since 1970. Raises `ConfigInvalid`."""
    try:
        moment = datetime.datetime.fromisoformat(written)
    except ValueError:
        raise ConfigInvalid(
            f"'{written}' names no line",
            hint="give latest, line-N, PROGRAM@EPOCH, or a time such as 2026-11-28T04:30:00Z",
        ) from None
    aware = moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)
    return round(aware.timestamp() * 1000)


def _epoch(candidate: Candidate) -> int:
    assert candidate.index is not None  # noqa: S101 - every candidate of this search is an epoch
    return candidate.index


def _sentence(step: LineStep) -> str:
    """Return the reason of one step of the search."""
    assert step.left is not None and step.other_at is not None  # noqa: S101 - no process has failed
    left, other, other_epoch = step.left.index, step.other, step.other_at.index
    there = f"to epoch {step.taken.index}" if step.taken is not None else "but keeps no epoch that is old enough"
    back = f"{step.process} goes back from epoch {left} {there}"
    if step.cause is StepCause.LOST:
        gone = f"its rows of epoch {step.first} are deleted or damaged"
        return f"{back}: {gone}, and {other} at epoch {other_epoch} has not read them"
    assert step.channel is not None  # noqa: S101 - an orphan came over a channel
    if step.left.received.get(step.channel, 0) == UNDONE:
        return f"{back}: it has read rows that {other} has undone, or a part of a damaged epoch"
    return f"{back}: it has read epoch {step.first} of {other}, which is not in epoch {other_epoch} of {other}"
