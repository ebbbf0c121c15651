"""A call with a bounded wait, for dependencies that may not answer."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class NoAnswer(Exception):
    """No answer came in time. The call continues, and its result is discarded."""


def answer_within(wait_s: float, call: Callable[[], T]) -> T:
    """Return the result of `call`, which runs on its own thread, or raise its error.

    Raises `NoAnswer` if the call takes longer than `wait_s` seconds.
    """
    answers: queue.SimpleQueue[tuple[T] | BaseException] = queue.SimpleQueue()

    def run() -> None:
        try:
            answers.put((call(),))  # in a tuple: a call may return an exception, which is not raised
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            answers.put(error)

    # A daemon: a call that never returns must not keep the program alive.
    threading.Thread(target=run, name="ckpt-deciding", daemon=True).start()
    try:
        answer = answers.get(timeout=wait_s)
    except queue.Empty:
        raise NoAnswer from None
    if isinstance(answer, BaseException):
        raise answer
    return answer[0]
