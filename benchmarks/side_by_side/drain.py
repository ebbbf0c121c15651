"""How long a system takes from its start until it has answered a whole topic, and whether the answer is right.

What a query puts out need not grow with its input, so progress cannot be read from the output: the topic ends, and the time counts
until the last record of the answer is committed, the start of the program included.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.nexmark.answers import judge
from benchmarks.side_by_side.topics import Topics
from benchmarks.side_by_side.trial import Failed, Subject, Trial, faults, trial
from benchmarks.side_by_side.usage import Usage

QUIET_S = 20.0
"""No commit for so long, or for some intervals, is the end: longer than any window of the machine's clock."""
_QUIET_INTERVALS = 4
_LONGEST_S = 900.0


def measure(subject: Subject, topics: Topics, folder: Path) -> dict[str, float]:
    """Values of the result line."""
    with trial(subject, topics, folder) as one, Usage(lambda: one.processes.sessions) as usage:
        started = one.start()
        first = one.wait_for_first_record()
        one.wait(lambda: _is_quiet(one, first), _LONGEST_S, "commits go on and on")
        one.processes.kill()
        verdict, progress = judge(subject.job, topics.outputs(one.target), subject.expected)
        timeline = one.watch.timeline(progress)
    last = timeline.first_above(verdict.records - 1)
    if last is None:
        raise Failed("no output", one.processes.log_tail())
    count = len(subject.inputs)
    return {
        "events": float(count),
        "drained_s": last - started,
        "records_per_s": count / (last - started),
        "cpu_s_per_million": usage.cpu.between(started, last) / count * 1e6,
        "memory_mib": usage.largest_mib,
        "first_output_s": first - started,
        **faults(verdict),
    }


def _is_quiet(one: Trial, first: float) -> bool:
    moments = one.watch.changes(first - 1)
    since = moments[-1] if moments else first
    quiet_s = max(QUIET_S, _QUIET_INTERVALS * one.subject.interval_ms / 1000)
    return one.watch.moments[-1] - since > quiet_s
