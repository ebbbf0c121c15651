"""The time up to which a job has read its inputs. Keys of a join with a `ttl` time out by it.

By the machine's clock a key would time out although its match waits in an input: after a downtime, after a stall, or
because a batch reads only so many files. So the driver asks the sources for their ends. When a batch reaches them, all
rows that were there at the time of the question have been read, and the clock advances to that time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping

from pyspark.sql import SparkSession

from spark_ckpt.connector import Cursor, MayNeverEnd, Source
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.tasks.input_time import set_inputs_read_ms
from spark_ckpt.tasks.operators.vectorized import VectorizedOperator

_log = logging.getLogger(__name__)
_PARTS = 10
"""Number of questions in the time of a `ttl`: a key times out that much of it later at most."""
LEAST_S, MOST_S = 0.1, 10.0
"""Least and most seconds from one question to the next."""


def input_clock(plan: JobPlan) -> InputClock | None:
    """Return the clock of a job; None if no operator of it needs one."""
    operators = [each.operator for each in plan.operators if isinstance(each.operator, VectorizedOperator)]
    ttls_ms = [each.ttl_ms for each in operators if each.ttl_ms is not None]
    if not ttls_ms:
        return None
    every_s = max(min(min(ttls_ms) / 1000 / _PARTS, MOST_S), LEAST_S)
    sources = {node.name: node.source for node in plan.sources}
    return InputClock(plan.spark, sources, len(plan.edges), every_s)


class InputClock(threading.Thread):
    """Clock of one incarnation. It stands at 0 until everything that waited at the start is read, and never goes back.

    - `sources`: by name. The end of an endless one is unknown, so it counts as read.
    - `edges`: number of edges. A row may spend a batch on each of them, so the clock is that many batches late.
    - `every_s`: seconds from one answer reached to the next question.
    """

    def __init__(
        self,
        spark: SparkSession,
        sources: Mapping[str, Source],
        edges: int,
        every_s: float,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        super().__init__(name="ckpt-inputs", daemon=True)
        self._spark = spark
        self._sources = {
            name: source
            for name, source in sources.items()
            if not (isinstance(source, MayNeverEnd) and source.endless is not None)
        }
        self._every_s = every_s
        self._now_ms = now_ms
        self._asked: tuple[int, Mapping[str, Cursor]] | None = None
        self._read_ms = 0
        self._of_batches = deque([0] * (edges + 1), maxlen=edges + 1)
        self._first_batch: int | None = None
        self._over = threading.Event()

    def begin(self) -> None:
        """Ask for the first ends, before the query starts. Raises the errors of `Source.end`."""
        self.ask()
        self.start()

    def ask(self) -> None:
        """Ask every source for its end now."""
        now_ms = self._now_ms()  # before the question: the answer has all rows up to this time
        self._asked = now_ms, {name: source.end(self._spark) for name, source in self._sources.items()}

    def run(self) -> None:
        """Ask again until `close`, after each answer that a batch has reached."""
        while not self._over.wait(self._every_s):
            if self._asked is None:
                try:
                    self.ask()
                except Exception as error:  # noqa: BLE001 - a thread that died here would stop the clock for good
                    _log.info("a source does not say where it ends, so no key of a join times out: %s", error)

    def batch_begins(self, batch: int) -> None:
        """Set the clock of the tasks of a batch. Call it on the query's own thread."""
        # The oldest: rows that were read then have passed every edge by now.
        self._of_batches.append(self._read_ms)
        read_ms = self._of_batches[0]
        if read_ms and self._first_batch is None:
            self._first_batch = batch
        set_inputs_read_ms(self._spark.sparkContext, read_ms)

    def batch_ended(self, cursors: Mapping[str, Cursor]) -> None:
        """Advance the clock if the batch, which ended at `cursors`, reached the ends. Call it as batches end."""
        asked = self._asked
        # Only ends that were asked for count: rows that came since the question may be unread.
        if asked is not None and all(self._sources[name].reached(cursors[name], end) for name, end in asked[1].items()):
            self._read_ms, self._asked = asked[0], None

    def ran_in(self, batch: int) -> bool:
        """Return True if keys could time out in this batch: a run that drains its sources waits for such a batch."""
        return self._first_batch is not None and batch >= self._first_batch

    def close(self) -> None:
        """End after the question in progress."""
        self._over.set()
