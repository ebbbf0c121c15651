"""A call to something that may not answer, with a bound to the wait."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NoAnswer(Exception):
    """None came in time. The call goes on, and nobody hears what becomes of it."""


def answer_within(wait_s: float, call: Callable[[], T]) -> T:
    """What `call` returns or raises; `NoAnswer` if that takes longer than `wait_s`. It runs on a thread of its own."""
    answers: queue.SimpleQueue[tuple[T] | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((call(),))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            answers.put(error)

    threading.Thread(target=run, name="ckpt-deciding", daemon=True).start()
    try:
        answer = answers.get(timeout=wait_s)
    except queue.Empty:
        raise NoAnswer from None
    if isinstance(answer, BaseException):
        raise answer
    return answer[0]
