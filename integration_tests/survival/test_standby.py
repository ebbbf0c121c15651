"""A standby of a real driver: it takes over when the driver is killed, when it is silent, and on request."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration_tests.campaign.hard_input import feeding
from integration_tests.survival import driver as program
from integration_tests.survival.driver import Events
from integration_tests.survival.job import KafkaJob
from integration_tests.survival.process import STALLED_S, Driver, Life, Lives, wait_until
from spark_ckpt.cli.app import exit_code
from spark_ckpt.store import holder

pytestmark = [pytest.mark.kafka, pytest.mark.kill]
RECORDS, FEED, TURNS = 4_000, 200, 3
STANDBY = ("--standby", "--lease", "6 seconds")


class StandbyHere(Life):
    """A standby on the session of the test's own process, which saves the start of another Java."""

    def __init__(self, lives: Lives, spark: SparkSession) -> None:
        super().__init__(lives.next_folder())
        lives.drivers.append(self)
        self._events = Events(self.events_file)
        options = program.parsed([*lives.arguments, *STANDBY, "--events", str(self.events_file)])
        job = program.described(spark, options)
        job.addListener(self._events)
        self.run = job.start()

    def waits_warm(self) -> None:
        wait_until(lambda: self.said("is warm"), "the standby is warm")

    def said(self, what: str) -> list[dict[str, object]]:
        return [event for event in self.events("standby") if event["what"] == what]

    def leads(self) -> None:
        wait_until(lambda: bool(self.events("committed")), "the standby's first epoch")

    def finish(self, job: KafkaJob) -> None:
        """Wait until everything is published, stop, and compare the output."""
        wait_until(lambda: job.watcher.records == job.ledger.records, "everything is published")
        assert self.run.stop(60)
        job.check_exact()

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.run.stop(60)
        self._events.close()


@contextlib.contextmanager
def standby_here(job: KafkaJob, spark: SparkSession) -> Iterator[StandbyHere]:
    with contextlib.closing(StandbyHere(job.lives, spark)) as standby:
        assert standby.run.isStandby
        standby.waits_warm()
        yield standby


def maintenance(life: Life, what: str) -> list[dict[str, Any]]:
    return [event for event in life.events("maintenance") if event["what"] == what]


def done(life: Life) -> list[int]:
    """Epochs up to which its maintenance went, in order."""
    return [event["epoch"] for event in maintenance(life, "done")]


def settled(job: KafkaJob) -> list[int]:
    """Epochs in the operator's table, in order, by the table's own log, without the library."""
    commits = sorted((job.store / "state" / "sums" / "_delta_log").glob("*.json"))
    actions = [json.loads(line) for commit in commits for line in commit.read_text().splitlines()]
    return [action["txn"]["version"] & (1 << 40) - 1 for action in actions if "txn" in action]


def levels_shared(job: KafkaJob) -> bool:
    """True if a standby on this host shares level files of the driver."""
    levels = job.store.parent.glob("spark-ckpt-*/standby-*/*/*.level")
    with contextlib.suppress(FileNotFoundError):  # a file that was compacted meanwhile
        return any(level.stat().st_nlink > 1 for level in levels)
    return False


def in_order(one: Driver, other: Driver) -> tuple[Driver, Driver]:
    """The primary and its standby: of two drivers that start at once, either may hold the lease first."""
    wait_until(lambda: bool(one.events("started") or other.events("started")), "one of two leads", STALLED_S)
    return (one, other) if one.events("started") else (other, one)


def warm(driver: Driver) -> None:
    driver.wait_for(lambda: any(e["what"] == "is warm" for e in driver.events("standby")), "the standby is warm")


@pytest.mark.long
def test_standbys_take_over_when_one_driver_after_the_other_is_killed(
    job: KafkaJob, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first kill is noticed by the missing process, the second, as on another host, only by the lease."""
    job.ledger.write(RECORDS)
    with job.lives.start(*STANDBY) as one, job.lives.start(*STANDBY) as other:
        first, second = in_order(one, other)
        first.wait_for_events("published", 1)
        warm(second)
        with feeding(job.ledger.write, FEED):
            first.kill()
            second.wait_for_events("committed", 1)
            (took,) = [event for event in second.events("standby") if event["what"] == "takes over"]
            assert took["why"] == "the process that held it is gone"

        monkeypatch.setattr(holder, "boot_id", lambda: "another kernel")
        with standby_here(job, spark) as third:
            with feeding(job.ledger.write, FEED):
                second.kill()
                third.leads()
            (took,) = third.said("takes over")
            assert took["why"] == "not renewed for its 6000 ms"
            third.finish(job)
    lives: list[Life] = [first, second, third]
    assert [event["incarnation"] for life in lives for event in life.events("started")] == [1, 2, 3]


@pytest.mark.long  # in the gate: test_zombie.py, and tests/coordination/test_standby.py
def test_a_driver_that_was_paused_past_the_takeover_never_commits_again(job: KafkaJob, spark: SparkSession) -> None:
    job.ledger.write(RECORDS)
    with job.lives.start(*STANDBY) as zombie:
        zombie.wait_for_events("published", 1)
        with standby_here(job, spark) as successor:
            with feeding(job.ledger.write, FEED):
                wait_until(lambda: levels_shared(job), "the standby has levels of the driver's")
                committed = len(zombie.events("committed"))
                zombie.wait_for_events("committed", committed + 1)
                zombie.stop()
                seen = len(zombie.events())
                successor.leads()
                zombie.resume()
                assert zombie.wait_for_end() == 4, zombie.log()
            assert [event["condition"] for event in zombie.events("failed")] == ["CKPT_FENCED"], zombie.log()
            assert not [event for event in zombie.events()[seen:] if event["event"] == "committed"]
            successor.finish(job)


@pytest.mark.long
def test_a_standby_does_the_maintenance_until_it_is_killed_and_then_the_driver_does(
    job: KafkaJob, spark: SparkSession
) -> None:
    job.ledger.write(RECORDS)
    with contextlib.closing(StandbyHere(job.lives, spark)) as primary:
        primary.leads()
        with job.lives.start(*STANDBY) as standby, feeding(job.ledger.write, FEED):
            standby.wait_for(lambda: len(done(standby)) >= TURNS, "some turns of maintenance")
            turns = done(standby)
            assert {epoch for epoch in settled(job) if turns[0] <= epoch <= turns[-1]} == set(turns)
            standby.kill()
            wait_until(lambda: bool(maintenance(primary, "revoked")), "the driver takes the maintenance back")
            newest = max(done(standby))
            wait_until(lambda: max(settled(job)) > newest, "the driver settles later epochs")
        assert {event["standby"] for event in maintenance(primary, "leased")} == {
            event["standby"] for event in maintenance(standby, "done")
        }
        primary.finish(job)


@pytest.mark.long
def test_a_handover_ends_the_driver_in_order_and_the_standby_takes_over(
    job: KafkaJob, spark: SparkSession, capsys: pytest.CaptureFixture[str]
) -> None:
    job.ledger.write(RECORDS)
    with job.lives.start(*STANDBY) as first:
        first.wait_for_events("published", 1)
        assert exit_code(["handover", str(job.store)]) == 4, "no standby waits"
        assert "no standby waits" in capsys.readouterr().err
        with standby_here(job, spark) as second:
            with feeding(job.ledger.write, FEED):
                assert exit_code(["handover", str(job.store), "--json"]) == 0
                first.check_ended_well()
            answer = json.loads(capsys.readouterr().out)
            print(f"gap {answer['gap_s']} s")
            assert answer["incarnation"] == 2
            assert (
                first.events("committed")[-1]["epoch"] == answer["final_epoch"] == second.events("started")[0]["base"]
            )
            second.finish(job)
