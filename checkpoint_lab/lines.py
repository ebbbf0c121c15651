"""A line: one cut per process. Whether a job could go on from it is judged here from masks and vector clocks alone.

O1 no orphan, O13 the same by happened-before, O2 every message in transit is somewhere, O4 no usable line undoes
less, O5 a later line keeps what an earlier one had.
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
"""Lines that O4 tries; a job with more candidates is not judged."""


def orphans(line: Line) -> int:
    """Mask of what is received and not sent."""
    sent = received = 0
    for cut in line.values():
        sent |= cut.sent
        received |= cut.received
    return received & ~sent


def in_transit(line: Line) -> int:
    """Mask of what is sent and not received."""
    sent = received = 0
    for cut in line.values():
        sent |= cut.sent
        received |= cut.received
    return sent & ~received


def judge_consistent(truth: Truth, line: Line, what: str) -> None:
    """O1 and O13."""
    bad = orphans(line)
    if bad:
        names = truth.describe(bad)
        raise Orphan(f"{what}: received and not sent: {names}", sorted(line), names)
    judge_causal(line, what)


def judge_causal(line: Line, what: str) -> None:
    """O13: whatever a cut depends on is in the other cuts."""
    for number, (process, cut) in enumerate(line.items()):
        for reader, other in line.items():
            newest = other.clock[number]
            if newest and not cut.lived >> newest & 1:
                raise Acausal(
                    f"{what}: {reader} depends on event {newest} of {process}, which is undone", [reader, process]
                )


def judge_obtainable(truth: Truth, line: Line, somewhere: Callable[[], int], what: str) -> None:
    """O2: `somewhere` gives the mask of messages on channels, in logs and in replays. Asked only if any is missing."""
    missing = in_transit(line)
    lost = missing and missing & ~somewhere()
    if lost:
        names = truth.describe(lost)
        raise Lost(f"{what}: in transit and nowhere: {names}", sorted(line), names)


def judge_forward(before: Line, line: Line, what: str) -> None:
    """O5: everything an earlier usable line had is in this one."""
    for process, cut in before.items():
        mine = line[process]
        if cut.received & ~mine.received or cut.sent & ~mine.sent:
            raise LineMovedBack(f"{what}: {process} goes back before a line that was called complete", [process])


def judge_maximal(line: Line, candidates: Mapping[ProcessId, Sequence[Cut]], somewhere: int | None, what: str) -> None:
    """O4: no usable combination of `candidates` (oldest first) has more of any process.

    `somewhere` as in `judge_obtainable`, None where every message can be read again.
    """
    names = list(candidates)
    size = 1
    for each in candidates.values():
        size *= len(each)
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
