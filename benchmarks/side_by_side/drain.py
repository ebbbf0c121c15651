"""Time from a system's start until it has answered a whole topic, and the check of the answer.

The output of a query need not grow with its input, so the output does not show progress. Instead the topic ends, and the measured
time lasts from the start of the program to the commit of the last record of the answer. The trial is over when the answer is
correct and no longer changes, or has not changed for so long that no more is expected. Reading the answer takes a core for a
minute, so it is not read while the system works. Otherwise a system with large batches would lose one of two cores whenever a
batch takes longer than the quiet time that triggers a read.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.nexmark.answers import judge
from benchmarks.side_by_side.oracle import Progress, Verdict
from benchmarks.side_by_side.topics import Topics
from benchmarks.side_by_side.trial import Failed, Subject, Trial, faults, trial
from benchmarks.side_by_side.usage import Cpu, Usage

QUIET_S = 10.0
"""The answer is final after this time, or some intervals, without a commit: duplicates have arrived by then, too."""
_QUIET_INTERVALS = 2
RESTING_CORES = 0.5
"""An idle system uses a tenth of a core, a busy one at least one core."""
STUCK_S = 120.0
"""After this time without a commit no further one is expected: a system may take long for a first batch."""
_LONGEST_S = 900.0


def measure(subject: Subject, topics: Topics, folder: Path) -> dict[str, float]:
    """Values of the result line."""
    with trial(subject, topics, folder) as one, Usage(lambda: one.processes.sessions) as usage:
        started = one.start()
        first = one.wait_for_first_record()
        ending = Ending(one, topics, usage.cpu)
        one.wait(ending.is_over, _LONGEST_S, "commits never end")
        one.processes.kill()
        verdict, progress = ending.judged()
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


class Ending:
    """The end of a trial. The target is read once per pause in its commits."""

    def __init__(self, one: Trial, topics: Topics, cpu: Cpu) -> None:
        self._one, self._topics, self._cpu = one, topics, cpu
        self._quiet_s = max(QUIET_S, _QUIET_INTERVALS * one.subject.interval_ms / 1000)
        self._read_at = 0.0
        self._found: tuple[Verdict, Progress] | None = None

    def is_over(self) -> bool:
        """True if the answer is final and correct, or the trial is stuck."""
        now, last = self._one.watch.moments[-1], self._last_change
        standing_s = now - last
        rests = self._cpu.between(now - self._quiet_s, now) < RESTING_CORES * self._quiet_s
        if standing_s > self._quiet_s and rests and self._read_at != last:
            verdict, _ = self.judged()
            return not verdict.missing and not verdict.wrong
        return standing_s > STUCK_S

    @property
    def _last_change(self) -> float:
        watch = self._one.watch
        return (watch.changes(0) or [watch.first_moment or 0.0])[-1]

    def judged(self) -> tuple[Verdict, Progress]:
        """Judge the committed records; they are read again only if there are more than the last time."""
        last = self._last_change
        if self._found is None or self._read_at != last:
            self._read_at, self._found = last, self._read()
        return self._found

    def _read(self) -> tuple[Verdict, Progress]:
        return judge(self._one.subject.job, self._topics.outputs(self._one.target), self._one.subject.expected)
