"""OpenLineage events through the official client. A run is one incarnation; each epoch is an event with its inputs and
outputs.

The client's configuration sets the destination: `OPENLINEAGE_URL`, `openlineage.yml`, or the variables
`OPENLINEAGE__TRANSPORT__...`.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Protocol

import attr
from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
from openlineage.client.facet_v2 import (
    InputDatasetFacet,
    OutputDatasetFacet,
    RunFacet,
    error_message_run,
    job_type_job,
    output_statistics_output_dataset,
    processing_engine_run,
    schema_dataset,
)

from spark_ckpt.connector import Cursor, Json
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.events.listener import EpochEvent, IncarnationEvent, RunListener
from spark_ckpt.observability.lineage.datasets import DatasetEnd, named

PRODUCER = "https://pypi.org/project/spark-ckpt"
_SCHEMA = f"{PRODUCER}#"


@attr.define
class EpochRunFacet(RunFacet):
    """The epoch of an event, the epoch before it in the branch (`base`), and the reason why it ended."""

    epoch: int
    base: int
    incarnation: int
    reason: str

    @staticmethod
    def _get_schema() -> str:
        return f"{_SCHEMA}EpochRunFacet"


@attr.define
class CursorInputFacet(InputDatasetFacet):
    """The input's cursor in the epoch: rows before it are included, later rows are not."""

    cursor: Mapping[str, Json]

    @staticmethod
    def _get_schema() -> str:
        return f"{_SCHEMA}CursorInputFacet"


class Client(Protocol):
    """A sender of events, such as the official client."""

    def emit(self, event: RunEvent) -> None:
        """Send one event."""


class OpenLineage(RunListener):
    """Lineage of one job.

    `namespace`: namespace of jobs in the catalogue. `store_id`: source of the run ids, which are the same at every
    report. `found`: returns sources that become known during the run, at every event.
    """

    def __init__(
        self,
        client: Client,
        namespace: str,
        job: str,
        store_id: str,
        sources: Sequence[DatasetEnd],
        sinks: Sequence[DatasetEnd],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        found: Callable[[], Sequence[DatasetEnd]] = tuple,
    ) -> None:
        self._client = client
        kind = job_type_job.JobTypeJobFacet("STREAMING", "SPARK", jobType="JOB", producer=PRODUCER)
        self._job = Job(namespace, job, {"jobType": kind})
        self._store_id = store_id
        self._sources = {end.name: end for end in sources}
        self._sinks = {end.name: end for end in sinks}
        self._now = now
        self._found = found

    def onIncarnationStarted(self, event: IncarnationEvent) -> None:
        """Report the start of a run."""
        self._emit(RunState.START, event.incarnation)

    def onEpochCommitted(self, event: EpochEvent) -> None:
        """Report the input that the epoch has read and the output that it will publish."""
        manifest = event.manifest
        if manifest is None:
            return
        facet = EpochRunFacet(
            manifest.epoch, manifest.base, manifest.incarnation, manifest.reason, producer=PRODUCER
        )  # fmt: skip
        self._emit(RunState.RUNNING, event.incarnation, {"spark_ckpt_epoch": facet}, manifest)

    def onIncarnationEnded(self, event: IncarnationEvent) -> None:
        """Report the end of a run: complete after a stop, else failed with its error."""
        if event.reason == STOPPED:
            self._emit(RunState.COMPLETE, event.incarnation)
            return
        why = error_message_run.ErrorMessageRunFacet(event.reason, "python", producer=PRODUCER)
        self._emit(RunState.FAIL, event.incarnation, {"errorMessage": why})

    def _emit(
        self,
        state: RunState,
        incarnation: int,
        facets: Mapping[str, RunFacet] | None = None,
        manifest: Manifest | None = None,
    ) -> None:
        engine = processing_engine_run.ProcessingEngineRunFacet(
            _version("pyspark"), "spark", _version("spark-ckpt"), producer=PRODUCER
        )  # fmt: skip
        run = Run(run_id(self._store_id, incarnation), {"processing_engine": engine, **(facets or {})})
        event = RunEvent(
            eventTime=self._now().isoformat(timespec="milliseconds"),
            producer=PRODUCER,
            eventType=state,
            run=run,
            job=self._job,
            inputs=self._inputs(manifest),
            outputs=self._outputs(manifest),
        )
        self._client.emit(event)

    def _inputs(self, manifest: Manifest | None) -> list[InputDataset]:
        return [
            each
            for end in (*self._sources.values(), *self._found())
            for each in _read(end, manifest.cursors.get(end.name) if manifest else None)
        ]

    def _outputs(self, manifest: Manifest | None) -> list[OutputDataset]:
        return [each for end in self._sinks.values() for each in _written(end, manifest)]


STOPPED = "stopped"
"""Reason in the end event of an incarnation that was stopped on request."""


def run_id(store_id: str, incarnation: int) -> str:
    """Return the run id of an incarnation; every reporter computes the same."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{PRODUCER}/{store_id}/{incarnation}"))


def _read(end: DatasetEnd, cursor: Cursor | None) -> list[InputDataset]:
    found: list[InputDataset] = []
    for each in named(end, cursor):
        # A cursor of Kafka has an entry for each topic; any other one is of one dataset.
        part = {each.name: cursor[each.name]} if cursor and each.name in cursor else cursor
        facets: dict[str, InputDatasetFacet] = (
            {"spark_ckpt_cursor": CursorInputFacet(dict(part), producer=PRODUCER)} if part else {}
        )
        # An empty schema would replace the one that a catalogue has.
        found.append(
            InputDataset(each.namespace, each.name, facets, facets={"schema": _schema(end)} if end.columns else {})
        )
    return found


def _written(end: DatasetEnd, manifest: Manifest | None) -> list[OutputDataset]:
    output = manifest.outputs.get(end.name) if manifest else None
    facets: dict[str, OutputDatasetFacet] = {}
    if output is not None:
        size = sum(file.size_bytes for file in output.files)
        statistics = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=output.rows, size=size, producer=PRODUCER
        )  # fmt: skip
        facets = {"outputStatistics": statistics}
    return [OutputDataset(each.namespace, each.name, facets, facets={"schema": _schema(end)}) for each in named(end)]


def _schema(end: DatasetEnd) -> schema_dataset.SchemaDatasetFacet:
    fields = [schema_dataset.SchemaDatasetFacetFields(column.name, column.type) for column in end.columns]
    return schema_dataset.SchemaDatasetFacet(fields, producer=PRODUCER)


@cache
def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"
