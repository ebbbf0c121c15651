"""A system that waits for its own end is started twice; a kill takes the first, and nothing is started behind it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.side_by_side import usage
from benchmarks.side_by_side.environments import Prepared
from benchmarks.side_by_side.trial import Subject, Trial, trial
from benchmarks.systems import Environment, System

TOPICS = SimpleNamespace(servers="", create=lambda prefix: prefix, delete=lambda target: None, ends=lambda target: (0,))


def subject(has_warm_standby=None) -> Subject:
    system = System(
        "waiting", "waiting", "hook", "exactly-once", Environment("here"), "tests.benchmarks.waiting_program",
        has_warm_standby=has_warm_standby,
    )  # fmt: skip
    return Subject(system, Prepared(Path(sys.executable), None, (), ()), "job", "source", None, None, 1000)


def living(one: Trial) -> list[int]:
    each = [processes for processes in (one.processes, one.standby) if processes is not None]
    return [len(usage.processes(processes.sessions)) for processes in each]


def started(one: Trial) -> None:
    one.start()
    deadline_s = time.monotonic() + 60
    while not (one.state / "leads").exists():
        assert time.monotonic() < deadline_s


def test_a_kill_takes_the_first_and_the_standby_goes_on_alone(tmp_path):
    with trial(subject(lambda folder: (Path(folder) / "warm").exists()), TOPICS, tmp_path) as one:
        started(one)
        one.start_standby()
        assert living(one) == [1, 1]
        one.processes.kill()
        one.go_on()
        assert living(one) == [0, 1]
        one.kill()
        assert living(one) == [0, 0]
    assert list(tmp_path.iterdir()) == []


def test_a_system_without_one_is_started_again(tmp_path):
    with trial(subject(), TOPICS, tmp_path) as one:
        started(one)
        one.start_standby()
        one.processes.kill()
        one.go_on()
        assert (one.standby, len(one.processes.sessions)) == (None, 1)
    assert list(tmp_path.iterdir()) == []


def test_whatever_fails_nothing_is_left_behind(tmp_path):
    with pytest.raises(RuntimeError), trial(subject(lambda _: True), TOPICS, tmp_path) as one:
        started(one)
        one.start_standby()
        sessions = [*one.processes.sessions, *one.standby.sessions]
        raise RuntimeError
    assert usage.processes(sessions) == []
