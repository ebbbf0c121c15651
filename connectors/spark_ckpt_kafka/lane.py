"""The publisher process of one shard: reads requests from stdin, publishes epochs, answers on stdout.

A separate process can be killed when its client hangs, and lets shards use more than one core. It is crash-only: after
a failed attempt, or when its parent is gone, it exits without cleaning up. The init of the next process does the
cleaning.
"""

from __future__ import annotations

import logging
import os
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import BinaryIO

from spark_ckpt.errors import CkptError, PublishFailed
from spark_ckpt_kafka import wire
from spark_ckpt_kafka.control import ControlError
from spark_ckpt_kafka.producer import ProducerFailed
from spark_ckpt_kafka.publishing import LanePublisher

_PROGRESS_EVERY_S = 0.5


class Replies:
    """Writes answers to the parent process. Progress messages are throttled."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._last = 0.0

    def progress(self) -> None:
        """Report progress, at most every 0.5 s."""
        if time.monotonic() - self._last > _PROGRESS_EVERY_S:
            self.send({"progress": True})

    def send(self, message: wire.Message) -> None:
        """Write one message as one line."""
        self._last = time.monotonic()
        self._stream.write(wire.encode(message))
        self._stream.flush()


def main() -> None:
    """Serve requests until stdin closes or an attempt fails."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # failures arrive as errors
    replies = Replies(_private_stdout())
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    publisher = LanePublisher(wire.settings_of(wire.decode(lines.get())), replies.progress)
    while True:
        # Initialise the next producer before its epoch arrives: the init is then not part of the publish.
        _prepare(publisher)
        try:
            line = lines.get(timeout=publisher.idle_s)
        except queue.Empty:
            _idle(publisher)
            continue
        if not _serve(publisher, line, replies, lines):
            # Crash-only: the init of the next process decides an open transaction.
            os._exit(1)


def _serve(publisher: LanePublisher, line: bytes, replies: Replies, lines: queue.SimpleQueue[bytes]) -> bool:
    """Handle one request and answer it. False if this process must not be used again."""

    def verified() -> None:
        replies.send(wire.VERIFIED)
        # The parent answers when the rows of every shard are verified (`gate`).
        if wire.decode(lines.get()) != wire.GO:
            raise ProducerFailed("the publisher asked for something else than to go on")

    try:
        answer = _answer(publisher, wire.decode(line), verified)
    except (CkptError, ProducerFailed) as error:
        replies.send(wire.failure_message(error))
        return False
    replies.send(answer)
    return True


def _answer(publisher: LanePublisher, asked: wire.Message, verified: Callable[[], None]) -> wire.Message:
    try:
        if asked == wire.DROP:
            publisher.drop_ahead()
            return wire.sent_message(0)
        if "ahead" in asked:
            return wire.sent_message(publisher.send_ahead(wire.request_of(asked["ahead"])))
        return wire.published_message(publisher.publish(wire.request_of(asked), verified))
    except ControlError as error:
        raise PublishFailed(error.what, hint=error.hint) from error
    except (CkptError, ProducerFailed):
        raise
    except Exception as error:
        raise ProducerFailed(f"{type(error).__name__}: {error}") from error


def _prepare(publisher: LanePublisher) -> None:
    try:
        publisher.prepare()
    except ProducerFailed:
        return  # the next request tries again and reports what is wrong


def _idle(publisher: LanePublisher) -> None:
    try:
        publisher.idle()
    except (CkptError, ProducerFailed, ControlError) as error:
        print(f"spark_ckpt_kafka: the marker was not refreshed: {error}", file=sys.stderr)


def _read(lines: queue.SimpleQueue[bytes]) -> None:
    """Forward lines from stdin. Exit when the parent closes the pipe or dies."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)


def _private_stdout() -> BinaryIO:
    """Return the pipe to the parent; later prints to standard output go to standard error."""
    stream = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return stream


if __name__ == "__main__":
    main()
