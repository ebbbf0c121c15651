"""A sender that restores and deletes epochs, a reader that restores too, and the facts about both, without the rules."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from spark_ckpt.epochs import readers, retention
from spark_ckpt.epochs.log_state import At, LogState, folded
from spark_ckpt.epochs.readers import Standing
from spark_ckpt.epochs.records import AnyRecord, EpochBrief, Holder, IncarnationRecord, Position, ReaderMoved, SinkAck
from spark_ckpt.epochs.retention import Retention

EDGE, READER, FOREVER = "totals", "r", 10**9


class Wrong(AssertionError):
    """The verdict: the reader has other rows than the sender's branch, or cannot read rows that were promised."""


@dataclass
class Rules:
    """The rules under test. A planted bug replaces one."""

    standing: Callable[..., Standing] = readers.standing
    unread: Callable[..., list[EpochBrief]] = readers.unread
    kept: Callable[..., set[int]] = retention.kept_epochs


@dataclass
class Sender:
    """The sender's log, and the facts: every epoch ever committed, with its base and the rows of each file."""

    rules: Rules
    state: LogState = field(default_factory=lambda: LogState(job="orders", store_id="s"))
    clock: int = 0
    files: dict[int, list[list[str]]] = field(default_factory=dict)
    bases: dict[int, int] = field(default_factory=dict)
    before: dict[int, int] = field(default_factory=dict)
    forgot: bool = False
    """True once rows were deleted that a reader has not read: it stayed away for too long."""

    def append(self, record: AnyRecord) -> None:
        self.clock += 1
        self.state = folded(self.state, [(At(self.clock, self.clock), record)])

    def begin(self, base: int) -> None:
        number = self.state.incarnation + 1
        self.append(
            IncarnationRecord(
                incarnation=number, holder=Holder(host="h"), base=base, restored_from="", lease_ms=1, lease_expires_ms=0
            )
        )

    def commit(self, files: int) -> None:
        epoch, base = self.state.last + 1, self.state.latest
        self.files[epoch] = [[f"{epoch}.{number}.{row}" for row in range(2)] for number in range(files)]
        self.bases[epoch] = base
        self.before[epoch] = self.rows_so_far(base)
        self.append(
            EpochBrief(
                epoch=epoch,
                incarnation=self.state.incarnation,
                attempt=f"attempt-{epoch}",
                base=base,
                previous=self.state.last,
                created_ms=self.clock,
                duration_ms=0,
                reason="interval",
                rows_in=0,
                rows_out=0,
                sinks=(EDGE,),
                acks=(SinkAck(sink=EDGE, epoch=base),) if base else (),
            )
        )

    def rows_so_far(self, epoch: int) -> int:
        """Newest epoch with rows up to `epoch` on its branch, as its manifest says."""
        return epoch if self.files.get(epoch) else self.before.get(epoch, 0)

    def retain(self, readers_ms: int) -> None:
        newest = {EDGE: self.rows_so_far(self.state.latest)}
        kept = self.rules.kept(self.state, Retention(2, readers_ms=readers_ms, slack=0), self.clock, newest)
        self.state = replace(
            self.state, by_id={epoch: brief for epoch, brief in self.state.by_id.items() if epoch in kept}
        )

    def forget(self) -> None:
        """Delete epochs that readers have not read, too."""
        self.forgot = True
        self.retain(0)

    def branch(self) -> list[int]:
        """The true lineage, oldest first, with epochs that the log has deleted."""
        found, epoch = [], self.state.latest
        while epoch:
            found.append(epoch)
            epoch = self.bases[epoch]
        return found[::-1]

    def rows(self, position: Position | None = None) -> list[str]:
        """All rows of the branch, or those up to a position on it."""
        rows = []
        for epoch in self.branch():
            if position is not None and epoch > position.epoch:
                break
            last = position.files if position is not None and epoch == position.epoch else None
            rows += [row for file in self.files[epoch][:last] for row in file]
        return rows


@dataclass
class Reader:
    """The reader's epochs: position and rows, oldest first."""

    sender: Sender
    rules: Rules
    epochs: list[tuple[Position, list[str]]] = field(default_factory=lambda: [(Position(), [])])

    def standing(self, position: Position) -> Standing:
        return self.rules.standing(self.sender.state, position, lambda epoch: self.sender.before[epoch])

    def poll(self, most: int) -> None:
        """Run one batch and one epoch, or the restore that the error advises."""
        position, rows = self.epochs[-1]
        match self.standing(position):
            case Standing.GONE if not self.sender.forgot and position.epoch in (0, *self.sender.branch()):
                raise Wrong(f"rows after {position} are gone, although the reader is registered")
            case Standing.UNDONE | Standing.GONE:
                self.restore()
            case Standing.CURRENT:
                self.epochs.append(self.batch(position, rows, most))
        self.epochs = self.epochs[-4:]
        self.judge()
        self.register()

    def batch(self, position: Position, rows: list[str], most: int) -> tuple[Position, list[str]]:
        for brief in self.rules.unread(self.sender.state, EDGE, position):
            files = self.sender.files[brief.epoch]
            begun = position.files if brief.epoch == position.epoch else 0
            for number in range(begun + 1, len(files) + 1):
                if not most:
                    return position, rows
                if brief.epoch not in self.sender.state.by_id:
                    raise Wrong(f"a file of epoch {brief.epoch} is deleted")
                rows, most = [*rows, *files[number - 1]], most - 1
                position = Position(epoch=brief.epoch, attempt=brief.attempt, files=number, of=len(files))
        return position, rows

    def restore(self) -> None:
        while self.epochs and self.standing(self.epochs[-1][0]) is not Standing.CURRENT:
            self.epochs.pop()
        if not self.epochs:
            raise LookupError("every kept epoch has read undone rows: a new job")

    def register(self) -> None:
        current = (position for position, _ in self.epochs if self.standing(position) is Standing.CURRENT)
        if (position := next(current, None)) is not None:
            self.sender.append(ReaderMoved(reader=READER, place="p", edge=EDGE, position=position))

    def judge(self) -> None:
        position, rows = self.epochs[-1]
        if self.standing(position) is Standing.CURRENT and rows != self.sender.rows(position):
            raise Wrong(f"at {position} the reader has {rows}, the branch {self.sender.rows(position)}")

    def drain(self) -> None:
        for _ in range(200):
            self.poll(10)
        if self.epochs[-1][1] != self.sender.rows():
            raise Wrong("the reader does not arrive at the sender's end")


def campaign(rules: Rules, seeds: range) -> int:
    """Run random schedules of both; returns how often the reader restored. Raises `Wrong`."""
    return sum(schedule(rules, random.Random(seed), forgets=seed % 4 == 3) for seed in seeds)


def schedule(rules: Rules, draw: random.Random, forgets: bool) -> int:
    sender = Sender(rules)
    sender.begin(0)
    reader, restored = Reader(sender, rules), 0
    reader.register()
    steps = ["commit"] * 6 + ["poll"] * 4 + ["retain", "retain", "restore"] + ["forget"] * forgets
    try:
        for _ in range(60):
            match draw.choice(steps):
                case "commit":
                    sender.commit(draw.choice([0, 1, 1, 3]))
                case "poll":
                    reader.poll(draw.choice([1, 2, 5]))
                case "retain":
                    sender.retain(FOREVER)
                case "forget":
                    sender.forget()
                case _ if sender.state.latest:
                    # Mostly near, so that the reader keeps an epoch before it.
                    near = [brief.epoch for brief in sender.state.lineage()][:4]
                    sender.begin(draw.choice(near))
                    restored += 1
        reader.drain()
    except LookupError:
        return restored
    return restored
