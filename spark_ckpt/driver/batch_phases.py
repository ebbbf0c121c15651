"""What Spark took a micro-batch's time for, asked of Spark when the batch is over.

The batch's own record is made inside Spark's `addBatch`; how long that phase and those behind it took is known when Spark is
through. A listener in Python would tell it, too, for 60 ms of processor time in Java and as much here, each batch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from spark_ckpt.connector import Json

_log = logging.getLogger(__name__)
_LOOK_MS = 50
"""Spark needs some 10 ms after a batch's action: it writes that the batch is over."""
_LOOKS = 10
_EXECUTED = "addBatch"


@dataclass(frozen=True, slots=True)
class Phases:
    """Of one micro-batch. `began`: when Spark began to look for its rows, ISO text of UTC. `took_ms`: Spark's own
    `StreamingQueryProgress.durationMs`, in which `triggerExecution` is the whole."""

    batch: int
    began: str
    took_ms: Mapping[str, int] = field(default_factory=dict)


def phases_in(records: Iterable[Mapping[str, Json]], batch: int) -> Phases | None:
    """Those of `batch` among Spark's progress records, newest last; None if it is not there.

    A trigger that finds no rows makes a record, too, under the number of the batch that comes next.
    """
    for record in records:
        took_ms = record.get("durationMs")
        if record.get("batchId") == batch and isinstance(took_ms, Mapping) and _EXECUTED in took_ms:
            numbers = {name: ms for name, ms in took_ms.items() if isinstance(ms, int)}
            return Phases(batch, str(record.get("timestamp", "")), numbers)
    return None


class PhaseWatch:
    """Looks a little after each batch, and some times more if Spark is not through with it. On the coordinator's thread.

    `ask` is given the batch's number; `set_timer` makes a call after milliseconds; `told` hears each batch once at most. The last
    batch of an incarnation may be left out: nobody waits for it.
    """

    def __init__(
        self,
        ask: Callable[[int], Phases | None],
        set_timer: Callable[[int, Callable[[], None]], None],
        told: Callable[[Phases], None],
    ) -> None:
        self._ask = ask
        self._set_timer = set_timer
        self._told = told

    def batch_ended(self, batch: int) -> None:
        """Its action is over, Spark is not through with it."""
        self._set_timer(_LOOK_MS, partial(self._look, batch, _LOOKS))

    def _look(self, batch: int, looks: int) -> None:
        try:
            found = self._ask(batch)
        except Exception as error:  # noqa: BLE001 - the query may be gone; nothing depends on what is asked here
            _log.debug("batch %d: Spark does not say what it took: %s", batch, error)
            return
        if found is not None:
            self._told(found)
        elif looks > 1:
            self._set_timer(_LOOK_MS, partial(self._look, batch, looks - 1))
