"""NEXMark's queries from Kafka to Kafka, on one broker and in one session. Their output equals a plain computation over the same
events, after any kill.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import benchmarks.systems.spark_ckpt as system
from benchmarks.nexmark.answers import expected, judge
from benchmarks.nexmark.events import Events, events
from benchmarks.side_by_side.environments import Prepared
from benchmarks.side_by_side.processes import Processes
from benchmarks.side_by_side.topics import Topics
from benchmarks.systems import Run, job_module
from integration_tests.broker import Broker
from integration_tests.spark import connected_session
from integration_tests.survival.process import wait_until
from spark_ckpt import failpoints
from spark_ckpt.errors import RunFailed

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),  # kafka-python leaves refused sockets
]

COUNT, INTERVAL_MS, KEY_GROUPS, TIMEOUT_S = 6000, 1000, 4, 120.0
NO_FAULTS = {"duplicates": 0, "missing": 0, "wrong": 0}
HOOKS = ("spark_ckpt_builtin", "spark_ckpt_vectorised", "spark_ckpt_dropin")


@dataclass(frozen=True)
class House:
    """A topic filled with events, and a session."""

    topics: Topics
    source: str
    events: Events
    spark: SparkSession

    def run(self, job: str, folder: Path, source: str = "", way: str = "") -> Run:
        hook = way or next(hook for hook in HOOKS if hasattr(job_module(job), hook))
        target = self.topics.create("out")
        return Run(hook, job, self.topics.servers, source or self.source, target, INTERVAL_MS, str(folder))

    def drained(self, run: Run, key_groups: int | None = KEY_GROUPS) -> None:
        assert system.job(run, self.spark, key_groups=key_groups).start(availableNow=True).awaitTermination(TIMEOUT_S)

    def crashed(self, run: Run, at: str) -> None:
        """Let the driver fail at the failpoint, without cleanup and without a restart, as in a crash."""
        failpoints.arm(at)
        with pytest.raises(RunFailed):
            job = system.job(run, self.spark, key_groups=KEY_GROUPS, max_failed_epochs=0)
            job.start(availableNow=True).awaitTermination(TIMEOUT_S)
        failpoints.arm("")

    def has_output(self, run: Run) -> bool:
        return sum(self.topics.ends(run.target)) > 0

    def faults(self, run: Run) -> dict[str, int]:
        """Faults of all records that are committed in the target."""
        verdict, _ = judge(run.job, self.topics.outputs(run.target), expected(run.job, self.events))
        return {"duplicates": verdict.duplicates, "missing": verdict.missing, "wrong": verdict.wrong}


@pytest.fixture(scope="module")
def house(broker: Broker) -> Iterator[House]:
    topics, made = Topics(broker.servers), events(COUNT, per_second=200)
    source = topics.create("events")
    topics.fill_in_turn(source, made.values())
    for spark in connected_session():
        yield House(topics, source, made, spark)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several small batches, so that state exists between two of them."""
    monkeypatch.setattr(system, "RECORDS_PER_BATCH", COUNT // 3)


@pytest.mark.parametrize(
    ("query", "way"),
    [
        (0, ""), (1, ""), (2, ""), (1, "spark_ckpt_vectorised"), (2, "spark_ckpt_vectorised"),
    ],
)  # fmt: skip
@pytest.mark.long  # in the gate: tests/benchmarks/test_nexmark_answers.py
def test_a_query_without_state_has_the_plain_answer(query: int, way: str, house: House, tmp_path: Path) -> None:
    run = house.run(f"nexmark_q{query}", tmp_path, way=way)

    house.drained(run)

    assert house.faults(run) == NO_FAULTS


@pytest.mark.parametrize(
    ("query", "way"),
    [(3, "spark_ckpt_vectorised"), *((query, "") for query in (3, 4, 5, 7, 8, 11, 18, 19, 20))],
)
@pytest.mark.long  # in the gate: tests/benchmarks/test_nexmark_answers.py, and integration_tests/runtime/test_restarts.py
def test_a_query_that_crashed_between_two_batches_has_the_plain_answer(
    query: int, way: str, house: House, tmp_path: Path
) -> None:
    run = house.run(f"nexmark_q{query}", tmp_path, way=way)

    house.crashed(run, "EPOCH_COMMITTING:raise:2")
    assert house.faults(run)["missing"] > 0, "the crash must leave input to process"
    house.drained(run)

    assert house.faults(run) == NO_FAULTS


@pytest.mark.long
def test_windows_of_the_machines_clock_hold_every_bid_once(house: House, tmp_path: Path) -> None:
    run = house.run("nexmark_q12", tmp_path)

    running = system.job(run, house.spark, key_groups=KEY_GROUPS).start()
    wait_until(lambda: house.faults(run)["missing"] == 0, "every bidder's windows are closed", TIMEOUT_S)
    running.stop()

    assert house.faults(run) == NO_FAULTS


@pytest.mark.long  # in the gate: integration_tests/survival/test_kafka_to_kafka.py
def test_average_prices_are_right_although_the_driver_was_killed(
    house: House, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of its processes are killed with SIGKILL while it works on records that came after its first answer."""
    monkeypatch.delenv("JDK_JAVA_OPTIONS")  # the program sets its own garbage collector
    source = house.topics.create("events")
    run = house.run("nexmark_q4", tmp_path, source)
    values = house.events.values()
    house.topics.fill_in_turn(source, islice(values, COUNT // 2))
    prepared = Prepared(Path(sys.executable), None, (), ())
    processes = Processes(system.SYSTEMS[0], prepared, run, tmp_path)

    processes.start()
    try:
        wait_until(lambda: house.has_output(run) or processes.one_has_ended, "the first answer is committed", TIMEOUT_S)
        assert not processes.one_has_ended, processes.log_tail()
        house.topics.fill_in_turn(source, values, COUNT // 2)
    finally:
        processes.kill()
    house.drained(run, key_groups=None)  # the number of the store

    assert house.faults(run) == NO_FAULTS
