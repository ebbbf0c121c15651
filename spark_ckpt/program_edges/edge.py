"""`Edge`: the output of one job as the input of another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, overload

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.program_edges.sink import EdgeSink
from spark_ckpt.program_edges.source import EdgeSource


@overload
def Edge(name: str) -> EdgeSink: ...


@overload
def Edge(
    name: str,
    store: str,
    *,
    job: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    start: Literal["earliest", "latest"] = "earliest",
    maxFilesPerTrigger: int = 256,
    maxBytesPerTrigger: int = 128 << 20,
) -> EdgeSource: ...


def Edge(
    name: str,
    store: str | None = None,
    *,
    job: str | None = None,
    storage_options: Mapping[str, str] | None = None,
    start: Literal["earliest", "latest"] = "earliest",
    maxFilesPerTrigger: int = 256,
    maxBytesPerTrigger: int = 128 << 20,
) -> EdgeSink | EdgeSource:
    """Return an edge between two jobs: the sink of the sender, or, with `store`, the source of a reader.

    The rows stay in the sender's store. The commit of the sender's epoch publishes them, so a reader has them one
    epoch after the sender, each once. Any number of jobs may read one edge.

    - `store`, `storage_options`: store of the sending job, with options as deltalake takes them. The reader writes one
      row into its log from time to time: the position up to which the sender may delete.
    - `job`: name of the sending job; a store of another job is refused.
    - `start`: "earliest" begins with the oldest rows that the sender keeps, "latest" with its next epoch.
    - `maxFilesPerTrigger`, `maxBytesPerTrigger`: limits of a micro-batch.

    The reader has the sender's columns at the reader's start. Columns added later appear after a restart.
    """
    if store is None:
        return EdgeSink(name)
    if start not in ("earliest", "latest"):
        raise ConfigInvalid(f"start is 'earliest' or 'latest', not {start!r}")
    if maxFilesPerTrigger < 1 or maxBytesPerTrigger < 1:
        raise ConfigInvalid("maxFilesPerTrigger and maxBytesPerTrigger are at least 1")
    return EdgeSource(name, store, job, dict(storage_options or {}), start, maxFilesPerTrigger, maxBytesPerTrigger)
