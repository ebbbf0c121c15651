"""What the world outside has seen: every row that a sink showed, as it was shown and for good, and whether it should.

A sink is not idempotent.  It records what it is told to show, also what it has shown before.  Like every transactional
sink it writes with the rows how far they go (`marker`), and a new life reads that (`Birth.shown`): without it nothing
could be shown once, because a crash may come between showing and remembering.

Judged is the record, from the names of the rows, and never what machines say about it:

O14 no row twice; O15 in order; O16 everything that the inputs demand, and nothing else.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from checkpoint_lab.application import Application
from checkpoint_lab.violations import ShownOutOfOrder, ShownTwice, Violation, WrongOutput
from checkpoint_protocols.ids import ProcessId


class Publication(NamedTuple):
    """A sink's transaction under way: rows `first+1..last` of what it had taken in, as bits, and their names."""

    transaction: str
    first: int
    last: int
    rows: tuple[int, ...]
    names: tuple[str, ...]


class Sink:
    """The record of one sink. `rows` are bits, in order of appearance."""

    __slots__ = ("again", "marker", "name", "newest", "rows", "seen")

    def __init__(self, name: ProcessId) -> None:
        self.name = name
        self.rows: list[int] = []
        self.marker = 0
        """How far the newest transaction goes."""
        self.seen = 0
        """Mask of the rows by name: the same row has another bit when its send was undone and is done again."""
        self.newest: dict[str, int] = {}
        """Of each way, how many rows came along it."""
        self.again = 0
        """Rows that were shown before."""

    def show(self, app: Application, keeps_order: bool, publication: Publication) -> Violation | None:
        """Record all of it. What is wrong with the first row that is not right."""
        wrong: Violation | None = None
        follows = publication.first == len(self.rows)
        for bit, name in zip(publication.rows, publication.names, strict=True):
            wrong = wrong or self._judge(app, keeps_order, name, follows)
            self.again += bool(self.seen & app.bits[name])
            self.rows.append(bit)
            self.seen |= app.bits[name]
        self.marker = publication.last
        return wrong

    def _judge(self, app: Application, keeps_order: bool, name: str, follows: bool) -> Violation | None:
        if self.seen & app.bits[name]:
            return ShownTwice(f"{self.name} shows {name} again", [self.name], [name])
        if not follows:
            return ShownOutOfOrder(f"{self.name} shows {name}, which is not its next row", [self.name], [name])
        way, number = app.places[name]
        due = self.newest.get(way, 0)
        self.newest[way] = number + 1
        if keeps_order and number != due:
            what = f"{self.name} shows {name} where number {due} of that way is next"
            return ShownOutOfOrder(what, [self.name], [name])
        return None


def judge_complete(app: Application, sinks: Collection[Sink]) -> None:
    """O16: at the end every sink has shown what a run without failures shows."""
    for sink in sinks:
        missing = app.names(app.expected[sink.name] & ~sink.seen)
        if missing:
            raise WrongOutput(f"{sink.name} never shows {missing}", [sink.name], missing)


def judge_order(sink: Sink, rows: Sequence[int]) -> None:
    """O15: what is shown is the beginning of what the sink has taken in."""
    if rows[: len(sink.rows)] != sink.rows:
        raise ShownOutOfOrder(f"{sink.name} has shown its rows in another order than it has them in", [sink.name])


def judge_up_to(sinks: Collection[Sink], rows: Mapping[ProcessId, int]) -> None:
    """O16: what a complete checkpoint holds is shown when nothing is under way any more."""
    for sink in sinks:
        if len(sink.rows) < rows[sink.name]:
            what = f"{sink.name} has shown {len(sink.rows)} of {rows[sink.name]} rows that a complete checkpoint holds"
            raise WrongOutput(what, [sink.name])


def refuse_no_sink(name: ProcessId, rows: Sequence[str]) -> WrongOutput:
    """O16: who is not at the end of the graph shows nothing to the outside world."""
    return WrongOutput(f"{name} shows {list(rows)} and is no sink", [name], rows)


def missing(app: Application, sinks: Collection[Sink]) -> int:
    """How many rows are not shown."""
    return sum((app.expected[sink.name] & ~sink.seen).bit_count() for sink in sinks)
