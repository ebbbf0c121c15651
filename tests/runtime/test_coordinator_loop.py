"""The coordinator's thread: events in order, timers in order of time, an error ends it through `failed`."""

from __future__ import annotations

import queue
import threading
import time
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from checkpoint_protocols.machine import Effect, Event
from spark_ckpt.driver import coordinator
from spark_ckpt.driver.coordinator import CoordinatorLoop

WAIT_S = 120


@dataclass(frozen=True)
class Said(Event):
    word: str


@dataclass(frozen=True)
class Do(Effect):
    word: str


class Echo:
    """Every event is one effect; the word "twice" is two."""

    def __init__(self):
        self.threads = set()

    def handle(self, event, now_ms):
        self.threads.add(threading.current_thread().name)
        return [Do(event.word)] * (2 if event.word == "twice" else 1)


class Bench:
    def __init__(self):
        self.machine, self.done, self.errors = Echo(), queue.Queue(), queue.Queue()
        self.loop = CoordinatorLoop(self.machine, self.deed, self.errors.put)

    def deed(self, effect):
        if effect.word == "fail":
            raise ValueError("deed")
        self.done.put(effect.word)

    def words(self, count):
        return [self.done.get(timeout=WAIT_S) for _ in range(count)]


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    if bench.loop.is_alive():
        bench.loop.close()
        bench.loop.join(WAIT_S)
    assert not bench.loop.is_alive()


def test_events_are_handled_in_order_on_one_thread(bench):
    bench.loop.start()
    for word in ("a", "twice", "b"):
        bench.loop.post(Said(word))
    assert bench.words(4) == ["a", "twice", "twice", "b"]
    assert bench.machine.threads == {"ckpt-coordinator"}


def test_a_posted_call_runs_on_the_thread_between_events(bench):
    bench.loop.post(Said("before"))
    bench.loop.post(lambda: bench.loop.handle(Said(threading.current_thread().name)))
    bench.loop.post(Said("after"))
    bench.loop.start()
    assert bench.words(3) == ["before", "ckpt-coordinator", "after"]


def test_timers_fire_in_order_of_their_time_not_of_their_setting(bench, monkeypatch):
    def set_all():
        with monkeypatch.context() as standing:  # a pause between two settings would change their order
            now_s = time.monotonic()
            standing.setattr(coordinator, "time", SimpleNamespace(monotonic=lambda: now_s))
            for delay_ms, word in ((30, "third"), (10, "first"), (20, "second")):
                bench.loop.set_timer(delay_ms, Said(word))

    bench.loop.post(set_all)
    bench.loop.start()
    assert bench.words(3) == ["first", "second", "third"]


def test_a_timer_may_be_a_call(bench):
    bench.loop.post(lambda: bench.loop.set_timer(1, lambda: bench.done.put("called")))
    bench.loop.start()
    assert bench.words(1) == ["called"]


def test_a_timer_is_not_early(bench):
    bench.loop.post(lambda: bench.loop.set_timer(10_000_000, Said("never")))
    bench.loop.post(Said("now"))
    bench.loop.start()
    assert bench.words(1) == ["now"]
    assert bench.done.empty()


def test_a_flood_of_events_delays_no_timer(bench):
    """A loop that checks its timers only when idle would never fire here: every effect posts the next event."""
    count, enough = 0, 1_000_000

    def again():
        nonlocal count
        count += 1
        if bench.done.empty() and count < enough:
            bench.loop.post(again)

    bench.loop.post(lambda: bench.loop.set_timer(20, Said("fired")))
    bench.loop.post(again)
    bench.loop.start()
    assert bench.words(1) == ["fired"]
    assert count < enough, "the timer waited for the end of the flood"


def test_an_answer_that_comes_during_effects_is_handled_right_after_them(bench):
    def deed(effect):
        if effect.word == "twice":
            bench.loop.handle(Said("answer"))
        bench.done.put(effect.word)

    bench.loop = CoordinatorLoop(bench.machine, deed, bench.errors.put)
    bench.loop.post(Said("twice"))
    bench.loop.post(Said("next"))
    bench.loop.start()
    assert bench.words(5) == ["twice", "twice", "answer", "answer", "next"]


@pytest.mark.parametrize("item", [Said("fail"), lambda: 1 / 0])
def test_an_error_ends_the_thread_through_failed(bench, item):
    bench.loop.post(item)
    bench.loop.post(Said("never"))
    bench.loop.start()
    bench.loop.join(WAIT_S)
    assert not bench.loop.is_alive()
    assert isinstance(bench.errors.get(timeout=WAIT_S), ValueError | ZeroDivisionError)
    assert (bench.errors.empty(), bench.done.empty()) == (True, True)


def test_an_error_in_a_timer_ends_it_too(bench):
    bench.loop.post(lambda: bench.loop.set_timer(1, Said("fail")))
    bench.loop.start()
    assert isinstance(bench.errors.get(timeout=WAIT_S), ValueError)


def test_closing_ends_it_after_what_was_posted(bench):
    bench.loop.post(Said("posted"))
    bench.loop.close()
    bench.loop.post(Said("too late"))
    bench.loop.start()
    bench.loop.join(WAIT_S)
    assert bench.words(1) == ["posted"]
    assert bench.done.empty()
    assert bench.errors.empty()
