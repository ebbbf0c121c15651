"""Signal handling of the driver's JVM: it survives the signals that stop its program, so that a final epoch can be
committed.

Ctrl-C, `kill` of a process group and systemd's default reach the JVM as well as the Python program that launched it.
PySpark launches a JVM that ignores SIGINT, but a SIGTERM would stop Spark in the middle of the batch. A JVM that
inherits "ignored" keeps ignoring. It ends with its program, because its standard input closes.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from spark_ckpt.spark_internals.launching import launches_run_first

_IGNORED = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def launched_deaf() -> Iterator[None]:
    """Make a JVM that PySpark launches inside this context ignore SIGINT and SIGTERM."""
    with launches_run_first(_ignore):
        yield


def _ignore() -> None:
    """Runs in the child, between fork and exec."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
