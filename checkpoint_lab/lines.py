"""Lines: one cut per process. Oracles judge from masks and vector clocks alone if a job can continue from a line.

O1 no orphan; O13 the same by happened-before; O2 every message in transit is obtainable; O4 no usable line undoes less;
O5 a later line keeps the content of an earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import product

from checkpoint_lab.state import Cut
from checkpoint_lab.truth import Truth
from checkpoint_lab.violations import Acausal, LineMovedBack, Lost, NotMaximal, Orphan
from checkpoint_protocols.ids import ProcessId

Line = Mapping[ProcessId, Cut]

COMBINATIONS_MAX = 4_000
"""Maximal number of lines that O4 tries; it skips a job with more candidates."""


def orphans(line: Line) -> int:
    """Return the mask of messages received and not sent."""
    sent = received = 0
    for cut in line.values():
        sent |= cut.sent
        received |= cut.received
    return received & ~sent


def in_transit(line: Line) -> int:
    """Return the mask of messages sent and not received."""
    sent = received = 0
    for cut in line.values():
        sent |= cut.sent
        received |= cut.received
    return sent & ~received


def judge_consistent(truth: Truth, line: Line, what: str) -> None:
    """Judge O1 and O13."""
    bad = orphans(line)
    if bad:
        names = truth.describe(bad)
        raise Orphan(f"{what}: received and not sent: {names}", sorted(line), names)
    judge_causal(line, what)


def judge_causal(line: Line, what: str) -> None:
    """O13: every event that a cut depends on is in the other cuts."""
    for number, (process, cut) in enumerate(line.items()):
        for reader, other in line.items():
            newest = other.clock[number]
            # event numbers of undone histories are never used again, so one bit tells
            if newest and not cut.lived >> newest & 1:
                raise Acausal(
                    f"{what}: {reader} depends on event {newest} of {process}, which is undone", [reader, process]
                )


def judge_obtainable(truth: Truth, line: Line, somewhere: Callable[[], int], what: str) -> None:
    """O2: every missing message is in `somewhere()`: on channels, in logs or in replays.

    It is called only if one is missing.
    """
    missing = in_transit(line)
    lost = missing and missing & ~somewhere()
    if lost:
        names = truth.describe(lost)
        raise Lost(f"{what}: in transit and nowhere: {names}", sorted(line), names)


def judge_forward(before: Line, line: Line, what: str) -> None:
    """O5: the line contains everything that an earlier usable line had."""
    for process, cut in before.items():
        mine = line[process]
        if cut.received & ~mine.received or cut.sent & ~mine.sent:
            raise LineMovedBack(f"{what}: {process} goes back before a line that was called complete", [process])


def judge_maximal(line: Line, candidates: Mapping[ProcessId, Sequence[Cut]], somewhere: int | None, what: str) -> None:
    """O4: no usable combination of `candidates` (oldest first) keeps more of any process.

    `somewhere` as in `judge_obtainable`, None if every message can be read again.
    """
    names = list(candidates)
    size = 1
    for each in candidates.values():
        size *= len(each)
    # the product of candidates grows too fast to try all lines
    if size > COMBINATIONS_MAX:
        return
    best = dict.fromkeys(names, -1)
    for places in product(*(range(len(candidates[name])) for name in names)):
        tried = {name: candidates[name][place] for name, place in zip(names, places, strict=True)}
        if orphans(tried) or (somewhere is not None and in_transit(tried) & ~somewhere):
            continue
        best = {name: max(best[name], place) for name, place in zip(names, places, strict=True)}
    for name in names:
        if _progress(line[name]) < _progress(candidates[name][best[name]]):
            raise NotMaximal(f"{what}: {name} goes back further than it must", [name])


def _progress(cut: Cut) -> int:
    return cut.lived.bit_count()
