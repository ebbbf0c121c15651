"""Durations of a micro-batch's phases, its watermark and its operators, as Spark measures them, read after the batch.

The batch's own record is created inside Spark's `addBatch`. Spark knows the duration of this phase and of later ones
only after them. A listener in Python would report them as well. Per batch it costs 60 ms of processor time in Java,
and as much in Python.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from spark_ckpt.connector import Json

_log = logging.getLogger(__name__)
_LOOK_MS = 50
"""Spark needs some 10 ms after a batch's action to record that the batch is over."""
_LOOKS = 10
_EXECUTED = "addBatch"


@dataclass(frozen=True, slots=True)
class Phases:
    """Phases of one micro-batch.

    - `began`: when Spark began to look for rows, as ISO text in UTC.
    - `took_ms`: Spark's `StreamingQueryProgress.durationMs`; `triggerExecution` in it is the total.
    - `event_time`: its `eventTime`; `watermark` in it is the watermark that the batch ran with.
    - `operators`: its `stateOperators`.
    """

    batch: int
    began: str
    took_ms: Mapping[str, int] = field(default_factory=dict)
    event_time: Mapping[str, Json] = field(default_factory=dict)
    operators: Sequence[Mapping[str, Json]] = ()


def phases_in(records: Iterable[Mapping[str, Json]], batch: int) -> Phases | None:
    """Return the phases of `batch` among Spark's progress records, newest last; None if it is absent.

    A trigger that finds no rows also creates a record, under the number of the next batch.
    """
    for record in records:
        took_ms = record.get("durationMs")
        if record.get("batchId") == batch and isinstance(took_ms, Mapping) and _EXECUTED in took_ms:
            numbers = {name: ms for name, ms in took_ms.items() if isinstance(ms, int)}
            times, operators = record.get("eventTime"), record.get("stateOperators")
            return Phases(
                batch,
                str(record.get("timestamp", "")),
                numbers,
                dict(times) if isinstance(times, Mapping) else {},
                [dict(each) for each in operators if isinstance(each, Mapping)] if isinstance(operators, list) else (),
            )
    return None


class PhaseWatch:
    """Reads the phases of each batch shortly after it; it retries while Spark has not finished the batch.

    Runs on the coordinator's thread. `ask`: returns the phases of a batch number. `set_timer`: makes a call after
    some milliseconds. The last parameter receives each batch's phases at most once. The last batch of an incarnation
    may be missing, because nothing waits for it.
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
        """Schedule a read: the batch's action is over, but Spark has not finished the batch."""
        self._set_timer(_LOOK_MS, partial(self._look, batch, _LOOKS))

    def _look(self, batch: int, looks: int) -> None:
        try:
            found = self._ask(batch)
        except Exception as error:  # noqa: BLE001 - the query may be gone; nothing depends on what is asked here
            _log.debug("batch %d: Spark does not say what it took: %s", batch, error)
            return
        if found is not None:
            self._told(found)
        # Bounded: the last batch of a query may never be recorded.
        elif looks > 1:
            self._set_timer(_LOOK_MS, partial(self._look, batch, looks - 1))
