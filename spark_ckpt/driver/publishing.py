"""Publishing next to processing: one thread per sink carries out `Publish` and `SendEarly`, one attempt at a time.

The connector makes a publish idempotent; the epoch protocol decides about retries. After any failure the epoch
is still staged.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping
from enum import Enum

from spark_ckpt.connector import EarlyPublisher, EpochOutput, Fences, GivesUp, Json, Publisher, StagedEarly, Tidies
from spark_ckpt.coordination.messages import EarlySendEnded, PublishEnded
from spark_ckpt.errors import CkptError, PublishFailed
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.tasks.user_frames import user_traceback

_log = logging.getLogger(__name__)


class _Ask(Enum):
    DROP = "undo the early send"
    STOP = "end"


class SinkLane(threading.Thread):
    """Publisher thread of one sink. It opens a publisher when needed and replaces it after every failure.

    - `still_current` raises `Fenced` if a newer incarnation exists. It runs before every attempt, so that a zombie
      that wakes up does not fence the driver that replaced it.
    - `newest` returns the newest incarnation in the log. It runs if a sink already had the epoch, perhaps from a
      successor.
    - `report` receives the result of each attempt.
    - `inherited`: the highest epoch that earlier incarnations committed.
    - `ask_identity` runs once, after the first publish, when the sink has created its table or topic.
    - `measured` receives the durations of a publish before `report`, if the publisher reports them.
    - `opens_at_once`: open the publisher before there is work, so that early sends of a dead driver do not stay open.
    - `fences`: open it at once, too, and fence older publishers. A restore has left epochs that one of them, of a driver
      that was paused, may be about to publish.
    """

    def __init__(
        self,
        sink: str,
        open_publisher: Callable[[], Publisher],
        still_current: Callable[[], None],
        newest: Callable[[], int],
        report: Callable[[PublishEnded | EarlySendEnded], None],
        inherited: int = 0,
        ask_identity: Callable[[], Mapping[str, str]] | None = None,
        measured: Callable[[str, int, Mapping[str, int]], None] = lambda sink, epoch, parts_ms: None,
        opens_at_once: bool = False,
        fences: bool = False,
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
        self._opens_at_once = opens_at_once or fences
        self._fences = fences
        self._tidied = False
        self._early = False
        self._given_up = threading.Event()
        self._ahead_until_s = 0.0
        self._asked: queue.SimpleQueue[tuple[EpochOutput | StagedEarly | _Ask, float]] = queue.SimpleQueue()

    def submit(self, asked: EpochOutput | StagedEarly) -> None:
        """Queue one attempt to publish a committed epoch, or an early send, after earlier requests."""
        self._ask(asked)

    def drop_early_send(self) -> None:
        """Queue the rollback of early sends, after earlier requests."""
        self._ask(_Ask.DROP)

    def stop(self) -> None:
        """End after the attempt in progress."""
        self._ask(_Ask.STOP)

    def give_up(self) -> bool:
        """Make no further attempt and abort the one in progress; return false if the publisher cannot abort.

        Call it from another thread.
        """
        # Set before the publisher is read: a lane between two attempts must not begin another one.
        self._given_up.set()
        publisher = self._publisher
        if not isinstance(publisher, GivesUp):
            return False
        publisher.give_up()
        return True

    def run(self) -> None:
        """Serve requests until `stop` or `give_up`."""
        if self._opens_at_once:
            self._open_early()
        while (asked := self._asked.get())[0] is not _Ask.STOP and not self._given_up.is_set():
            match asked:
                case EpochOutput() as output, asked_s:
                    self._publish(output, asked_s)
                case StagedEarly() as staged, _:
                    self._send(staged)
                case _:
                    self._drop_early_send()
        # Rows in an open transaction hold back every `read_committed` reader of their partitions until it times out.
        self._drop_early_send()
        self._drop_publisher()

    def _ask(self, what: EpochOutput | StagedEarly | _Ask) -> None:
        self._asked.put((what, time.monotonic()))

    def _publish(self, output: EpochOutput, asked_s: float) -> None:
        # A publish that was requested during an early send has waited for its end.
        waited_ms = round((self._ahead_until_s - asked_s) * 1000)
        self._report(self._attempt(output, {"early": waited_ms} if waited_ms > 0 else {}))
        # The first epoch of this incarnation is visible, so all earlier ones are.
        if output.epoch > self._inherited and not self._tidied:
            self._tidy()

    def _open_early(self) -> None:
        try:
            self._opened()
        except Exception as error:  # noqa: BLE001 - the first attempt tries again, and reports it
            _log.info("sink %s: could not be opened before there was anything to publish: %s", self.sink, error)
            self._drop_publisher()

    def _opened(self) -> Publisher:
        """Return the publisher, opened if necessary. A replaced driver opens none."""
        if self._publisher is None:
            self._still_current()
            self._publisher = self._open_publisher()
            # A sink that answered late: the run may be over, and its next incarnation may have a publisher already.
            if self._given_up.is_set():
                raise PublishFailed("the run ended while its publisher was opened", sink=self.sink)
            if self._fences and isinstance(self._publisher, Fences):
                self._publisher.fence()
        return self._publisher

    def _send(self, staged: StagedEarly) -> None:
        ended = self._sent(staged)
        self._ahead_until_s = time.monotonic()
        self._report(ended)

    def _sent(self, staged: StagedEarly) -> EarlySendEnded:
        try:
            # While a publisher is open the log is not read: a commit may be in progress there, and the sink fences a
            # zombie itself.
            publisher = _early_of(self._opened())
            # Set before the call: a send that fails half way has left rows in the transaction.
            self._early = True
            return EarlySendEnded(self.sink, staged.epoch, publisher.send_early(staged))
        except CkptError as error:
            return self._not_sent(staged, error)
        except Exception as error:  # noqa: BLE001 - a connector's bug is reported; the rows are published from their files
            return self._not_sent(staged, PublishFailed(f"{type(error).__name__}: {error}", sink=self.sink))

    def _not_sent(self, staged: StagedEarly, error: CkptError) -> EarlySendEnded:
        _log.info("sink %s: rows of epoch %s were not sent early: %s", self.sink, staged.epoch, error)
        self._drop_publisher()
        return EarlySendEnded(self.sink, staged.epoch, error=error)

    def _drop_early_send(self) -> None:
        dropped, self._early = self._early, False
        if not dropped or not isinstance(self._publisher, EarlyPublisher):
            return
        # Best effort: the next publisher of this sink rolls them back anyway.
        try:
            self._publisher.drop_early_send()
        except Exception as error:  # noqa: BLE001 - the publisher is replaced, as after every failure
            _log.info("sink %s: the early send could not be undone: %s", self.sink, error)
            self._drop_publisher()

    def _attempt(self, output: EpochOutput, waited_ms: Mapping[str, int]) -> PublishEnded:
        """Try once to publish.

        `waited_ms`: how long the request waited for early sends of the same sink.
        """
        # Step 8 of docs/design/epoch-in-nine-steps.md.
        try:
            if self._publisher is not None:
                self._still_current()
            receipt = self._opened().publish(output)
            # The publish has completed the open transaction, or rolled it back.
            self._early = False
            hit(Failpoint.ACKED)
            if parts_ms := {**waited_ms, **_parts_ms(receipt.detail)}:
                self._measured(self.sink, output.epoch, parts_ms)
            # A successor may have published the epoch: then this incarnation ends, although the publish succeeded.
            # The log costs a request, so it is read only if the sink already had the epoch.
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
        # Asked once: before the first publish the table or topic need not exist.
        ask, self._ask_identity = self._ask_identity, None
        try:
            return ask() if ask is not None else None
        except CkptError as error:
            _log.info("sink %s: its identity is not known yet: %s", self.sink, error)
            return None

    def _tidy(self) -> None:
        """Remove other staged files of older incarnations: everything that they committed is published."""
        # After a failed attempt there is no publisher, and nothing is removed: its epoch is not visible yet.
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
        # The publisher may hold half of the epoch in an open transaction. The next one fences it and begins again.
        _log.warning("sink %s: epoch %s could not be published: %s", self.sink, output.epoch, error)
        self._drop_publisher()
        return PublishEnded(self.sink, output.epoch, error=error)

    def _drop_publisher(self) -> None:
        publisher, self._publisher, self._early = self._publisher, None, False
        if publisher is None:
            return
        try:
            publisher.close()
        except Exception as error:  # noqa: BLE001 - it is being thrown away; closing is best effort
            _log.debug("sink %s: closing a publisher failed: %s", self.sink, error)


def _parts_ms(detail: Mapping[str, Json]) -> dict[str, int]:
    """Return the durations that a publisher reports, in milliseconds by part."""
    told = detail.get("parts_ms")
    return {name: ms for name, ms in told.items() if isinstance(ms, int)} if isinstance(told, Mapping) else {}


def _early_of(publisher: Publisher) -> EarlyPublisher:
    if not isinstance(publisher, EarlyPublisher):
        raise PublishFailed("the sink supports early sends, its publisher does not")
    return publisher
