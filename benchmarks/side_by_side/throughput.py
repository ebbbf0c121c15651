"""Records per second that a system answers while more input is always available, and the cost."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

from benchmarks.side_by_side.plan import Window
from benchmarks.side_by_side.timeline import Rate, Timeline, rate
from benchmarks.side_by_side.topics import Topics
from benchmarks.side_by_side.trial import Failed, Subject, Trial, faults, trial
from benchmarks.side_by_side.usage import Usage

_COMMITS = 3
_LONGEST_EXTENSION_S = 60.0
_SETTLE_S = 2.0
_LEAST_WARM_UP_S = 1.0


def measure(subject: Subject, topics: Topics, folder: Path, window: Window) -> dict[str, float]:
    """Return the values of the result line."""
    with trial(subject, topics, folder) as one, Usage(lambda: one.processes.sessions) as usage:
        started = one.start()
        first = one.wait_for_first_record()
        warm_up_s = window.warm_up_s + _standby_s(one, first)
        since = time.time() + window.warm_up_s
        _run(one, first + warm_up_s, window.measured_s)
        stop = one.watch.moments[-1]
        one.kill()
        verdict, progress = one.verdict()
        timeline = one.watch.timeline(progress)
        checkpoints = checkpoint_times(one, since)
    first_output = timeline.first_above(0)
    if first_output is None:
        raise Failed("no output answers an input", one.processes.log_tail())
    found, warm_up_s = rate_after_warm_up(timeline, first_output, stop, len(subject.inputs), warm_up_s)
    cpu_s = usage.cpu.between(found.start, found.stop) / (found.stop - found.start)
    return {
        "records_per_s": found.per_s,
        "cpu_s_per_million": cpu_s / found.per_s * 1e6,
        "warm_up_s": warm_up_s,
        "measured_s": found.stop - found.start,
        "memory_mib": usage.largest_mib,
        "first_output_s": first_output - started,
        **checkpoints,
        **faults(verdict),
    }


def checkpoint_times(one: Trial, since: float) -> dict[str, float]:
    """Durations of checkpoints, for systems that keep them: of those that began after the warm-up, or of the last one."""
    asked = one.subject.system.checkpoints_s
    took_s = [] if asked is None else asked(str(one.state), since) or asked(str(one.state), 0)[-1:]
    return {"checkpoint_s": statistics.median(took_s), "checkpoint_most_s": max(took_s)} if took_s else {}


def _standby_s(one: Trial, first: float) -> float:
    """Seconds until the standby is warm; then the warm-up begins. CPU and memory are measured without the standby."""
    one.start_standby()
    return 0.0 if one.standby is None else time.monotonic() - first


def rate_after_warm_up(
    timeline: Timeline, first_output: float, stop: float, inputs: int, warm_up_s: float
) -> tuple[Rate, float]:
    """Measure after the warm-up. If the topic ends before two commits, halve the warm-up and try again; the line reports it."""
    while (found := rate(timeline, first_output + warm_up_s, stop, inputs)) is None:
        if warm_up_s < _LEAST_WARM_UP_S or timeline.total_at(stop) < inputs:
            raise Failed(f"fewer than two commits after a warm-up of {warm_up_s:.0f} s")
        warm_up_s /= 2
    return found, warm_up_s


def _run(one: Trial, start: float, measured_s: float) -> None:
    """Run until the window is over and has enough commits, or until all inputs are answered."""
    deadline_s = start + measured_s - one.watch.moments[-1]
    if one.wait(lambda: one.all_answered, deadline_s):
        one.rest(_SETTLE_S + one.subject.interval_ms / 1000)
        return
    one.wait(lambda: one.all_answered or len(one.watch.changes(start)) >= _COMMITS, _LONGEST_EXTENSION_S)
