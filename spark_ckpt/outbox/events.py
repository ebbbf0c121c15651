"""Events of an outbox for metrics, lineage and listeners of the program.

Metrics and lineage are loaded only if the program asks for them. A listener that fails ends no batch.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_ckpt.connector import EpochOutput, Json, PublishReceipt, Sink
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import CkptError, ConfigInvalid
from spark_ckpt.events.announcer import Announcer
from spark_ckpt.events.listener import RetryEvent, RunListener
from spark_ckpt.outbox.rule import BatchVerdict

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.types import StructType

    from spark_ckpt.observability.aside import Aside
    from spark_ckpt.observability.lineage.datasets import DatasetEnd

_log = logging.getLogger(__name__)
_STOPPED = "stopped"


def check_metrics(targets: Sequence[str]) -> tuple[str, ...]:
    """Return the places for metrics. Raises `ConfigInvalid` for an unknown one."""
    if targets:
        from spark_ckpt.observability.metrics.configured import check_targets

        check_targets(targets)
    return tuple(targets)


def check_lineage(namespace: str | None) -> str:
    """Return the namespace of OpenLineage events, empty for none. Raises `ConfigInvalid` for a blank one."""
    if namespace is not None and not namespace.strip():
        raise ConfigInvalid("lineage needs the namespace of the job", hint='Outbox(..., lineage="production")')
    return namespace or ""


def metrics_listeners(targets: Sequence[str], name: str) -> list[RunListener]:
    """Return the listeners that record metrics. Opens endpoints. Raises `ConfigInvalid`, `EnvironmentUnfit`."""
    if not targets:
        return []
    from spark_ckpt.observability.metrics.configured import listeners_of

    return listeners_of(targets, name)


def sources_of(query: StreamingQuery | None) -> list[DatasetEnd]:
    """Return the sources of a query, as far as its newest progress names them; none before its first batch has ended.

    A Connect server gives the function of `foreachBatch` no query, so there are none there.
    """
    from spark_ckpt.observability.lineage.datasets import spark_source

    progress = query.lastProgress if query is not None else None
    found: Iterable[Mapping[str, Json]] = progress["sources"] if progress else ()
    return [spark_source(str(each["description"]), _parsed(each["endOffset"])) for each in found]


class OutboxEvents:
    """Events of one run of a query.

    `lineage`: namespace in OpenLineage, empty for none. `query`: returns the running query, or None.
    """

    def __init__(
        self,
        name: str,
        listeners: Sequence[RunListener] = (),
        lineage: str = "",
        query: Callable[[], StreamingQuery | None] = lambda: None,
    ) -> None:
        self._name = name
        self._listeners = [*listeners]
        self._namespace = lineage
        self._query = query
        self._sources: list[DatasetEnd] = []
        self._lineage: Aside | None = None
        self._announcer: Announcer | None = None
        self._newest = 0

    def began(self, store_id: str, point: RecoveryPoint, sinks: Mapping[str, tuple[Sink, StructType]]) -> None:
        """Announce an incarnation. `sinks`: each with the schema of its rows."""
        # Once: a call that begins a branch may begin two incarnations.
        if self._namespace and self._lineage is None:
            self._lineage = self._lineage_of(store_id, sinks)
            self._lineage.start()
            self._listeners.append(self._lineage)
        self._announcer = Announcer(self._name, point.incarnation, self._listeners, "outbox")
        lacks = {sink: [each.epoch for each in point.unpublished.get(sink, ())] for sink in sinks}
        self._newest = point.manifest.epoch
        self._announcer.started(self._newest, point.restored_from, lacks)

    def committed(self, manifest: Manifest, commit_ms: int) -> None:
        """Announce a committed epoch. `commit_ms`: duration of its commit."""
        if self._announcer is None:
            return
        self._newest = manifest.epoch
        rows = {sink: output.rows for sink, output in manifest.outputs.items()}
        detail: dict[str, Json] = {
            "reason": manifest.reason,
            "batch": manifest.spark_batch.number if manifest.spark_batch is not None else None,
            "rows_out": manifest.rows_out,
            "staged_rows": dict(rows),
            "sinks": [*rows],
            "parts_ms": {"staging": manifest.duration_ms, "decision": commit_ms},
        }
        self._announcer.committed(manifest.epoch, detail, manifest)

    def published(self, sink: str, output: EpochOutput, receipt: PublishReceipt, duration_ms: int) -> None:
        """Announce that a sink has an epoch. `duration_ms`: of all attempts."""
        if self._announcer is not None:
            parts = receipt.detail.get("parts_ms")
            detail: dict[str, Json] = {
                "sink": sink,
                "rows": receipt.rows,
                "replayed": receipt.replayed,
                "duration_ms": duration_ms,
            }
            self._announcer.published(output.epoch, detail | ({"parts_ms": parts} if parts else {}))

    def retries(self, error: CkptError, attempt: int, pause_ms: int, sink: str = "", epoch: int = 0) -> None:
        """Announce that a step failed and is tried again. `sink` and `epoch`: of a publish."""
        if self._announcer is not None:
            incarnation = self._announcer.incarnation
            self._announcer.retries(
                RetryEvent(self._name, incarnation, epoch, sink, error.condition, error.what, attempt, pause_ms)
            )

    def batch_ended(self, number: int, verdict: BatchVerdict, rows: int, duration_ms: int) -> None:
        """Announce that the outbox is done with a batch. `rows`: staged for its first sink."""
        if self._announcer is not None:
            record: dict[str, Json] = {
                "batchId": number,
                "verdict": verdict.value,
                "epoch": self._newest,
                "numOutputRows": rows,
                "durationMs": {"batch": duration_ms},
            }
            self._announcer.progressed(self._newest, record)

    def ended(self, error: BaseException | None = None) -> None:
        """Announce the end of the incarnation, by an error or on request; once."""
        announcer, self._announcer = self._announcer, None
        if announcer is not None:
            announcer.ended(self._newest, _STOPPED if error is None else f"{type(error).__name__}: {error}")
        if self._lineage is not None:
            self._lineage.close()

    def _known_sources(self) -> list[DatasetEnd]:
        """Return the query's sources. Called on the thread of lineage, also after the end of the session."""
        if not self._sources:
            try:
                self._sources = sources_of(self._query())
            except Exception as error:  # noqa: BLE001 - a session that has ended; the event goes out without inputs
                _log.debug("outbox=%s: the sources of the query are not known: %s", self._name, error)
        return self._sources

    def _lineage_of(self, store_id: str, sinks: Mapping[str, tuple[Sink, StructType]]) -> Aside:
        from spark_ckpt.observability.lineage.configured import dataset_end, lineage_of

        ends = [dataset_end(name, sink.describe(), schema) for name, (sink, schema) in sinks.items()]
        return lineage_of(self._namespace, self._name, store_id, (), ends, self._known_sources)


def _parsed(offset: Json) -> Json:
    """Return an end offset, which is JSON text in some versions of PySpark."""
    if not isinstance(offset, str):
        return offset
    try:
        parsed: Json = json.loads(offset)
    except ValueError:
        return offset
    return parsed
