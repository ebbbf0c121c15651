"""A run as text: one line per moment, and a space-time diagram in characters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from checkpoint_lab.world import Moment

SIGNS = {
    "read": "r",
    "send": "s",
    "receive": "v",
    "deliver": "d",
    "replay": "p",
    "drop": "x",
    "lose": "?",
    "capture": "O",
    "stored": "w",
    "failed": "!",
    "torn": "!",
    "lost": "!",
    "timer": "t",
    "crash": "X",
    "restore": "R",
    "recover": "|",
    "complete": "C",
    "decide": "D",
    "inject": "B",
    "publish": "$",
    "pause": "z",
    "wake": "a",
    "begins": "b",
    "renews": "h",
    "returns": "f",
    "leads": "L",
}
"""One character per kind of moment. If one step has several on a process, `_weight` decides which one the chart shows.
"""

ARRIVALS = frozenset({"receive", "lose"})
"""Moments at the target of a message."""

QUIET = frozenset({"begin", "receive", "timer", "stored"})
"""Moments that a story leaves out unless everything is requested."""


def story(moments: Iterable[Moment], everything: bool = False) -> str:
    """Return one line per moment: step, process, kind, label, and the number of the message if there is one."""
    moments = list(moments)
    told = [moment for moment in moments if everything or moment.kind not in QUIET]
    width = max((len(moment.process) for moment in told), default=0)
    ends = {moment.message: moment.process for moment in moments if moment.kind in ARRIVALS and moment.message >= 0}
    return "".join(_line(moment, width, ends) for moment in told)


def _line(moment: Moment, width: int, ends: Mapping[int, str]) -> str:
    number = f" [{moment.message}]" if moment.message >= 0 else ""
    to = f" to {ends.get(moment.message, 'nobody: it is on its way for ever')}" if moment.kind == "send" else ""
    return (
        f"{moment.step:5d}  {moment.process or '*':<{width}}  {moment.kind:<8} {moment.label}{to}{number}".rstrip()
        + "\n"
    )


def processes_of(moments: Iterable[Moment]) -> list[str]:
    """Return every process with a moment, in order of appearance."""
    return list(dict.fromkeys(moment.process for moment in moments if moment.process))


def chart(moments: Sequence[Moment], width: int = 100) -> str:
    """Return a line per process with a column per step, wrapped at `width`, and a legend of the signs."""
    names = processes_of(moments)
    steps = max((moment.step for moment in moments), default=0) + 1
    margin = max((len(name) for name in names), default=0) + 1
    cells = {(moment.process, moment.step): "" for moment in moments}
    for moment in moments:
        sign = SIGNS.get(moment.kind)
        if sign:
            key = (moment.process, moment.step)
            cells[key] = max(cells[key], sign, key=_weight)
    recoveries = {moment.step for moment in moments if moment.kind == "recover"}
    blocks = [
        _block(names, cells, recoveries, start, min(steps, start + width), margin) for start in range(0, steps, width)
    ]
    return "\n".join(blocks) + "\n" + _legend({sign for sign in cells.values() if sign})


def _weight(sign: str) -> int:
    order = "vtwrsdpx?!zabhfBDOC$RLX|"
    return order.find(sign)


def _block(
    names: Sequence[str], cells: dict[tuple[str, int], str], recoveries: set[int], start: int, end: int, margin: int
) -> str:
    lines = [
        f"{name:<{margin}}"
        + "".join(cells.get((name, step)) or ("|" if step in recoveries else "-") for step in range(start, end))
        for name in names
    ]
    ruler = " " * margin + "".join(f"{step:<10d}" for step in range(start, end, 10))
    return "\n".join([*lines, ruler.rstrip(), ""])


def _legend(used: set[str]) -> str:
    meanings = [f"{sign} {kind}" for kind, sign in SIGNS.items() if sign in used]
    return "  ".join(meanings) + "\n"
