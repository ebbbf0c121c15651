"""A system has answered a topic if its answer is right and stable, or if nothing has changed for long."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from benchmarks.side_by_side.drain import QUIET_S, STUCK_S, Ending
from benchmarks.side_by_side.oracle import Outputs
from benchmarks.side_by_side.timeline import Watch
from benchmarks.side_by_side.usage import Cpu

ANSWER = ['{"auction":123,"price":1}', '{"auction":246,"price":2}']


class Target:
    """End offsets of a topic at some times, and the records before the last one."""

    def __init__(self) -> None:
        self.watch = Watch(lambda: (0,))
        self.records: list[str] = []
        self.reads = 0

    def at(self, moment_s: float, *records: str) -> None:
        self.records += records
        self.watch.moments.append(moment_s)
        self.watch.ends.append((len(self.records),))

    def outputs(self, topic: str) -> list[Outputs]:
        self.reads += 1
        values = pa.chunked_array([pa.array([record.encode() for record in self.records], pa.binary())])
        return [Outputs(values, np.arange(len(self.records)))]


@pytest.fixture
def target() -> Target:
    one = Target()
    one.at(0)
    one.at(1, ANSWER[0])
    return one


@pytest.fixture
def cpu() -> Cpu:
    """CPU of an idle system."""
    return Cpu([0.0, 1000.0], [0.0, 0.0])


@pytest.fixture
def ending(target: Target, cpu: Cpu) -> Ending:
    expected = pd.DataFrame({"auction": [123, 246], "price": [1, 2]})
    subject = SimpleNamespace(job="nexmark_q2", expected=expected, interval_ms=1000)
    return Ending(SimpleNamespace(subject=subject, watch=target.watch, target="target"), target, cpu)


def test_the_target_is_not_read_while_the_system_works(target: Target, ending: Ending, cpu: Cpu) -> None:
    """A batch may take longer than the target's quiet time, and a read then takes a core from the measured system."""
    cpu.used_s[-1] = cpu.moments[-1]
    target.at(1 + QUIET_S * 3)
    assert not ending.is_over()
    assert target.reads == 0


def test_a_pause_with_half_an_answer_is_not_the_end(target: Target, ending: Ending) -> None:
    target.at(1 + QUIET_S * 3)
    assert not ending.is_over()
    target.at(STUCK_S, ANSWER[1])
    target.at(STUCK_S + QUIET_S / 2)
    assert not ending.is_over(), "a duplicate could still come"
    target.at(STUCK_S + QUIET_S * 2)
    assert ending.is_over()


def test_a_stuck_target_ends_the_wait(target: Target, ending: Ending) -> None:
    target.at(STUCK_S)
    assert not ending.is_over()
    target.at(STUCK_S + 2)
    assert ending.is_over()


def test_the_target_is_read_once_per_quiet_time(target: Target, ending: Ending) -> None:
    for moment_s in range(2, 100):
        target.at(moment_s)
        ending.is_over()
    ending.judged()
    assert target.reads == 1
    target.at(100, ANSWER[1])
    ending.judged()
    assert target.reads == 2
