"""A driver and its publisher process exchange messages; the end or the silence of either side ends a request."""

from __future__ import annotations

import itertools
import os
import pickle
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest
from spark_ckpt_kafka import publisher_process
from spark_ckpt_kafka.options import Connection as Brokers
from spark_ckpt_kafka.options import Tuning
from spark_ckpt_kafka.producer import ProducerFailed
from spark_ckpt_kafka.publisher import KafkaPublisher, PublishPatience
from spark_ckpt_kafka.publisher_process import PublisherProcess, Replies, Signal, failure_of
from spark_ckpt_kafka.publishing import ShardRequest, ShardResult, ShardSettings
from spark_ckpt_kafka.rows import StagedPart

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import EpochOutput
from spark_ckpt.content import damaged
from spark_ckpt.errors import CkptError, EpochDamaged, PublishConflict, PublishFailed

SETTINGS = ShardSettings(Brokers("127.0.0.1:1", {"sasl.password": "secret"}), Tuning(), "s", "out", 0, "t", "t", False)
REQUEST = ShardRequest(7, 4, 2, (5, 6), 3, "/root", {"k": "v"}, [StagedPart("a.parquet", 5, 9, "d")], newest=9)


def sent(message: object) -> object:
    """Return the message as the other side receives it."""
    here, there = Pipe()
    with here, there:
        here.send(message)
        return there.recv()


@pytest.mark.parametrize("message", [SETTINGS, REQUEST, ShardResult(5, replayed=False, parts_ms={"send": 4}), *Signal])
def test_messages_arrive_as_they_were_sent(message: object) -> None:
    assert sent(message) == message


def test_a_result_arrives_with_the_times_of_its_parts() -> None:
    received = sent(ShardResult(5, replayed=False, parts_ms={"init": 3}))
    assert isinstance(received, ShardResult)
    assert received.parts_ms == {"init": 3}


@pytest.mark.parametrize(
    "error", [EpochDamaged("gone", hint="restore", path=Path("p")), PublishConflict("whose?", hint="ask", lane=1)]
)
def test_an_error_for_the_operator_arrives_with_hint_and_context(error: CkptError) -> None:
    received = sent(failure_of(error))
    assert type(received) is type(error)
    assert str(received) == str(error)


def test_damage_arrives_with_the_name_of_the_file() -> None:
    received = sent(failure_of(damaged("1-0.parquet", "is missing")))
    assert isinstance(received, EpochDamaged)
    assert received.damaged_file == "1-0.parquet"


def test_a_failed_attempt_arrives_with_its_reason() -> None:
    received = sent(failure_of(ProducerFailed("x", fenced=True, hint="h", refusal="record", key="t/0, key b'k'")))
    assert isinstance(received, ProducerFailed)
    assert (received.what, received.fenced, received.hint) == ("x", True, "h")
    assert (received.refusal, received.key) == ("record", "t/0, key b'k'")


def test_secrets_are_not_on_the_command_line(process: PublisherProcess) -> None:
    assert b"secret" in pickle.dumps(SETTINGS)
    assert b"secret" not in Path(f"/proc/{process.pid}/cmdline").read_bytes()


def test_a_process_killed_within_a_request_fails_the_attempt_and_the_next_request_starts_another(
    process: PublisherProcess,
) -> None:
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGSTOP)  # it must not answer before it is killed
    killer = threading.Timer(0.2, os.kill, (first, signal.SIGKILL))
    killer.start()

    with pytest.raises(ProducerFailed, match="-9"):
        process.ask(REQUEST)

    killer.join()
    process.start()
    assert process.pid not in (None, first)


class Failing:
    """A process that reports a failure and takes its time to exit."""

    started: ClassVar[list[Failing]] = []

    def __init__(self, arguments: object, *, pass_fds: Sequence[int], **named: object) -> None:
        self.pid, self.code, self.connection = len(self.started) + 1, None, Connection(os.dup(pass_fds[0]))
        self.started.append(self)
        threading.Thread(target=self._fail).start()

    def _fail(self) -> None:
        with suppress(EOFError, OSError):
            self.connection.recv(), self.connection.recv()
            self.connection.send(ProducerFailed("taken over", fenced=True))

    def poll(self) -> int | None:
        return self.code

    def kill(self) -> None:
        self.code = -9
        self.connection.close()

    def wait(self) -> None:
        pass


def test_a_request_after_a_failure_starts_another_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one still exits: its end would count as the reason, and not that another driver took over."""
    monkeypatch.setattr(subprocess, "Popen", Failing)
    process = PublisherProcess(SETTINGS, 30)
    for number in (1, 2):
        process.start()
        with pytest.raises(ProducerFailed, match="taken over"):
            process.ask(REQUEST)
        assert len(Failing.started) == number
        assert process.pid is None


def test_a_frozen_process_is_killed_after_the_bound_of_its_silence(frozen: PublisherProcess) -> None:
    pid = frozen.pid
    with pytest.raises(ProducerFailed, match="silent"):
        frozen.ask(REQUEST)
    assert frozen.pid is None
    assert not Path(f"/proc/{pid}").exists()


def test_a_publisher_that_stops_right_before_its_request_starts_no_process() -> None:
    """It would fence the publisher of the next incarnation."""

    class Stopped(PublisherProcess):
        def start(self) -> None:
            starts.append(self.pid)
            super().start()

        def ask(self, request: ShardRequest, verified: Callable[[], None] = lambda: None) -> ShardResult:
            publisher.give_up()
            self.close()  # waits until the killed process is dead
            return super().ask(request, verified)

    starts: list[int | None] = []
    publisher = KafkaPublisher(SETTINGS, 1, 1, PublishPatience(stall_s=0.3), Stopped)
    starts.clear()
    output = EpochOutput(Epoch(3), Incarnation(1), Epoch(2), "/root", {}, ())

    with pytest.raises(PublishFailed):
        publisher.publish(output)

    assert None not in starts
    assert publisher.pids() == [None]


@pytest.fixture
def make() -> Iterator[Callable[[float], PublisherProcess]]:
    made: list[PublisherProcess] = []

    def started(stall_s: float) -> PublisherProcess:
        process = PublisherProcess(SETTINGS, stall_s)
        made.append(process)
        process.start()
        return process

    yield started
    for each in made:
        each.close()


@pytest.fixture
def process(make: Callable[[float], PublisherProcess]) -> PublisherProcess:
    """Return a process whose brokers do not exist."""
    return make(60.0)


@pytest.fixture
def frozen(make: Callable[[float], PublisherProcess]) -> PublisherProcess:
    process = make(0.3)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    return process


def test_progress_is_reported_at_most_every_half_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now_ms = itertools.count(10_000)
    monkeypatch.setattr(publisher_process, "time", SimpleNamespace(monotonic=lambda: next(now_ms) / 1000))
    here, there = Pipe()
    with here, there:
        replies = Replies(there)
        for _ in range(1200):  # each takes a millisecond
            replies.progress()
        assert _received(here) == [Signal.PROGRESS] * 3


def _received(connection: Connection) -> list[object]:
    messages: queue.SimpleQueue[object] = queue.SimpleQueue()
    while connection.poll(0):
        messages.put(connection.recv())
    return [messages.get() for _ in range(messages.qsize())]
