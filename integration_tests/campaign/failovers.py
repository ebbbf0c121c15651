"""A driver and its standby: the leading driver is killed, or frozen until after the takeover and woken; the other one continues.

The seed draws the whole schedule before anything starts: the driver to kill, the event before the kill, and the delay. So a seed
repeats the schedule exactly, but the moments are still moments of real time.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from integration_tests.broker import Broker
from integration_tests.campaign.hard_input import feeding
from integration_tests.campaign.kafka_kills import ARGUMENTS, RECORDS_A_FEED, RECORDS_A_LIFE, drain, hard_job
from integration_tests.campaign.trial import Results
from integration_tests.survival.job import KafkaJob
from integration_tests.survival.kills import IN_CHILDREN, frozen
from integration_tests.survival.ledger import Watcher
from integration_tests.survival.process import STALLED_S, Driver, wait_until

FENCED_CODE = 4
COMMITTED_LATE = "it committed after its successor began"
OF_A_JOB = 50
READY = ("waits", "follows", "is warm", "is warm")
POINTS = ("", "", "", *IN_CHILDREN[1:])
WAKES = ("started", "started", "committed", "published")
UNFENCED = "integration_tests.campaign.unfenced_driver"
FAR_AWAY = "integration_tests.campaign.far_driver"
GONE, SILENT = "the process that held it is gone", "not renewed for its"
"""Reasons for which a standby takes over: on the driver's host, and on another host."""
SETTLE_S = 0.3
"""After a kill, records in transit are still read: for less time than any takeover takes."""


@dataclass(frozen=True)
class Failover:
    """The primary dies `delay_s` after its standby has reported `ready`. `standby_dies_s`: before that, another standby dies this
    long after it began to wait; None if none does."""

    ready: str
    delay_s: float
    standby_dies_s: float | None

    @property
    def kind(self) -> str:
        """The failover without its moment."""
        before = "" if self.standby_dies_s is None else ", a standby killed before"
        return f"primary killed when its standby '{self.ready}'{before}"


@dataclass(frozen=True)
class Pause:
    """The primary freezes `delay_s` after its first epoch, its publisher at `point` if one is named. It is woken `wake_s` after its
    successor's first `wake` event."""

    point: str
    delay_s: float
    wake: str
    wake_s: float

    @property
    def kind(self) -> str:
        """The pause without its moment."""
        frozen = f"its publisher at {self.point}" if self.point else "at a random moment"
        return f"frozen {frozen}, woken behind '{self.wake}'"


def failovers_of(seed: int, trials: int) -> list[Failover]:
    """The schedule of a campaign."""
    draw = random.Random(seed)
    return [
        Failover(draw.choice(READY), draw.uniform(0, 1.5), draw.uniform(0, 6) if draw.random() < 0.3 else None)
        for _ in range(trials)
    ]


def pauses_of(seed: int, trials: int) -> list[Pause]:
    """The schedule of a campaign. A successor whose own publisher will freeze may publish nothing, so no trial waits for it."""
    draw = random.Random(seed)
    points = [draw.choice(POINTS) for _ in range(trials)] + [""]
    return [
        Pause(point, draw.uniform(0, 1.5), "started" if following else draw.choice(WAKES), draw.uniform(0, 2))
        for point, following in pairwise(points)
    ]


class Pair:
    """The leading driver of a job and its standby. `program`: the program of the first leading driver."""

    def __init__(self, job: KafkaJob, lease: str, first: Mapping[str, str], program: str = "") -> None:
        self.job = job
        self._arguments = (*ARGUMENTS, "--standby", "--lease", lease)
        job.ledger.write(RECORDS_A_LIFE)
        usual = job.lives.program
        job.lives.program = program or usual
        self.primary = self._start(first)
        job.lives.program = usual
        # Of two drivers that start at the same time either may lead, and only a leading driver has a standby.
        self.primary.wait_for_events("started", 1)

    def stand_by(self, environment: Mapping[str, str] | None = None) -> Driver:
        """Start a standby, and wait until it is waiting."""
        standby = self._start(environment or {})
        wait_until_reported(standby, "waits")
        return standby

    def _start(self, environment: Mapping[str, str]) -> Driver:
        return self.job.lives.start(*self._arguments, environment=environment)


def failovers(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """Kill a leading driver under load `trials` times, sometimes after a standby. The output is compared after every fifty."""
    _fail_over_in_jobs(broker, folder, trials, seed, results, ("30 seconds", GONE))


def silences(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """The same on different hosts: no driver sees another one's process, so only the lease shows its end."""
    _fail_over_in_jobs(broker, folder, trials, seed, results, ("6 seconds", SILENT))


def _fail_over_in_jobs(
    broker: Broker, folder: Path, trials: int, seed: int, results: Results, terms: tuple[str, str]
) -> None:
    draw, schedule = random.Random(seed), failovers_of(seed, trials)
    for begin in range(0, trials, OF_A_JOB):
        job = hard_job(broker.servers, folder / f"failovers-{begin}", draw.randrange(10**6))
        job.lives.program = FAR_AWAY if terms[1] == SILENT else job.lives.program
        try:
            _fail_over_often(job, schedule[begin : begin + OF_A_JOB], results, terms)
            # Where only the lease shows the end of a driver, that of the last one may still run.
            drain(job, results, *(["--takeover"] if terms[1] == SILENT else []))
        finally:
            job.close()


def _fail_over_often(job: KafkaJob, schedule: Sequence[Failover], results: Results, terms: tuple[str, str]) -> None:
    lease, seen = terms
    in_turn(job, lease, [(each.kind, partial(_fail_over, failover=each, seen=seen)) for each in schedule], results)


def in_turn(
    job: KafkaJob, lease: str, trials: Iterable[tuple[str, Callable[[Pair], dict[str, float]]]], results: Results
) -> None:
    """Each trial, by its kind, with the pair that the previous trial left; with a new pair after a broken promise."""
    pair: Pair | None = None
    for kind, trial in trials:
        figures: dict[str, float] = {}
        why = ""
        try:
            pair = pair or Pair(job, lease, {})
            with feeding(job.ledger.write, RECORDS_A_FEED):
                figures = trial(pair)
            job.check_watcher()
        except AssertionError as error:
            why, pair = str(error), None
            job.lives.end()
        results.add(kind, figures, why)
    job.lives.end()


def _fail_over(pair: Pair, failover: Failover, seen: str) -> dict[str, float]:
    """One failover: seconds from the death to the successor's first epoch, and to the next record of a committed reader."""
    if failover.standby_dies_s is not None:
        with pair.stand_by():
            time.sleep(failover.standby_dies_s)  # a random moment of the kill
    successor = pair.stand_by()
    wait_until_reported(successor, failover.ready)
    pair.primary.wait_for_events("committed", 1)
    time.sleep(failover.delay_s)  # a random moment of the kill
    pair.primary.kill()
    died_s = time.monotonic()
    time.sleep(SETTLE_S)
    figures = _firsts(pair.job.watcher, successor, died_s)
    (took,) = [event for event in successor.events("standby") if event["what"] == "takes over"]
    assert took["why"].startswith(seen), took
    pair.primary = successor
    return figures


def _firsts(watcher: Watcher, successor: Driver, died_s: float) -> dict[str, float]:
    """Seconds from the death. A record may come before the epoch, from an epoch that was committed and unpublished."""
    before, seen = watcher.records, dict[str, float]()

    def look() -> bool:
        after_s = round(time.monotonic() - died_s, 2)
        if successor.events("committed"):
            seen.setdefault("first epoch after s", after_s)
        if watcher.records > before:
            seen.setdefault("first record after s", after_s)
        return len(seen) == 2

    successor.wait_for(look, "an epoch and a record after the takeover")
    return seen


def paused(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """Freeze `trials` leading drivers until their standby leads, then wake them: each must commit nothing, report and end."""
    draw, schedule = random.Random(seed), pauses_of(seed, trials)
    for begin in range(0, trials, OF_A_JOB):
        job = hard_job(broker.servers, folder / f"paused-{begin}", draw.randrange(10**6))
        try:
            _pause_often(job, schedule[begin : begin + OF_A_JOB], results)
            drain(job, results)
        finally:
            job.close()


def _pause_often(job: KafkaJob, schedule: Sequence[Pause], results: Results) -> None:
    pair: Pair | None = None
    for number, pause in enumerate(schedule):
        following = schedule[number + 1].point if number + 1 < len(schedule) else ""
        why = ""
        try:
            pair = pair or Pair(job, "6 seconds", _armed(job, pause.point, number))
            with feeding(job.ledger.write, RECORDS_A_FEED):
                why = _pause(pair, pause, pair.stand_by(_armed(job, following, number + 1)))
            job.check_watcher()
        except AssertionError as error:
            why = str(error)
        if why:
            job.lives.end()
            pair = None
        results.add(pause.kind, why=why)
    job.lives.end()


def _pause(pair: Pair, pause: Pause, successor: Driver) -> str:
    """Freeze, wait for the takeover, wake; return the fault of the woken driver, if any."""
    zombie = pair.primary
    # A publisher that is frozen at its point may delay the first epoch.
    zombie.wait_for(lambda: bool(zombie.events("committed") or (pause.point and frozen(zombie))), "it works")
    time.sleep(pause.delay_s)  # a random moment of the freeze
    zombie.stop()
    seen = len(zombie.events())
    assert not successor.events("started"), "the standby led before the primary was frozen"
    try:
        successor.wait_for_events(pause.wake, 1)
        time.sleep(pause.wake_s)  # a random moment of the wake-up
        zombie.resume()
        base = successor.events("started")[0]["base"]
        wait_until(
            lambda: zombie.exit_code is not None or bool(_late(zombie.events(), seen, base)), "it ends", STALLED_S
        )
        return judged(zombie.exit_code, zombie.events(), seen, base)
    finally:
        zombie.kill()
        pair.primary = successor


def judged(code: int | None, events: Sequence[Mapping[str, Any]], seen: int, base: int) -> str:
    """The fault of a woken driver, if any. `code`: None if it still runs. `events`: its events, the first `seen` of them from
    before the freeze. `base`: the epoch that its successor continues from."""
    if late := _late(events, seen, base):
        return f"{COMMITTED_LATE}, which continues from epoch {base}: {late}"
    conditions = [event["condition"] for event in events if event["event"] == "failed"]
    return (
        ""
        if (code, conditions) == (FENCED_CODE, ["CKPT_FENCED"])
        else f"it ended with {code} and reported {conditions}"
    )


def _late(events: Sequence[Mapping[str, Any]], seen: int, base: int) -> list[Mapping[str, Any]]:
    """Epochs committed before the takeover but reported after it are in the base."""
    return [e for e in events[seen:] if e["event"] in ("committed", "published") and e["epoch"] > base]


def unfenced(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """Test the campaign: a primary that commits without a check of the lease is found in each of `trials` trials."""
    draw = random.Random(seed)
    for number in range(trials):
        job, found = hard_job(broker.servers, folder / f"unfenced-{number}", draw.randrange(10**6)), ""
        try:
            pair = Pair(job, "6 seconds", {}, UNFENCED)
            pause = Pause("", draw.uniform(0, 1.5), "started", draw.uniform(0, 1))
            with feeding(job.ledger.write, RECORDS_A_FEED):
                found = _pause(pair, pause, pair.stand_by())
            why = "" if found.startswith(COMMITTED_LATE) else f"it was not found: {found}"
        except AssertionError as error:
            why = f"the trial failed: {error}"
        finally:
            job.close()
        print(f"found: {found}", flush=True)
        results.add("a primary that does not look at the lease", why=why)


def _armed(job: KafkaJob, point: str, number: int) -> Mapping[str, str]:
    if not point:
        return {}
    once = job.lives.folder / f"once-{number:03}"
    once.mkdir(exist_ok=True)
    return {"SPARK_CKPT_FAILPOINT": f"{point}:stop", "SPARK_CKPT_FAILPOINT_ONCE": str(once)}


def wait_until_reported(standby: Driver, what: str) -> None:
    """Wait until a standby reports that it waits, follows an epoch, or is warm."""
    standby.wait_for(lambda: any(e["what"] == what for e in standby.events("standby")), f"it {what}")
