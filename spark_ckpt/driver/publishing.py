"""Publishing beside processing: one thread per sink carries out `CommitSink`, one attempt at a time.

Idempotence lives in the connector, patience in the coordinator's machine.  Whatever happens, the epoch stays staged.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping

from spark_ckpt.connector import EpochOutput, Json, Publisher, Tidies
from spark_ckpt.errors import CkptError, PublishFailed
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.host.messages import PublishEnded
from spark_ckpt.tasks.user_frames import user_traceback

_log = logging.getLogger(__name__)


class SinkLane(threading.Thread):
    """The publishing thread of one sink. A publisher is opened on it when needed and replaced after every failure.

    `still_current` raises `Fenced` if a newer incarnation exists: asked before every attempt, so that a zombie that wakes
    up does not fence the driver that replaced it. `inherited`: the highest epoch decided by earlier incarnations.
    `ask_identity`: asked once after the first publish, when the sink has made what it publishes to. `measured`: hears the
    parts of a publish before `report` does, if its publisher tells them.
    """

    def __init__(
        self,
        sink: str,
        open_publisher: Callable[[], Publisher],
        still_current: Callable[[], None],
        report: Callable[[PublishEnded], None],
        inherited: int = 0,
        ask_identity: Callable[[], Mapping[str, str]] | None = None,
        measured: Callable[[str, int, Mapping[str, int]], None] = lambda sink, epoch, parts_ms: None,
    ) -> None:
        super().__init__(name=f"ckpt-publish-{sink}", daemon=True)
        self.sink = sink
        self._open_publisher = open_publisher
        self._publisher: Publisher | None = None
        self._still_current = still_current
        self._report = report
        self._inherited = inherited
        self._ask_identity = ask_identity
        self._measured = measured
        self._tidied = False
        self._outputs: queue.SimpleQueue[EpochOutput | None] = queue.SimpleQueue()

    def submit(self, output: EpochOutput) -> None:
        """Try to publish this decided epoch once, after what was submitted before."""
        self._outputs.put(output)

    def stop(self) -> None:
        """End after the attempt under way."""
        self._outputs.put(None)

    def run(self) -> None:
        """Thread body."""
        while (output := self._outputs.get()) is not None:
            self._report(self._attempt(output))
            if output.epoch > self._inherited and not self._tidied:
                self._tidy()
        self._drop_publisher()

    def _attempt(self, output: EpochOutput) -> PublishEnded:
        try:
            self._still_current()
            self._publisher = self._publisher or self._open_publisher()
            receipt = self._publisher.publish(output)
            hit(Failpoint.ACKED)
            if parts_ms := _parts_ms(receipt.detail):
                self._measured(self.sink, output.epoch, parts_ms)
            return PublishEnded(self.sink, output.epoch, receipt.rows, receipt.replayed, learned=self._learned())
        except CkptError as error:
            return self._failed(output, error)
        except Exception as error:  # noqa: BLE001 - a connector's bug is reported as what it is, not lost with the thread
            trace = user_traceback(error) or None
            wrapped = PublishFailed(
                f"{type(error).__name__}: {error}", sink=self.sink, epoch=output.epoch, traceback=trace
            )
            return self._failed(output, wrapped)

    def _learned(self) -> Mapping[str, str] | None:
        ask, self._ask_identity = self._ask_identity, None
        try:
            return ask() if ask is not None else None
        except CkptError as error:
            _log.info("sink %s: its identity is not known yet: %s", self.sink, error)
            return None

    def _tidy(self) -> None:
        """Everything older incarnations decided is published: what else they staged is garbage."""
        if not isinstance(self._publisher, Tidies):
            return
        self._tidied = True
        try:
            removed = self._publisher.tidy()
        except Exception as error:  # noqa: BLE001 - garbage stays garbage; the next incarnation tries again
            _log.warning("sink %s: could not remove what dead incarnations staged: %s", self.sink, error)
        else:
            _log.info("sink %s: removed %d files of dead incarnations", self.sink, removed)

    def _failed(self, output: EpochOutput, error: CkptError) -> PublishEnded:
        _log.warning("sink %s: epoch %s could not be published: %s", self.sink, output.epoch, error)
        self._drop_publisher()
        return PublishEnded(self.sink, output.epoch, error=error)

    def _drop_publisher(self) -> None:
        publisher, self._publisher = self._publisher, None
        if publisher is None:
            return
        try:
            publisher.close()
        except Exception as error:  # noqa: BLE001 - it is being thrown away; closing is best effort
            _log.debug("sink %s: closing a publisher failed: %s", self.sink, error)


def _parts_ms(detail: Mapping[str, Json]) -> dict[str, int]:
    """Milliseconds by part, from what a publisher says of itself."""
    told = detail.get("parts_ms")
    return {name: ms for name, ms in told.items() if isinstance(ms, int)} if isinstance(told, Mapping) else {}
