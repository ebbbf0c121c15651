"""Publishing beside processing: one thread per sink carries out `Publish` and `SendAhead`, one attempt at a time.

Idempotence lives in the connector, patience in the coordinator's machine.  Whatever happens, the epoch stays staged.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum

from spark_ckpt.connector import AheadPublisher, EpochOutput, GivesUp, Json, Publisher, StagedAhead, Tidies
from spark_ckpt.coordination.messages import AheadEnded, PublishEnded
from spark_ckpt.errors import CkptError, PublishFailed
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.tasks.user_frames import user_traceback

_log = logging.getLogger(__name__)


class _Ask(Enum):
    DROP = "undo what was sent ahead"
    STOP = "end"


class SinkLane(threading.Thread):
    """The publishing thread of one sink. A publisher is opened on it when needed and replaced after every failure.

    `still_current` raises `Fenced` if a newer incarnation exists: asked before every attempt, so that a zombie that wakes
    up does not fence the driver that replaced it. `newest`: the newest incarnation in the log, asked after a sink has answered that
    it had the epoch already, perhaps by a successor. `inherited`: the highest epoch decided by earlier incarnations.
    `ask_identity`: asked once after the first publish, when the sink has made what it publishes to. `measured`: hears the
    parts of a publish before `report` does, if its publisher tells them. `opens_at_once`: the publisher is opened before
    there is anything to do, so that what a dead driver has sent ahead does not stay open.
    """

    def __init__(
        self,
        sink: str,
        open_publisher: Callable[[], Publisher],
        still_current: Callable[[], None],
        newest: Callable[[], int],
        report: Callable[[PublishEnded | AheadEnded], None],
        inherited: int = 0,
        ask_identity: Callable[[], Mapping[str, str]] | None = None,
        measured: Callable[[str, int, Mapping[str, int]], None] = lambda sink, epoch, parts_ms: None,
        opens_at_once: bool = False,
    ) -> None:
        super().__init__(name=f"ckpt-publish-{sink}", daemon=True)
        self.sink = sink
        self._open_publisher = open_publisher
        self._publisher: Publisher | None = None
        self._still_current = still_current
        self._newest = newest
        self._report = report
        self._inherited = inherited
        self._ask_identity = ask_identity
        self._measured = measured
        self._opens_at_once = opens_at_once
        self._tidied = False
        self._ahead = False
        self._given_up = threading.Event()
        self._ahead_until_s = 0.0
        self._asked: queue.SimpleQueue[tuple[EpochOutput | StagedAhead | _Ask, float]] = queue.SimpleQueue()

    def submit(self, asked: EpochOutput | StagedAhead) -> None:
        """Try once to publish this decided epoch, or to send these rows ahead, after what was submitted before."""
        self._ask(asked)

    def drop_ahead(self) -> None:
        """Have undone what was sent ahead, after what was submitted before."""
        self._ask(_Ask.DROP)

    def stop(self) -> None:
        """End after the attempt under way."""
        self._ask(_Ask.STOP)

    def give_up(self) -> bool:
        """From another thread: make no other attempt, and end the one under way. False if its publisher cannot do so."""
        self._given_up.set()
        publisher = self._publisher
        if not isinstance(publisher, GivesUp):
            return False
        publisher.give_up()
        return True

    def run(self) -> None:
        """Thread body."""
        if self._opens_at_once:
            self._open_early()
        while (asked := self._asked.get())[0] is not _Ask.STOP and not self._given_up.is_set():
            match asked:
                case EpochOutput() as output, asked_s:
                    self._publish(output, asked_s)
                case StagedAhead() as staged, _:
                    self._send(staged)
                case _:
                    self._drop_ahead()
        self._drop_ahead()
        self._drop_publisher()

    def _ask(self, what: EpochOutput | StagedAhead | _Ask) -> None:
        self._asked.put((what, time.monotonic()))

    def _publish(self, output: EpochOutput, asked_s: float) -> None:
        waited_ms = round((self._ahead_until_s - asked_s) * 1000)
        self._report(self._attempt(output, {"ahead": waited_ms} if waited_ms > 0 else {}))
        if output.epoch > self._inherited and not self._tidied:
            self._tidy()

    def _open_early(self) -> None:
        try:
            self._opened()
        except Exception as error:  # noqa: BLE001 - the first attempt tries again, and reports it
            _log.info("sink %s: could not be opened before there was anything to publish: %s", self.sink, error)

    def _opened(self) -> Publisher:
        """The publisher. A driver that was replaced opens none."""
        if self._publisher is None:
            self._still_current()
            self._publisher = self._open_publisher()
        return self._publisher

    def _send(self, staged: StagedAhead) -> None:
        ended = self._sent(staged)
        self._ahead_until_s = time.monotonic()
        self._report(ended)

    def _sent(self, staged: StagedAhead) -> AheadEnded:
        """One attempt. The log is not asked while a publisher is open: a decision may be under way there, and the sink fences."""
        try:
            publisher = _ahead_of(self._opened())
            self._ahead = True
            return AheadEnded(self.sink, staged.epoch, publisher.send_ahead(staged))
        except CkptError as error:
            return self._not_sent(staged, error)
        except Exception as error:  # noqa: BLE001 - a connector's bug is told; the rows are published from their files
            return self._not_sent(staged, PublishFailed(f"{type(error).__name__}: {error}", sink=self.sink))

    def _not_sent(self, staged: StagedAhead, error: CkptError) -> AheadEnded:
        _log.info("sink %s: rows of epoch %s were not sent ahead: %s", self.sink, staged.epoch, error)
        self._drop_publisher()
        return AheadEnded(self.sink, staged.epoch, error=error)

    def _drop_ahead(self) -> None:
        """Best effort: whoever publishes next to this sink undoes it anyway."""
        dropped, self._ahead = self._ahead, False
        if not dropped or not isinstance(self._publisher, AheadPublisher):
            return
        try:
            self._publisher.drop_ahead()
        except Exception as error:  # noqa: BLE001 - the publisher is replaced, as after every failure
            _log.info("sink %s: what was sent ahead could not be undone: %s", self.sink, error)
            self._drop_publisher()

    def _attempt(self, output: EpochOutput, waited_ms: Mapping[str, int]) -> PublishEnded:
        """`waited_ms`: how long it has waited for rows of its own that were sent ahead when it was asked for."""
        try:
            self._still_current()
            self._publisher = self._publisher or self._open_publisher()
            receipt = self._publisher.publish(output)
            self._ahead = False
            hit(Failpoint.ACKED)
            if parts_ms := {**waited_ms, **_parts_ms(receipt.detail)}:
                self._measured(self.sink, output.epoch, parts_ms)
            newest = self._newest() if receipt.replayed else 0
            return PublishEnded(
                self.sink, output.epoch, receipt.rows, receipt.replayed, newest, learned=self._learned()
            )
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
        publisher, self._publisher, self._ahead = self._publisher, None, False
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


def _ahead_of(publisher: Publisher) -> AheadPublisher:
    if not isinstance(publisher, AheadPublisher):
        raise PublishFailed("the sink says that it can be sent rows ahead, its publisher cannot")
    return publisher
