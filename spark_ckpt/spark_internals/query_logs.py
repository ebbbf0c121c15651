"""The logs in a checkpoint of any streaming query of Spark 3.5 to 4.2: offsets, commits, files read, files written.

Each text begins with a line that contains its version. An unknown version is refused with its name, since the meaning
of its lines is unknown. The module parses text: it needs neither Spark nor Java.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from spark_ckpt.spark_internals.names import SparkName

_PACKAGE = "org.apache.spark.sql.execution.streaming"
_FOLDER = "sql/core/src/main/scala/org/apache/spark/sql/execution/streaming"
_NO_PLAN = "a checkpoint of a plain query cannot be read: no rewind is planned"
NAMES = (
    SparkName(
        "stateUniqueIds", f"{_PACKAGE}.checkpointing.CommitMetadataV2 ({_FOLDER}/checkpointing/CommitLog.scala)",
        "parse_commit", "which state files of a retried batch count is not known",
    ),
    SparkName(
        "batchTimestampMs", f"{_PACKAGE}.checkpointing.OffsetSeqMetadata ({_FOLDER}/checkpointing/OffsetSeq.scala)",
        "parse_batch", _NO_PLAN,
    ),
    SparkName(
        "nextBatchWatermarkMs", f"{_PACKAGE}.checkpointing.CommitMetadata ({_FOLDER}/checkpointing/CommitLog.scala)",
        "parse_commit, commit_text", "an adopted job's watermark begins at 0",
    ),
    SparkName(
        "logOffset", f"{_PACKAGE}.runtime.FileStreamSourceOffset ({_FOLDER}/runtime/FileStreamSourceOffset.scala)",
        "log_offset_of", "files that a batch read are not known",
    ),
)  # fmt: skip

ID_FILE, OFFSETS, COMMITS, SOURCES, STATE, SINK_LOG = (
    "metadata",
    "offsets",
    "commits",
    "sources",
    "state",
    "_spark_metadata",
)
"""Files and folders of a checkpoint; the last one is in the folder that the file sink writes to."""

COMPACT = ".compact"
PLACEHOLDER = "spark_rewind.placeholder"
"""Setting in a batch's metadata that marks a placeholder: no batch ran here, and it ends where the next one ends."""

FENCE = "spark-ckpt rewind "
"""First text of a log file whose only purpose is to keep its query from running.

Spark's files begin with a version, `v1`.
"""

_NO_OFFSET = "-"
_VERSION = re.compile(r"v(\d+)")
_LAST_MS = 253_402_300_799_999
"""End of the year 9999 in epoch milliseconds."""
_DIGITS_MAX = 18
_OFFSET_VERSIONS, _COMMIT_VERSIONS, _FILE_VERSIONS = ("v1", "v2"), ("v1", "v2"), ("v1",)


class UnknownFormat(ValueError):
    """A text has an unknown version; `version` is its first line."""

    def __init__(self, version: str, known: Sequence[str]) -> None:
        super().__init__(f"format {version[:40]!r}; {' and '.join(known)} can be read")
        self.version = version


class Unreadable(ValueError):
    """A text does not have the content of its place: it is truncated or damaged."""


@dataclass(frozen=True, slots=True)
class LoggedBatch:
    """A file of `offsets`.

    - `began_ms`: time at which its ends were fixed, before it ran, in epoch milliseconds.
    - `offsets`: JSON by source; None for a source that has not been read. Sources are numbered in the order of the
      plan, or have the user's names (version 2).
    - `conf`: settings that the query keeps permanently.
    - `watermark_ms`: watermark of the batch in epoch milliseconds, 0 if there is none yet.
    """

    began_ms: int
    offsets: Mapping[str, str | None]
    conf: Mapping[str, str]
    watermark_ms: int = 0


StateIds = Mapping[int, Sequence[Sequence[str]]]
"""By operator: for each partition, the ids of the stores' files."""


@dataclass(frozen=True, slots=True)
class LoggedCommit:
    """A file of `commits`.

    - `state_ids`: None if the state's files have no ids.
    - `next_watermark_ms`: watermark of the next batch in epoch milliseconds.
    """

    state_ids: StateIds | None
    next_watermark_ms: int = 0


def parse_id(text: str) -> str:
    """Return the query's id from `metadata`. Raises `Unreadable`."""
    found = _object(text).get("id")
    if not isinstance(found, str) or not found:
        raise Unreadable("it names no query")
    return found


def parse_batch(text: str) -> LoggedBatch:
    """Parse a file of `offsets`. Raises `UnknownFormat`, `Unreadable`."""
    version, rest = _versioned(text, _OFFSET_VERSIONS)
    if not rest or not rest[0].strip():
        raise Unreadable("the batch has no metadata")
    metadata = _object(rest[0])
    began, conf = metadata.get("batchTimestampMs"), metadata.get("conf", {})
    if not _is_count(began) or began > _LAST_MS or not isinstance(conf, dict):
        raise Unreadable("the batch does not say when it began")
    watermark = _watermark(metadata, "batchWatermarkMs")
    numbered = [(str(number), line) for number, line in enumerate(rest[1:])]
    pairs = numbered if version == "v1" else [_named(line) for line in rest[1:]]
    found = {name: None if line == _NO_OFFSET else line for name, line in pairs}
    if len(found) < len(pairs):
        raise Unreadable("a source is named twice")
    return LoggedBatch(began, found, {str(name): str(value) for name, value in conf.items()}, watermark)


def with_ends(text: str, ends: Mapping[str, str], marks: Mapping[str, str]) -> str:
    """Return a file of `offsets` with other offsets for some sources, and with settings added to its metadata.

    - `ends`: new offset by source, with the keys of `LoggedBatch.offsets`.
    - `marks`: settings to add. Spark reads known settings from the metadata and ignores others.

    Everything else stays as it was. Raises as `parse_batch`.
    """
    parse_batch(text)  # refuses what is unknown, before a line is replaced
    version, metadata, *lines = text.split("\n")
    if marks:
        value = _object(metadata)
        metadata = json.dumps(value | {"conf": {**value.get("conf", {}), **marks}}, separators=(",", ":"))
    if version.strip() == "v1":
        lines = [ends.get(str(number), line) for number, line in enumerate(lines)]
    else:
        named = [(_named(line)[0], line) for line in lines]
        lines = [f"{name}:{ends[name]}" if name in ends else line for name, line in named]
    return "\n".join([version, metadata, *lines])


def parse_commit(text: str) -> LoggedCommit:
    """Parse a file of `commits`. Raises `UnknownFormat`, `Unreadable`."""
    version, rest = _versioned(text, _COMMIT_VERSIONS)
    metadata = _object(rest[0]) if rest and rest[0].strip() else {}
    watermark, ids = _watermark(metadata, "nextBatchWatermarkMs"), metadata.get("stateUniqueIds")
    if version == "v1" or ids is None:
        return LoggedCommit(None, watermark)
    if not isinstance(ids, dict) or not all(_are_ids(each) for each in ids.values()):
        raise Unreadable("its ids of the state are no ids")
    known = {int(operator): partitions for operator, partitions in ids.items() if operator.isdecimal()}
    return LoggedCommit(known, watermark)


def commit_text(next_watermark_ms: int) -> str:
    """Return a file of `commits` as Spark writes it if the state's files have no ids."""
    return f'{_COMMIT_VERSIONS[0]}\n{{"nextBatchWatermarkMs":{next_watermark_ms}}}'


def parse_file_entries(text: str) -> list[Mapping[str, Any]]:
    """Parse a file of the file source's `sources/<source>`, or of the file sink's log.

    Return one mapping per file, with `path`. Raises `UnknownFormat`, `Unreadable`.
    """
    _, rest = _versioned(text, _FILE_VERSIONS)
    entries: list[Mapping[str, Any]] = [_object(line) for line in rest if line.strip()]
    if not all(isinstance(entry.get("path"), str) for entry in entries):
        raise Unreadable("an entry names no file")
    return entries


def file_entries_text(entries: Sequence[Mapping[str, Any]]) -> str:
    """Return the text that `parse_file_entries` parses to `entries`."""
    return "\n".join([_FILE_VERSIONS[0], *(json.dumps(each, separators=(",", ":")) for each in entries)])


def parse_start(text: str) -> str:
    """Return a source's start offset, which it keeps in `sources/<source>/0`. Raises `UnknownFormat`, `Unreadable`.

    Kafka's file (`KafkaSourceInitialOffsetWriter`) begins with a zero byte, for Spark 2.1.
    """
    _, rest = _versioned(text.removeprefix("\0"), _FILE_VERSIONS)
    return "\n".join(rest)


def log_offset_of(value: Mapping[str, Any]) -> int | None:
    """Return the log entry in a file source's offset; None for offsets of other sources."""
    # offsets of other sources may contain this key among others
    found = value.get("logOffset") if set(value) == {"logOffset"} else None
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def batch_number(name: str) -> int | None:
    """Return the number in a log file's name, with or without `.compact`; None for a file outside of the log."""
    stem = name.removesuffix(COMPACT)
    # `isdecimal` alone accepts digits of other scripts, and a very long number would be no batch.
    return int(stem) if stem.isdecimal() and stem.isascii() and len(stem) <= _DIGITS_MAX else None


def _versioned(text: str, known: Sequence[str]) -> tuple[str, list[str]]:
    version, *rest = text.split("\n")
    version = version.strip()
    if not _VERSION.fullmatch(version):
        raise Unreadable("it does not begin with a version" if text else "it is empty")
    # A later version may give the same lines another meaning.
    if version not in known:
        raise UnknownFormat(version, known)
    return version, rest


def _named(line: str) -> tuple[str, str]:
    name, colon, offset = line.partition(":")
    if not colon or not name:
        raise Unreadable("an offset has no source")
    return name, offset


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Unreadable("it is not JSON") from error
    if not isinstance(found, dict):
        raise Unreadable("it is not a JSON object")
    return found


def _are_ids(partitions: object) -> bool:
    return isinstance(partitions, list) and all(
        isinstance(stores, list) and all(isinstance(one, str) for one in stores) for stores in partitions
    )


def _watermark(metadata: Mapping[str, Any], name: str) -> int:
    found = metadata.get(name, 0)
    if not _is_count(found) or found > _LAST_MS:
        raise Unreadable("its watermark is no time")
    return found


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0  # JSON's true is an int in Python
