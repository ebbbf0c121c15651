"""Two drivers of one job, one of which waits: the leading one is killed, or frozen past the takeover and woken; the other goes on.

The whole schedule (who dies, behind which event, after how long) is drawn from the seed before anything starts. A seed repeats the
schedule exactly; the moments are still moments of real time.
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
WENT_ON = "it went on behind its successor"
OF_A_JOB = 50
READY = ("waits", "follows", "is warm", "is warm")
POINTS = ("", "", "", *IN_CHILDREN[1:])
WAKES = ("started", "started", "committed", "published")
UNFENCED = "integration_tests.campaign.unfenced_driver"
FAR_AWAY = "integration_tests.campaign.far_driver"
GONE, SILENT = "the process that held it is gone", "not renewed for its"
"""What a standby sees of the other driver's end: on its host, and from another one."""
SETTLE_S = 0.3
"""After a kill, what was on its way is still read: less than any takeover takes."""


@dataclass(frozen=True)
class Failover:
    """The primary dies `delay_s` after its standby has said `ready`. `standby_dies_s`: before that, another standby dies so long
    after it began to wait; None if none does."""

    ready: str
    delay_s: float
    standby_dies_s: float | None

    @property
    def kind(self) -> str:
        """Without its moment."""
        before = "" if self.standby_dies_s is None else ", a standby killed before"
        return f"primary killed when its standby '{self.ready}'{before}"


@dataclass(frozen=True)
class Pause:
    """The primary freezes `delay_s` after its first epoch, its publisher at `point` if one is named. It is woken `wake_s` after its
    successor's first event `wake`."""

    point: str
    delay_s: float
    wake: str
    wake_s: float

    @property
    def kind(self) -> str:
        """Without its moment."""
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
    """The schedule of a campaign. A successor whose own publisher is going to freeze may publish nothing: nobody waits for that."""
    draw = random.Random(seed)
    points = [draw.choice(POINTS) for _ in range(trials)] + [""]
    return [
        Pause(point, draw.uniform(0, 1.5), "started" if following else draw.choice(WAKES), draw.uniform(0, 2))
        for point, following in pairwise(points)
    ]


class Pair:
    """The leading driver of a job and the one that waits behind it. `program`: what the first leading one runs."""

    def __init__(self, job: KafkaJob, lease: str, first: Mapping[str, str], program: str = "") -> None:
        self.job = job
        self._arguments = (*ARGUMENTS, "--standby", "--lease", lease)
        job.ledger.write(RECORDS_A_LIFE)
        usual = job.lives.program
        job.lives.program = program or usual
        self.primary = self._start(first)
        job.lives.program = usual
        # Of two that start at once either may lead; only one that leads has a standby.
        self.primary.wait_for_events("started", 1)

    def stand_by(self, environment: Mapping[str, str] | None = None) -> Driver:
        """Start a standby, and wait until it waits."""
        standby = self._start(environment or {})
        wait_until_it_says(standby, "waits")
        return standby

    def _start(self, environment: Mapping[str, str]) -> Driver:
        return self.job.lives.start(*self._arguments, environment=environment)


def failovers(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """`trials` deaths of a leading driver under load; before some of them a standby dies. The output of each fifty is compared."""
    _fail_over_in_jobs(broker, folder, trials, seed, results, ("30 seconds", GONE))


def silences(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """The same from host to host: no driver sees another one's process, and nothing but the lease tells of its end."""
    _fail_over_in_jobs(broker, folder, trials, seed, results, ("6 seconds", SILENT))


def _fail_over_in_jobs(
    broker: Broker, folder: Path, trials: int, seed: int, results: Results, terms: tuple[str, str]
) -> None:
    draw, schedule = random.Random(seed), failovers_of(seed, trials)
    for begin in range(0, trials, OF_A_JOB):
        job = hard_job(broker, folder / f"failovers-{begin}", draw.randrange(10**6))
        job.lives.program = FAR_AWAY if terms[1] == SILENT else job.lives.program
        try:
            _fail_over_often(job, schedule[begin : begin + OF_A_JOB], results, terms)
            drain(job, results)
        finally:
            job.close()


def _fail_over_often(job: KafkaJob, schedule: Sequence[Failover], results: Results, terms: tuple[str, str]) -> None:
    lease, seen = terms
    in_turn(job, lease, [(each.kind, partial(_fail_over, failover=each, seen=seen)) for each in schedule], results)


def in_turn(
    job: KafkaJob, lease: str, trials: Iterable[tuple[str, Callable[[Pair], dict[str, float]]]], results: Results
) -> None:
    """Each trial, by its kind, with the pair that the one before has left; with a new one behind a promise that was broken."""
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
    """One failover: seconds from the death to the successor's first epoch, and to the next record that a committed reader gets."""
    if failover.standby_dies_s is not None:
        with pair.stand_by():
            time.sleep(failover.standby_dies_s)  # the moment of death is what is random here
    successor = pair.stand_by()
    wait_until_it_says(successor, failover.ready)
    pair.primary.wait_for_events("committed", 1)
    time.sleep(failover.delay_s)  # the moment of death is what is random here
    pair.primary.kill()
    died_s = time.monotonic()
    time.sleep(SETTLE_S)
    figures = _firsts(pair.job.watcher, successor, died_s)
    (took,) = [event for event in successor.events("standby") if event["what"] == "takes over"]
    assert took["why"].startswith(seen), took
    pair.primary = successor
    return figures


def _firsts(watcher: Watcher, successor: Driver, died_s: float) -> dict[str, float]:
    """Seconds from the death. A record may come before the epoch: of what was decided and not published."""
    before, seen = watcher.records, dict[str, float]()

    def look() -> bool:
        after_s = round(time.monotonic() - died_s, 2)
        if successor.events("committed"):
            seen.setdefault("first epoch after s", after_s)
        if watcher.records > before:
            seen.setdefault("first record after s", after_s)
        return len(seen) == 2

    successor.wait_for(look, "an epoch and a record behind the takeover")
    return seen


def paused(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """`trials` leading drivers, each frozen until its standby leads, then woken: it decides nothing, says so and ends."""
    draw, schedule = random.Random(seed), pauses_of(seed, trials)
    for begin in range(0, trials, OF_A_JOB):
        job = hard_job(broker, folder / f"paused-{begin}", draw.randrange(10**6))
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
    """Freeze, wait for the takeover, wake; what the woken driver did that it must not."""
    zombie = pair.primary
    # A publisher that stands still at its point may hold the first epoch back.
    zombie.wait_for(lambda: bool(zombie.events("committed") or (pause.point and frozen(zombie))), "it works")
    time.sleep(pause.delay_s)  # the moment of the freeze is what is random here
    zombie.stop()
    seen = len(zombie.events())
    assert not successor.events("started"), "the standby led before the primary was frozen"
    try:
        successor.wait_for_events(pause.wake, 1)
        time.sleep(pause.wake_s)  # the moment of the awakening is what is random here
        zombie.resume()
        base = successor.events("started")[0]["base"]
        wait_until(
            lambda: zombie.exit_code is not None or bool(_late(zombie.events(), seen, base)), "it ends", STALLED_S
        )
        return judged(zombie.exit_code, zombie.events(), seen, base)
    finally:
        zombie.kill()
        pair.primary = successor


def judged(code: int | None, told: Sequence[Mapping[str, Any]], seen: int, base: int) -> str:
    """What a woken driver did that it must not, if anything. `code`: None if it still runs. `told`: its events, `seen` of them told
    before it was frozen. `base`: the epoch behind which its successor began."""
    if late := _late(told, seen, base):
        return f"{WENT_ON}, which began at epoch {base}: {late}"
    said = [event["condition"] for event in told if event["event"] == "failed"]
    return "" if (code, said) == (FENCED_CODE, ["CKPT_FENCED"]) else f"it ended with {code} and said {said}"


def _late(told: Sequence[Mapping[str, Any]], seen: int, base: int) -> list[Mapping[str, Any]]:
    """What was decided before the takeover, and told behind it, is in the base."""
    return [e for e in told[seen:] if e["event"] in ("committed", "published") and e["epoch"] > base]


def unfenced(broker: Broker, folder: Path, trials: int, seed: int, results: Results) -> None:
    """The campaign's own trial: a primary that commits without looking at the lease is found, each of `trials` times."""
    draw = random.Random(seed)
    for number in range(trials):
        job, found = hard_job(broker, folder / f"unfenced-{number}", draw.randrange(10**6)), ""
        try:
            pair = Pair(job, "6 seconds", {}, UNFENCED)
            pause = Pause("", draw.uniform(0, 1.5), "started", draw.uniform(0, 1))
            with feeding(job.ledger.write, RECORDS_A_FEED):
                found = _pause(pair, pause, pair.stand_by())
            why = "" if found.startswith(WENT_ON) else f"it was not found: {found}"
        except AssertionError as error:
            why = f"it was not tried: {error}"
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


def wait_until_it_says(standby: Driver, what: str) -> None:
    """Until a standby has told so: it waits, follows an epoch, is warm."""
    standby.wait_for(lambda: any(e["what"] == what for e in standby.events("standby")), f"it {what}")
