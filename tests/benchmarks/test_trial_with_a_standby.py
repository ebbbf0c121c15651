"""A system with a warm standby is started twice; a kill ends the first, and no other is started after it."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks.side_by_side import usage
from benchmarks.side_by_side.environments import Prepared
from benchmarks.side_by_side.throughput import checkpoint_times
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


def test_a_kill_ends_the_first_and_the_standby_continues_alone(tmp_path):
    with trial(subject(lambda folder: (Path(folder) / "warm").exists()), TOPICS, tmp_path) as one:
        started(one)
        one.start_standby()
        assert living(one) == [1, 1]
        one.processes.kill()
        one.continue_after_kill()
        assert living(one) == [0, 1]
        one.kill()
        assert living(one) == [0, 0]
    assert list(tmp_path.iterdir()) == []


def test_a_system_without_one_is_started_again(tmp_path):
    with trial(subject(), TOPICS, tmp_path) as one:
        started(one)
        one.start_standby()
        one.processes.kill()
        one.continue_after_kill()
        assert (one.standby, len(one.processes.sessions)) == (None, 1)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_trial_leaves_no_process(tmp_path):
    with pytest.raises(RuntimeError), trial(subject(lambda _: True), TOPICS, tmp_path) as one:
        started(one)
        one.start_standby()
        sessions = [*one.processes.sessions, *one.standby.sessions]
        raise RuntimeError
    assert usage.processes(sessions) == []


@pytest.mark.parametrize(
    ("took_s", "shown"),
    [
        ([(1, 9.0), (20, 4.0), (30, 6.0)], {"checkpoint_s": 5.0, "checkpoint_most_s": 6.0}),
        ([(1, 9.0), (2, 8.0)], {"checkpoint_s": 8.0, "checkpoint_most_s": 8.0}),
        ([], {}),
    ],
    ids=["after the warm-up", "none since: the last one", "none"],
)
def test_durations_of_checkpoints_come_from_the_system_that_records_them(tmp_path, took_s, shown):
    system = replace(
        subject().system, checkpoints_s=lambda folder, since: [each for began, each in took_s if began >= since]
    )
    one = SimpleNamespace(subject=SimpleNamespace(system=system), state=tmp_path)
    assert checkpoint_times(one, 10) == shown


def test_a_system_that_keeps_no_checkpoints_is_not_asked(tmp_path):
    assert checkpoint_times(SimpleNamespace(subject=subject(), state=tmp_path), 0) == {}
