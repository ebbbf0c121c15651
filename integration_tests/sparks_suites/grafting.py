"""While it is entered, `DataStreamWriter.start` starts a job in the place of a streaming query, Spark's command that
repartitions the state of a checkpoint repartitions that of the job's store, and Spark's readers of a checkpoint read the
newest epoch's.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from pyspark.sql import DataFrame, DataFrameReader, SparkSession
from pyspark.sql.streaming import DataStreamWriter
from pyspark.sql.streaming.query import StreamingCheckpointManager

from integration_tests.sparks_suites.queries import Change, JobQuery, Request, Site
from spark_ckpt.driver.maintenance.spark_partitions import repartition
from spark_ckpt.driver.query.stage_query import StageQuery
from spark_ckpt.store.existing import existing_store

_NO_COUNTERPART = ("foreach", "clusterBy")


@dataclass
class Grafting:
    """Jobs that a test started in place of its queries. `sites`: by the query's `checkpointLocation`."""

    planted: Change = lambda frame: frame
    queries: list[JobQuery] = field(default_factory=list)
    lacks: list[str] = field(default_factory=list)
    sites: dict[str, Site] = field(default_factory=dict)
    asked: int = 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Replace the writer's methods; at the end stop all running jobs."""
        with ExitStack() as stack:
            for name in _RECORDED:
                stack.enter_context(mock.patch.object(DataStreamWriter, name, _recording(name)))
            stack.enter_context(mock.patch.object(DataStreamWriter, "start", self._start()))
            stack.enter_context(mock.patch.object(DataStreamWriter, "toTable", self._to_table()))
            stack.enter_context(mock.patch.object(StreamingCheckpointManager, "repartition", self._repartition()))
            stack.enter_context(mock.patch.object(DataFrameReader, "option", self._option()))
            stack.enter_context(mock.patch.object(DataFrameReader, "load", self._load()))
            try:
                yield
            finally:
                for query in self.queries:
                    query.end()

    @property
    def restarts(self) -> int:
        """Number of starts of a job after its first one."""
        return sum(max(0, site.runs - 1) for site in self.sites.values())

    @property
    def raised(self) -> Exception | None:
        """The first error of a test's batch function; otherwise that of a job."""
        found = [*(query.raised for query in self.queries), *(query.error for query in self.queries)]
        return next(filter(None, found), None)

    def _start(self) -> Callable[..., Any]:
        real = DataStreamWriter.start

        def start(writer: Any, path: Any = None, format: Any = None, outputMode: Any = None, partitionBy: Any = None,
                  queryName: Any = None, **options: Any) -> JobQuery:  # fmt: skip
            given = {"format": format, "outputMode": outputMode, "partitionBy": partitionBy, "queryName": queryName}
            for name, value in given.items():
                if value is not None:
                    getattr(writer, name)(value)
            writer.options(**options, **({} if path is None else {"path": path}))
            request = _request(writer)
            # The job's own query.
            own = isinstance(getattr(request.function, "__self__", None), StageQuery)
            return real(writer) if own else self._started(request)

        return start

    def _to_table(self) -> Callable[..., JobQuery]:
        def to_table(writer: Any, tableName: str, **arguments: Any) -> JobQuery:
            _request(writer).table = tableName
            return writer.start(**arguments)

        return to_table

    def _repartition(self) -> Callable[..., None]:
        real = StreamingCheckpointManager.repartition

        def repartitioned(manager: Any, location: str, partitions: int, *arguments: Any) -> None:
            site = self.sites.get(location)
            if site is None:  # the checkpoint that the job's own command creates
                real(manager, location, partitions, *arguments)
            else:
                site.partitions = partitions
                repartition(existing_store(location), SparkSession.active, partitions)

        return repartitioned

    def _option(self) -> Callable[..., DataFrameReader]:
        real = DataFrameReader.option

        def option(reader: Any, key: str, value: Any) -> DataFrameReader:
            return real(reader, key, self._checkpoint(value) if key == "path" else value)

        return option

    def _load(self) -> Callable[..., DataFrame]:
        real = DataFrameReader.load

        def load(reader: Any, path: Any = None, *arguments: Any, **options: Any) -> DataFrame:
            return real(reader, self._checkpoint(path), *arguments, **options)

        return load

    def _checkpoint(self, path: Any) -> Any:
        site = self.sites.get(path) if isinstance(path, str) else None
        return path if site is None else site.checkpoint()

    def _started(self, request: Request) -> JobQuery:
        self.asked += 1
        place = request.options.get("checkpointlocation") or tempfile.mkdtemp(prefix="store-")
        site = self.sites.setdefault(place, Site(Path(place)))
        site.store.mkdir(parents=True, exist_ok=True)
        query = JobQuery(request, site, self.lacks, self.planted)
        self.queries.append(query)
        query.begin()
        return query


def _request(writer: Any) -> Request:
    if "asked" not in vars(writer):
        writer.asked = Request(vars(writer)["_df"])
    return writer.asked


def _recording(name: str) -> Callable[..., Any]:
    """A method of the writer that also notes its arguments, once Spark has accepted them."""
    real = getattr(DataStreamWriter, name)

    def method(writer: Any, *args: Any, **kwargs: Any) -> Any:
        result = real(writer, *args, **kwargs)
        _RECORDED[name](_request(writer), *args, **kwargs)
        return result

    return method


def _triggered(request: Request, **trigger: Any) -> None:
    for kind in trigger.keys() & {"continuous", "realTime"}:
        request.lacks = f"`trigger({kind}=...)`"


def _flat(columns: Any) -> list[str]:
    return [name for each in columns for name in ([each] if isinstance(each, str) else each)]


_RECORDED: dict[str, Callable[..., None]] = {
    "outputMode": lambda request, mode: setattr(request, "mode", mode),
    "format": lambda request, source: setattr(request, "format", source),
    "queryName": lambda request, name: setattr(request, "name", name),
    "option": lambda request, key, value: request.options.update({key.lower(): str(value)}),
    "options": lambda request, **given: request.options.update({key.lower(): str(v) for key, v in given.items()}),
    "partitionBy": lambda request, *columns: request.partition.extend(_flat(columns)),
    "foreachBatch": lambda request, function: setattr(request, "function", function),
    "trigger": _triggered,
    **{
        name: (lambda request, *_, called=name: setattr(request, "lacks", f"`DataStreamWriter.{called}`"))
        for name in _NO_COUNTERPART
    },
}
