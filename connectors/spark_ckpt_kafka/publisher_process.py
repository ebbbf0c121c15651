"""The process that publishes one shard of a Kafka sink: the driver's handle of it, and the program that it runs.

A separate process can be killed when its client hangs, and lets shards use more than one core. It is crash-only: after
a failed attempt, or when its driver is gone, it exits without cleaning up. The init of the next process does the
cleaning.

Driver and process exchange pickled objects of this package over a `multiprocessing` connection. Settings hold secrets,
so they travel there too, and not on the command line.
"""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from spark_ckpt.errors import CkptError, PublishFailed
from spark_ckpt_kafka.control import ControlError
from spark_ckpt_kafka.producer import ProducerFailed
from spark_ckpt_kafka.publishing import ShardPublisher, ShardRequest, ShardResult, ShardSettings

DROP_S = 5.0
"""Timeout in seconds for aborting early-sent rows; longer than the timeout of the process's client."""
_PROGRESS_EVERY_S = 0.5

Answer = TypeVar("Answer", ShardResult, int)


class Signal(Enum):
    """Messages without content. The process sends `PROGRESS` and `VERIFIED`, the driver `GO` and `DROP`."""

    PROGRESS = "the cluster has acknowledged something"
    VERIFIED = "the rows match the committed manifest; the process waits for GO before it publishes"
    GO = "publish"
    DROP = "abort the early send"


@dataclass(frozen=True, slots=True)
class EarlySend:
    """Request to send the files so far of an uncommitted epoch."""

    request: ShardRequest


class PublisherProcess:
    """The driver's handle. `start` starts the process, also after it ended; one request at a time.

    `stall_s`: a process that is silent for so many seconds is killed.
    """

    def __init__(self, settings: ShardSettings, stall_s: float) -> None:
        self._settings = settings
        self._stall_s = stall_s
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: Connection | None = None

    @property
    def settings(self) -> ShardSettings:
        """Settings that the process starts with."""
        return self._settings

    @property
    def pid(self) -> int | None:
        """Id of the running process, or None."""
        return self._process.pid if self._process and self._process.poll() is None else None

    def kill(self) -> None:
        """Kill the process from another thread. A pending request then fails with `ProducerFailed`."""
        process = self._process
        if process is not None:
            # Not `close`: the thread of the request uses the connection, and learns of the end there.
            process.kill()

    def start(self) -> None:
        """Start the process if it is not running. Does not wait until it is ready."""
        if self.pid is not None:
            return
        self.close()
        # spark-submit adds paths without installing, so that the child needs the parent's import path.
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
        self._connection, other = Pipe()
        with other:  # closed on this side: the end of the process then ends a pending request
            # Not `multiprocessing.Process`: "spawn" runs the job's program again, unless that has a guard.
            self._process = subprocess.Popen(
                [sys.executable, "-c", f"from {__name__} import serve; serve({other.fileno()})"],
                stdin=subprocess.DEVNULL,
                stdout=sys.__stderr__,  # prints of a client library stay out of the driver's output
                pass_fds=[other.fileno()],
                env=environment,
            )
        # The first message: `serve` makes its publisher of it.
        self._send(self._settings)

    def ask(self, request: ShardRequest, verified: Callable[[], None] = lambda: None) -> ShardResult:
        """Publish one epoch and return the result. Raises `ProducerFailed` if another attempt may succeed, as when no
        process runs, else a `CkptError`.

        `verified` is called when the rows match the committed manifest. The rows are published when it returns; if it
        raises, they are not.
        """
        return self._answer(request, ShardResult, self._stall_s, verified)

    def send_early(self, request: ShardRequest) -> int:
        """Send those files of an uncommitted epoch that are not sent yet (early send), and return the number of rows.

        Raises like `ask`.
        """
        return self._answer(EarlySend(request), int, self._stall_s)

    def drop_early_send(self) -> None:
        """Abort the early send, if a process runs that may have sent rows."""
        if self.pid is not None:
            self._answer(Signal.DROP, int, DROP_S)

    def close(self) -> None:
        """Kill the process if there is one. The init of the next process decides its open transaction."""
        process, self._process = self._process, None
        connection, self._connection = self._connection, None
        if process is not None:
            process.kill()
            process.wait()
        if connection is not None:
            connection.close()

    def _answer(
        self, asked: object, kind: type[Answer], stall_s: float, verified: Callable[[], None] = lambda: None
    ) -> Answer:
        self._send(asked)
        while True:
            answer = self._received(stall_s)
            if isinstance(answer, kind):
                return answer
            # `PROGRESS` needs no branch: each message begins the time of the next wait.
            if isinstance(answer, CkptError | ProducerFailed):
                # It is about to exit, and the next request must not reach it: that would fail for another reason.
                self.close()
                raise answer
            if answer is Signal.VERIFIED:
                self._release(verified)

    def _release(self, verified: Callable[[], None]) -> None:
        try:
            verified()
        except BaseException:
            # This includes KeyboardInterrupt: after an early send the waiting process holds a transaction open, and
            # readers wait for its end.
            self.close()  # the process waits for an answer that will not come
            raise
        self._send(Signal.GO)

    def _send(self, message: object) -> None:
        try:
            self._open().send(message)
        except OSError as error:
            raise self._died() from error

    def _received(self, stall_s: float) -> object:
        """Return the next message. Raises `ProducerFailed` when the process ends or is silent for `stall_s` seconds."""
        connection = self._open()
        try:
            # Each message begins the time again: the process reports progress whenever a broker acknowledges
            # something.
            if connection.poll(stall_s):
                return connection.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        self.close()
        raise ProducerFailed(f"the publisher process was silent for {stall_s:.0f} s and was killed")

    def _open(self) -> Connection:
        if self._connection is None:
            raise ProducerFailed("the publisher process was closed")
        return self._connection

    def _died(self) -> ProducerFailed:
        process = self._process
        self.close()
        return ProducerFailed(f"the publisher process ended with code {process.returncode if process else None}")


# -- inside the process --------------------------------------------------------------------------------------------------


class Replies:
    """Sends answers to the driver. Progress messages are throttled."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._last_s = 0.0

    def progress(self) -> None:
        """Report progress, at most every 0.5 s."""
        # A large epoch has thousands of acknowledgements, and each message wakes the driver.
        if time.monotonic() - self._last_s > _PROGRESS_EVERY_S:
            self.send(Signal.PROGRESS)

    def send(self, message: object) -> None:
        """Send one message."""
        self._last_s = time.monotonic()
        self._connection.send(message)


def serve(descriptor: int) -> None:
    """Serve requests until the driver closes the connection or an attempt fails. `descriptor`: of the connection."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # failures arrive as errors
    connection = Connection(descriptor)
    replies, asked = Replies(connection), queue.SimpleQueue[Any]()
    # A thread reads the connection, so that a process also notices the end of its driver while it publishes.
    threading.Thread(target=_receive, args=(connection, asked), daemon=True).start()
    publisher = ShardPublisher(asked.get(), replies.progress)
    while True:
        # Initialise the next producer before its epoch arrives: the init is then not part of the publish.
        publisher.prepare()
        try:
            request = asked.get(timeout=publisher.idle_s)
        except queue.Empty:
            _idle(publisher)
            continue
        if not _serve(publisher, request, replies, asked):
            # Crash-only: the init of the next process decides an open transaction.
            os._exit(1)


def failure_of(error: CkptError | ProducerFailed) -> CkptError | ProducerFailed:
    """Return the error with a context of texts, as the driver receives it."""
    if isinstance(error, CkptError):
        # A context may have values that cannot be pickled, and an error that does not arrive would look like a crash.
        error.context = {name: str(value) for name, value in error.context.items()}
    return error


def _serve(publisher: ShardPublisher, request: object, replies: Replies, asked: queue.SimpleQueue[Any]) -> bool:
    """Handle one request and answer it. False if this process must not be used again."""

    def verified() -> None:
        replies.send(Signal.VERIFIED)
        # The driver answers when the rows of every shard are verified (`Gate`).
        # This wait needs no limit: `_receive` ends the process when the driver is gone.
        if asked.get() is not Signal.GO:
            raise ProducerFailed("the driver sent another message than GO")

    try:
        answer = _handled(publisher, request, verified)
    except (CkptError, ProducerFailed) as error:
        replies.send(failure_of(error))
        return False
    replies.send(answer)
    return True


def _handled(publisher: ShardPublisher, request: object, verified: Callable[[], None]) -> ShardResult | int:
    try:
        match request:
            case Signal.DROP:
                publisher.drop_early_send()
                return 0
            case EarlySend(files):
                return publisher.send_early(files)
            case ShardRequest():
                return publisher.publish(request, verified)
    except ControlError as error:
        if error.retriable:
            raise ProducerFailed(error.what, hint=error.hint) from error
        raise PublishFailed(error.what, hint=error.hint) from error
    except (CkptError, ProducerFailed):
        raise
    except Exception as error:
        raise ProducerFailed(f"{type(error).__name__}: {error}") from error
    raise ProducerFailed(f"the publisher asked for {request!r}")


def _idle(publisher: ShardPublisher) -> None:
    try:
        publisher.idle()
    except (CkptError, ProducerFailed, ControlError) as error:
        # Not over the connection: the driver would take the error for the answer to its next request.
        print(f"spark_ckpt_kafka: the marker was not refreshed: {error}", file=sys.stderr)


def _receive(connection: Connection, asked: queue.SimpleQueue[Any]) -> None:
    """Forward messages. Exit when the driver closes the connection or dies, also within a publish."""
    try:
        while True:
            asked.put(connection.recv())
    finally:
        # `sys.exit` would end this thread only.
        os._exit(0)
