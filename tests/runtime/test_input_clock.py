"""Keys of a join time out only after the job has read every earlier row of its inputs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from spark_ckpt.driver.input_clock import InputClock
from spark_ckpt.errors import SourceInvalid


@dataclass
class Counted:
    """A source whose rows are counted."""

    rows: int = 0
    fails: bool = False

    def end(self, spark: object) -> dict[str, int]:
        if self.fails:
            raise SourceInvalid("no answer")
        return {"n": self.rows}

    def reached(self, cursor: dict[str, int], end: dict[str, int]) -> bool:
        return cursor["n"] >= end["n"]


@dataclass
class Endless(Counted):
    endless: str = "nobody knows its end"


@dataclass
class Bench:
    """A clock that advances in steps of 100 ms; `sent` has the times that its tasks received."""

    sources: dict[str, Any]
    edges: int = 0
    sent: list[int] = field(default_factory=list)
    now_ms: int = 0

    def __post_init__(self) -> None:
        context = SimpleNamespace(setLocalProperty=lambda _, text: self.sent.append(int(text)))
        spark: Any = SimpleNamespace(sparkContext=context)
        self.clock = InputClock(spark, self.sources, self.edges, 0.1, self._tick)
        self.batch = 0

    def _tick(self) -> int:
        self.now_ms += 100
        return self.now_ms

    def run(self, **read: int) -> int:
        """Run a batch that reads up to these rows; return the clock of its tasks."""
        self.clock.batch_begins(self.batch)
        self.clock.batch_ended({name: {"n": rows} for name, rows in read.items()})
        self.batch += 1
        return self.sent[-1]


def test_the_clock_waits_until_the_rows_of_the_start_are_read():
    bench = Bench({"left": Counted(1), "right": Counted(2)})
    bench.clock.ask()
    assert [bench.run(left=1, right=rows) for rows in (0, 1, 2, 2)] == [0, 0, 0, 100]
    assert [bench.clock.ran_in(batch) for batch in range(5)] == [False, False, False, True, True]


def test_rows_that_come_later_hold_the_clock_at_the_time_of_the_last_end_that_was_reached():
    right = Counted(1)
    bench = Bench({"right": right})
    bench.clock.ask()
    bench.run(right=1)
    right.rows = 5
    bench.clock.ask()
    assert [bench.run(right=rows) for rows in (3, 4, 5, 5)] == [100, 100, 100, 200]


def test_a_row_has_time_to_pass_every_edge():
    bench = Bench({"right": Counted(1)}, edges=2)
    bench.clock.ask()
    assert [bench.run(right=1) for _ in range(4)] == [0, 0, 0, 100]


def test_an_endless_source_counts_as_read():
    bench = Bench({"left": Counted(1), "right": Endless(9)})
    bench.clock.ask()
    assert [bench.run(left=1, right=0) for _ in range(2)] == [0, 100]


def test_a_source_that_does_not_answer_ends_the_start_and_later_holds_the_clock():
    right = Counted(fails=True)
    bench = Bench({"right": right})
    with pytest.raises(SourceInvalid):
        bench.clock.begin()
    right.fails = False
    bench.clock.begin()
    assert [bench.run(right=0) for _ in range(2)] == [0, 200]
    bench.clock.close()
    bench.clock.join(10)
    assert not bench.clock.is_alive()


def test_the_clock_continues_after_any_error_of_a_source() -> None:
    class Breaks(Counted):
        def end(self, spark: object) -> dict[str, int]:
            asked.release()
            raise ConnectionResetError

    asked = threading.Semaphore(0)
    bench = Bench({"right": Breaks()})
    bench.clock.start()
    assert asked.acquire(timeout=30)
    assert asked.acquire(timeout=30)
    bench.clock.close()
