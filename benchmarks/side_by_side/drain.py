"""How long a system takes from its start until it has answered a whole topic, and whether the answer is right.

What a query puts out need not grow with its input, so progress cannot be read from the output: the topic ends, and the time counts
until the last record of the answer is committed, the start of the program included. It is over when the answer is right and stands,
or has not moved for so long that nothing more is to be expected. To read it takes a core for a minute, so it is not read while the
system works: of two cores, the one with the large batches would lose one whenever a batch takes longer than a quiet target is.
"""

from __future__ import annotations

from pathlib import Path

from benchmarks.nexmark.answers import judge
from benchmarks.side_by_side.oracle import Progress, Verdict
from benchmarks.side_by_side.topics import Topics
from benchmarks.side_by_side.trial import Failed, Subject, Trial, faults, trial
from benchmarks.side_by_side.usage import Cpu, Usage

QUIET_S = 10.0
"""Without a commit for so long, or for some intervals, the answer stands: what was put out twice has come as well."""
_QUIET_INTERVALS = 2
RESTING_CORES = 0.5
"""A system that waits for input uses a tenth of a core, one that has some at least one."""
STUCK_S = 120.0
"""Without a commit for so long there comes none: a system that is cold may take long for a batch."""
_LONGEST_S = 900.0


def measure(subject: Subject, topics: Topics, folder: Path) -> dict[str, float]:
    """Values of the result line."""
    with trial(subject, topics, folder) as one, Usage(lambda: one.processes.sessions) as usage:
        started = one.start()
        first = one.wait_for_first_record()
        ending = Ending(one, topics, usage.cpu)
        one.wait(ending.has_come, _LONGEST_S, "commits go on and on")
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
    """Whether a trial is over. The target is read once for each time that it stands still."""

    def __init__(self, one: Trial, topics: Topics, cpu: Cpu) -> None:
        self._one, self._topics, self._cpu = one, topics, cpu
        self._quiet_s = max(QUIET_S, _QUIET_INTERVALS * one.subject.interval_ms / 1000)
        self._read_at = 0.0
        self._found: tuple[Verdict, Progress] | None = None

    def has_come(self) -> bool:
        """It stands and is right, or it is stuck."""
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
        """Of what is committed now: read anew only if that is more than the last time."""
        last = self._last_change
        if self._found is None or self._read_at != last:
            self._read_at, self._found = last, self._read()
        return self._found

    def _read(self) -> tuple[Verdict, Progress]:
        return judge(self._one.subject.job, self._topics.outputs(self._one.target), self._one.subject.expected)
