"""What a source or sink is called in lineage: OpenLineage's names for topics, tables and folders. Pure.

https://openlineage.io/docs/spec/naming: a Kafka topic is `kafka://host:port` and its name, a folder its scheme and bucket and
the path.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from spark_ckpt.connector import Cursor


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a dataset, its type as Spark writes it."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class End:
    """A source or sink of a job. `told`: what it says of itself (`describe`)."""

    name: str
    told: Mapping[str, str]
    columns: Sequence[Column]


@dataclass(frozen=True, slots=True)
class Named:
    """A dataset as catalogues know it."""

    namespace: str
    name: str


def named(end: End, cursor: Cursor | None = None) -> list[Named]:
    """The datasets that an end is, one for each topic. `cursor`: where a source stands; it names the topics of a pattern."""
    kind, path = end.told.get("kind", ""), end.told.get("path")
    if kind == "kafka":
        topics = sorted(cursor) if cursor else end.told.get("topic", "").split(",")
        servers = end.told.get("servers", "").split(",")[0]
        return [Named(f"kafka://{servers}", topic) for topic in topics]
    if path is not None:
        return [_of_path(path)]
    return [Named(kind or "unknown", end.name)]


def _of_path(path: str) -> Named:
    parts = urlsplit(path)
    if parts.scheme in ("", "file"):
        return Named("file", parts.path.rstrip("/") or "/")
    place = parts.netloc.rpartition("@")[2] if parts.scheme in ("s3", "s3a", "gs") else parts.netloc
    scheme = {"s3a": "s3"}.get(parts.scheme, parts.scheme)
    return Named(f"{scheme}://{place}", parts.path.strip("/") or "/")
