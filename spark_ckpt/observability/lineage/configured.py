"""Turns the setting `lineage` into a listener with a thread of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_ckpt.errors import EnvironmentUnfit
from spark_ckpt.observability.aside import Aside
from spark_ckpt.observability.lineage.datasets import Column, DatasetEnd

if TYPE_CHECKING:
    from pyspark.sql.types import StructType


def lineage_of(
    namespace: str,
    job: str,
    store_id: str,
    sources: Sequence[DatasetEnd],
    sinks: Sequence[DatasetEnd],
    found: Callable[[], Sequence[DatasetEnd]] = tuple,
) -> Aside:
    """Return the listener that sends OpenLineage events, not started. Raises `EnvironmentUnfit` without the extra.

    `found`: returns sources that become known during the run. The listener's thread calls it.
    """
    try:
        from openlineage.client import OpenLineageClient

        from spark_ckpt.observability.lineage.openlineage import OpenLineage
    except ImportError as error:
        raise EnvironmentUnfit("lineage needs openlineage-python", hint="pip install 'spark-ckpt[lineage]'") from error
    return Aside(OpenLineage(OpenLineageClient(), namespace, job, store_id, sources, sinks, found=found))


def dataset_end(name: str, described: Mapping[str, str], schema: StructType, store: str = "") -> DatasetEnd:
    """Return a source or sink of `describe()` and the schema of its rows. `store`: the job's, which has its edges."""
    if store and described.get("kind") == "edge":
        described = {**described, "path": store}  # as the source of the job that reads the edge describes it
    columns = [Column(field.name, field.dataType.simpleString()) for field in schema.fields]
    return DatasetEnd(name, described, columns)
