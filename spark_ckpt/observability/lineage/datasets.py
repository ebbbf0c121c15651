"""Names of sources and sinks in lineage: OpenLineage's names for topics, tables and folders. Pure.

https://openlineage.io/docs/spec/naming: a Kafka topic is `kafka://host:port` and its name. A folder is its scheme and
bucket, and the path.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from spark_ckpt.connector import Cursor, Json

_FOLDER = re.compile(r"(\w[\w+.-]*:)?/")
_TOPIC = re.compile(r"[\w.-]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a dataset; its type is in Spark's spelling."""

    name: str
    type: str


@dataclass(frozen=True, slots=True)
class DatasetEnd:
    """A source or sink of a job: its name, its own description (`describe`), and its columns."""

    name: str
    told: Mapping[str, str]
    columns: Sequence[Column]


@dataclass(frozen=True, slots=True)
class Named:
    """A dataset as catalogues know it."""

    namespace: str
    name: str


def named(end: DatasetEnd, cursor: Cursor | None = None) -> list[Named]:
    """Return the datasets of a source or sink, one for each known topic.

    `cursor`: the source's position; it names the topics of a pattern.
    """
    kind, path = end.told.get("kind", ""), end.told.get("path")
    if kind == "kafka":
        topics = sorted(cursor) if cursor else end.told.get("topic", "").split(",")
        servers = end.told.get("servers", "").split(",")[0]  # a namespace has one server
        # Of a pattern, or a sink with a topic per row, no topic is known: a catalogue would list a topic that does not exist.
        known = filter(_TOPIC.fullmatch, topics)
        return [Named(f"kafka://{servers}" if servers else kind, topic) for topic in known]
    if kind == "edge" and path is not None:
        # A store has several edges; this is the folder of one.
        path = f"{path.rstrip('/')}/edges/{end.told.get('edge', end.name)}"
    if path is not None:
        return [_of_path(path)]
    return [Named(kind or "unknown", end.name)]


def spark_source(description: str, end_offset: Json) -> DatasetEnd:
    """Return a source of a plain query, from the description and the end offset in Spark's progress.

    The description names a folder or table, or Kafka's topics; `end_offset` has the topics of a pattern. Spark's progress has no
    Kafka servers and no columns.
    """
    kind, _, inside = description.removesuffix("]").partition("[")
    if kind.startswith("Kafka") and isinstance(end_offset, Mapping):
        return DatasetEnd(description, {"kind": "kafka", "topic": ",".join(sorted(end_offset))}, ())
    if kind.startswith("Kafka"):
        # For example `Subscribe[orders, payments]`.
        topics = re.sub(r"\s", "", inside.partition("[")[2].rstrip("]"))
        return DatasetEnd(description, {"kind": "kafka", "topic": topics}, ())
    if _FOLDER.match(inside):
        return DatasetEnd(description, {"kind": kind, "path": _short(inside)}, ())
    return DatasetEnd(inside or description, {"kind": kind}, ())


def _short(uri: str) -> str:
    """Return the URI of a local file with Hadoop's one slash as a path."""
    return re.sub(r"^file:/+", "/", uri)


def _of_path(path: str) -> Named:
    parts = urlsplit(path)
    if parts.scheme in ("", "file"):
        return Named("file", parts.path.rstrip("/") or "/")
    # Credentials may precede a bucket. On Azure the part before the @ is the container, which belongs to the name.
    place = parts.netloc.rpartition("@")[2] if parts.scheme in ("s3", "s3a", "gs") else parts.netloc
    scheme = {"s3a": "s3"}.get(parts.scheme, parts.scheme)  # Hadoop's name of the same place
    return Named(f"{scheme}://{place}", parts.path.strip("/") or "/")
