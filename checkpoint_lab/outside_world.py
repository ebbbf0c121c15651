"""The record of the outside world: every row that a sink showed, in order and for good, and its judgement.

A sink is not idempotent: it records every row that it has to show, again if it showed it before. Like every
transactional sink it writes the position of the newest row (`marker`) with the rows, and a new incarnation reads it
(`Birth.shown`). Without the marker no row could be shown exactly once, because a crash may come between showing and
remembering.

The oracles judge this record by the names of the rows, never by the machines' words: O14 no row twice; O15 in order;
O16 every row that the inputs demand, and no other.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from checkpoint_lab.application import Application
from checkpoint_lab.violations import ShownOutOfOrder, ShownTwice, Violation, WrongOutput
from checkpoint_protocols.ids import ProcessId


class Publication(NamedTuple):
    """A sink's transaction under way: rows `first+1..last` of its received rows, as bits, and their names."""

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
        """Position of the newest transaction's last row."""
        self.seen = 0
        """Mask of the shown rows by name: a row whose send was undone and repeated has another bit."""
        self.newest: dict[str, int] = {}
        """Number of rows that came along each path."""
        self.again = 0
        """Number of rows that were shown before."""

    def show(self, app: Application, keeps_order: bool, publication: Publication) -> Violation | None:
        """Record all rows of a publication. Return the verdict on the first wrong row, or None."""
        wrong: Violation | None = None
        # a transaction continues where the record ends; a gap or an overlap is out of order
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
    """O16: at the end every sink has shown the rows of a run without failures."""
    for sink in sinks:
        missing = app.names(app.expected[sink.name] & ~sink.seen)
        if missing:
            raise WrongOutput(f"{sink.name} never shows {missing}", [sink.name], missing)


def judge_order(sink: Sink, rows: Sequence[int]) -> None:
    """O15: the shown rows are a prefix of the sink's received rows."""
    if rows[: len(sink.rows)] != sink.rows:
        raise ShownOutOfOrder(f"{sink.name} has shown its rows in another order than it has them in", [sink.name])


def judge_up_to(sinks: Collection[Sink], rows: Mapping[ProcessId, int]) -> None:
    """O16: at quiescence the rows of a complete checkpoint are shown."""
    for sink in sinks:
        if len(sink.rows) < rows[sink.name]:
            what = f"{sink.name} has shown {len(sink.rows)} of {rows[sink.name]} rows that a complete checkpoint holds"
            raise WrongOutput(what, [sink.name])


def refuse_no_sink(name: ProcessId, rows: Sequence[str]) -> WrongOutput:
    """O16: a process that is not at the end of the graph shows nothing to the outside world."""
    return WrongOutput(f"{name} shows {list(rows)} and is no sink", [name], rows)


def missing(app: Application, sinks: Collection[Sink]) -> int:
    """Return the number of rows that are not shown."""
    return sum((app.expected[sink.name] & ~sink.seen).bit_count() for sink in sinks)
