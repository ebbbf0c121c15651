"""Checks while a job runs that each source still reads the table, topic or folder of the job's epochs.

An id is never reused. So an answer after an epoch's last batch with the known ids confirms all rows of the epoch. The
driver checks before each commit. It also checks every few seconds, because an idle job commits nothing.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from spark_ckpt.connector import Identified, KeepsConnection, Source
from spark_ckpt.driver.answering import NoAnswer, answer_within
from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.endpoints.identities import parts_of
from spark_ckpt.epochs.identity import Parts, still_the_same
from spark_ckpt.errors import CkptError, IdentityChanged, SourceSilent

_log = logging.getLogger(__name__)
LOOK_EVERY_S = 10.0
PAUSES_S = (0.2, 1.0)
"""Seconds between three attempts: a broker that has just started may not know every topic yet."""


class SourceWatch(threading.Thread):
    """Watch over the sources of one incarnation.

    `known`: returns the endpoint of every source, as its epochs record it. `failed`: receives `IdentityChanged`.
    """

    def __init__(
        self, plan: JobPlan, known: Callable[[], Mapping[str, Parts]], failed: Callable[[BaseException], None]
    ) -> None:
        super().__init__(name="ckpt-sources", daemon=True)
        self._spark = plan.spark
        self._sources: dict[str, Source] = {
            node.name: node.source for node in plan.sources if isinstance(node.source, Identified)
        }
        self._known = known
        self._failed = failed
        self._wait_s = plan.config.timeout_ms / 1000
        self._every_s = LOOK_EVERY_S
        self._asked_s = time.monotonic()
        self._turn = threading.Lock()
        self._over = threading.Event()

    def identities(self) -> dict[str, dict[str, str]]:
        """Read the endpoint of every source now, including new parts; the next epoch records them.

        Raises `IdentityChanged`, and `SourceSilent` if a source does not answer.
        """
        if not self._sources:
            # Endpoints of sources that cannot tell theirs are carried on as the log has them.
            return {name: dict(parts) for name, parts in self._known().items()}
        try:
            return answer_within(self._wait_s, self._asked)
        except NoAnswer:
            # Not answered is not unchanged: the epoch is not committed, and the next incarnation asks again.
            raise _silent(f"no answer within {self._wait_s:g} s") from None
        except IdentityChanged:
            raise
        except CkptError as error:
            raise _silent(error.what, error.hint) from error

    def run(self) -> None:
        """Check until `close`. A source without an answer is checked again: its query fails if it needs the source."""
        while not self._over.wait(max(0.0, self._asked_s + self._every_s - time.monotonic())):
            # A check before a commit came meanwhile and counts as this one.
            if time.monotonic() < self._asked_s + self._every_s:
                continue
            try:
                self._asked()
            except IdentityChanged as error:
                self._failed(error)
                return
            except Exception as error:  # noqa: BLE001 - the check before the commit decides; this one only comes early
                _log.info("a source does not say which one it is: %s", error)

    def close(self) -> None:
        """End after the check in progress."""
        self._over.set()

    def disconnect(self) -> None:
        """Close the connections that sources keep. Call it after the last check."""
        for source in self._sources.values():
            if isinstance(source, KeepsConnection):
                with suppress(Exception):
                    source.disconnect()

    def _asked(self) -> dict[str, dict[str, str]]:
        # One check at a time: the one before a commit may come in the middle of the periodic one.
        with self._turn:
            try:
                # Also a changed id is asked for again: a broker that has just started may not know the topic yet.
                for pause_s in PAUSES_S:
                    with suppress(CkptError):
                        return self._answer()
                    self._over.wait(pause_s)
                return self._answer()
            finally:
                self._asked_s = time.monotonic()  # also after an error: no source is asked more often

    def _answer(self) -> dict[str, dict[str, str]]:
        now = {name: parts_of(source, self._spark) for name, source in self._sources.items()}
        return still_the_same(self._known(), now)


def _silent(what: str, hint: str = "") -> SourceSilent:
    return SourceSilent(
        f"a source does not say if it is still the same one: {what}; the epoch is not committed",
        hint=hint or "check that the source can be reached",
    )
