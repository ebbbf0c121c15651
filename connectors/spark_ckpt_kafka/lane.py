"""The process of one lane: reads epochs from stdin, publishes them, answers on stdout.

It is a process of its own so that a hung client can be killed, and lanes use more than one core.  It is
crash-only: after a failed attempt, and when its parent is gone, it ends without cleaning up; the next
process's init does that.
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
    """The way back to the publisher. Progress lines are thinned out."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._last = 0.0

    def progress(self) -> None:
        """Say that something moved."""
        if time.monotonic() - self._last > _PROGRESS_EVERY_S:
            self.send({"progress": True})

    def send(self, message: wire.Message) -> None:
        """Write one line."""
        self._last = time.monotonic()
        self._stream.write(wire.encode(message))
        self._stream.flush()


def main() -> None:
    """Serve until stdin closes or an attempt fails."""
    logging.getLogger("kafka").setLevel(logging.CRITICAL)  # what matters arrives as errors
    replies = Replies(_private_stdout())
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    publisher = LanePublisher(wire.settings_of(wire.decode(lines.get())), replies.progress)
    while True:
        _prepare(publisher)
        try:
            line = lines.get(timeout=publisher.idle_s)
        except queue.Empty:
            _idle(publisher)
            continue
        if not _serve(publisher, line, replies, lines):
            os._exit(1)


def _serve(publisher: LanePublisher, line: bytes, replies: Replies, lines: queue.SimpleQueue[bytes]) -> bool:
    """Do what one line asks for and answer. False when this process should not be used any more."""

    def verified() -> None:
        replies.send(wire.VERIFIED)
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
    """Pass lines on. When the parent closes the pipe or dies, this process has nobody to work for."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(0)


def _private_stdout() -> BinaryIO:
    """The pipe to the parent, out of reach of anything that prints to standard output."""
    stream = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    return stream


if __name__ == "__main__":
    main()
