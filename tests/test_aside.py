"""A listener that waits for a network does not block the job."""

from __future__ import annotations

import logging
import threading

from spark_ckpt.events.listener import (
    EpochEvent,
    IncarnationEvent,
    LagEvent,
    LineEvent,
    MaintenanceEvent,
    OutageEvent,
    ProgressEvent,
    RetryEvent,
    RunListener,
    StandbyEvent,
)
from spark_ckpt.observability.aside import Aside

WAIT_S = 120
EPOCH = EpochEvent("job", 1, 1, {})
LIFE = IncarnationEvent("job", 1, 0, "latest")
EVENTS = {
    "onIncarnationStarted": LIFE,
    "onProgress": ProgressEvent("job", 1, 1, {}),
    "onPhases": ProgressEvent("job", 1, 1, {}),
    "onLag": LagEvent("job", {}),
    "onLines": LineEvent("job", {"job": 7}),
    "onEpochCommitted": EPOCH,
    "onEpochAborted": EPOCH,
    "onEpochPublished": EPOCH,
    "onRetry": RetryEvent("outbox", 1, 1, "gold", "CKPT_PUBLISH_FAILED", "away", 2, 200),
    "onOutage": OutageEvent("job", 1, "CKPT_STORE_FULL", "full", 1, 1, 1, 1),
    "onOutageOver": OutageEvent("job", 1, "CKPT_STORE_FULL", "full", 1, 1, 1, 1),
    "onStandby": StandbyEvent("job", "waits", 1, 0, "a driver", ""),
    "onMaintenance": MaintenanceEvent("job", "leased", 7, "standby-1"),
    "onHandover": LIFE,
    "onIncarnationEnded": LIFE,
}


class Slow(RunListener):
    def __init__(self):
        self.received, self.free, self.began = [], threading.Event(), threading.Event()

    def __getattribute__(self, name):
        if not name.startswith("on"):
            return super().__getattribute__(name)

        def hear(event):
            self.began.set()
            assert self.free.wait(WAIT_S)
            self.received.append((name, event))
            if name == "onLag":
                raise ConnectionError("the catalogue is away")

        return hear


def test_every_kind_of_event_is_passed_on_in_order_and_an_error_ends_nothing():
    listener = Slow()
    aside = Aside(listener)
    aside.start()
    listener.free.set()
    for name, event in EVENTS.items():
        getattr(aside, name)(event)
    assert aside.drained(WAIT_S)
    assert listener.received == list(EVENTS.items())
    assert {name for name in vars(RunListener) if name.startswith("on")} == EVENTS.keys()


def test_a_slow_listener_does_not_block_and_loses_events_above_the_limit(caplog):
    listener = Slow()
    aside = Aside(listener, most=2)
    aside.start()
    aside.onLag(EVENTS["onLag"])
    assert listener.began.wait(WAIT_S)
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            aside.onEpochCommitted(EPOCH)
    listener.free.set()
    assert aside.drained(WAIT_S)
    assert [name for name, _ in listener.received].count("onEpochCommitted") == 2
    assert "events left out" in caplog.text


def test_events_before_the_end_are_delivered_before_the_run_is_over():
    listener = Slow()
    listener.free.set()
    aside = Aside(listener)
    aside.onIncarnationStarted(LIFE)
    aside.start()
    aside.onIncarnationEnded(LIFE)
    aside.close()
    assert [name for name, _ in listener.received] == ["onIncarnationStarted", "onIncarnationEnded"]


def test_a_closed_listener_leaves_no_thread():
    before = set(threading.enumerate())
    listener = Slow()
    listener.free.set()
    aside = Aside(listener)
    aside.start()
    (thread,) = set(threading.enumerate()) - before
    aside.close()
    thread.join(WAIT_S)
    assert not thread.is_alive()


def test_closing_a_listener_that_never_started_does_not_wait():
    Aside(Slow()).close()
