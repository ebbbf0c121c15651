"""The driver's JVM survives the signals that stop its program, so that a final epoch can be taken.

Ctrl-C, `kill` of a process group and systemd's default reach the JVM as well as the Python program that launched it. PySpark
launches it deaf to SIGINT, but a SIGTERM would stop Spark in the middle of the batch. A JVM that inherits "ignored" keeps
ignoring; it ends when its program does, since its standard input closes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from spark_ckpt.spark_internals.launching import launches_run_first

_IGNORED = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def launched_deaf() -> Iterator[None]:
    """A JVM that PySpark launches inside leaves SIGINT and SIGTERM to its program."""
    with launches_run_first(_ignore):
        yield


def _ignore() -> None:
    """In the child, between fork and exec."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
