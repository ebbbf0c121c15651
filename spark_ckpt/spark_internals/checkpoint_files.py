"""Files of Spark's streaming checkpoint and the meaning of their lines. On the driver.

Spark writes `offsets/<batch>` before a batch runs, so it exists inside `foreachBatch`. Line 1 is a version, line 2 the
batch's metadata; then there is one line per source in plan order. `commits/<batch>` is written after the batch.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ckpt.spark_internals.jvm import java_session, jvm_of
from spark_ckpt.spark_internals.names import SparkName

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_PACKAGE = "org.apache.spark.sql.execution.streaming"
_FOLDER = "sql/core/src/main/scala/org/apache/spark/sql/execution/streaming"
_NO_EPOCH = "it is not known where a batch ends: no epoch ends"
_NO_SEED = "a source of Spark's own does not go on from a cut"
NAMES = (
    SparkName(
        "offsets/<batch>", f"{_PACKAGE}.checkpointing.OffsetSeqLog ({_FOLDER}/checkpointing/OffsetSeqLog.scala)",
        "parse_offsets, offsets_path, logged_offsets", _NO_EPOCH,
    ),
    SparkName(
        "batchWatermarkMs", f"{_PACKAGE}.checkpointing.OffsetSeqMetadata ({_FOLDER}/checkpointing/OffsetSeq.scala)",
        "parse_offsets", _NO_EPOCH,
    ),
    SparkName(
        "commits/<batch>", f"{_PACKAGE}.checkpointing.CommitLog ({_FOLDER}/checkpointing/CommitLog.scala)",
        "seeded_checkpoint", _NO_SEED,
    ),
    SparkName(
        "metadata", f"{_PACKAGE}.runtime.StreamMetadata ({_FOLDER}/runtime/StreamMetadata.scala)",
        "seeded_checkpoint", _NO_SEED,
    ),
    SparkName(
        "OffsetSeqMetadata.apply", f"{_PACKAGE}.checkpointing.OffsetSeqMetadata ({_FOLDER}/checkpointing/OffsetSeq.scala)",
        "batch_metadata", _NO_SEED,
    ),
    SparkName(
        "sources/<number>/0",
        f"{_PACKAGE}.sources.RateStreamMicroBatchStream ({_FOLDER}/sources/RateStreamMicroBatchStream.scala)",
        "rate_start_file", "rate counts its seconds from the restart: other rows than before it",
    ),
    SparkName(
        "CHECKPOINT_FOLDERS", f"{_PACKAGE}.runtime.StreamExecution ({_FOLDER}/runtime/StreamExecution.scala)",
        "CHECKPOINT_FOLDERS", "Spark starts a process for each folder: a start takes 10 ms more for each",
    ),
)  # fmt: skip

_VERSION = "v1"
_NO_OFFSET = "-"
_ENDED = -1  # the number before that of the first batch
COMMITTED = f'{_VERSION}\n{{"nextBatchWatermarkMs":0}}'
"""Spark's text about a committed batch without a watermark."""

CHECKPOINT_FOLDERS = ("offsets", "commits", "state")
"""Folders that Spark creates when a query starts.

`state` must be empty: Spark would treat its content as another query's.
"""


class OtherFormat(ValueError):
    """The offset log has an unknown format. `version` is the one found; `hint` names settings that select it."""

    def __init__(self, version: str) -> None:
        super().__init__(f"Spark's offset log is in format {version!r}")
        self.version = version
        self.hint = "unset spark.sql.streaming.queryEvolution.enableSourceEvolution and asyncProgressTrackingEnabled"


@dataclass(frozen=True, slots=True)
class Offsets:
    """A batch's end. `lines` has one JSON text per source in plan order, None for a source that has not been read yet."""

    watermark_ms: int
    lines: tuple[str | None, ...]


def offsets_path(batch: int) -> str:
    """Return the path of a batch's end, relative to the checkpoint."""
    return f"offsets/{batch}"


def parse_offsets(text: str) -> Offsets:
    """Parse a file of `offsets`. Raises `OtherFormat`."""
    version, metadata, *lines = text.split("\n")
    if version != _VERSION:
        raise OtherFormat(version)
    found = tuple(None if line == _NO_OFFSET else line for line in lines)
    return Offsets(int(json.loads(metadata)["batchWatermarkMs"]), found)


def logged_offsets(checkpoint: Path) -> list[tuple[int, Offsets]]:
    """Return number and end of every batch in a local checkpoint, oldest first. Raises `OtherFormat`."""
    # By a digit: Hadoop's checksums there are hidden files.
    files = sorted((checkpoint / "offsets").glob("[0-9]*"), key=lambda path: int(path.name))
    return [(int(path.name), parse_offsets(path.read_text())) for path in files]


def seeded_checkpoint(
    offsets: Sequence[str | None],
    files: Sequence[Mapping[str, str]],
    metadata: str,
    query: str,
    last_batch: int = _ENDED,
    commit: str = COMMITTED,
) -> dict[str, str]:
    """Return the files of a checkpoint whose next batch begins at `offsets`: text by relative path.

    - `offsets`: one per source in plan order; None for a source that finds its own position.
    - `files`: the files that each source keeps in the checkpoint.
    - `metadata`: see `batch_metadata`.
    - `query`: the query's id. Spark accepts offsets only if the id is present.
    - `last_batch`: the next one is one more; -1 for a checkpoint without state. `commit`: Spark's text about it.

    The last batch is committed, and the one before ends at the same position: Spark requests the rows between the two
    from older sources. The file that Spark looks for first is last.
    """
    written = {"metadata": json.dumps({"id": query})}
    written |= {f"sources/{number}/{name}": text for number, each in enumerate(files) for name, text in each.items()}
    # Spark's own mark for a source that has not been read: it begins by itself.
    lines = [_NO_OFFSET if offset is None else offset for offset in offsets]
    text = "\n".join([_VERSION, metadata, *lines])
    return written | {
        f"commits/{last_batch}": commit,
        offsets_path(last_batch - 1): text,
        offsets_path(last_batch): text,
    }


def write_ended_checkpoint(folder: Path, batch: int, metadata: str, commit: str) -> None:
    """Write the files of a checkpoint without sources that ends with a committed batch; see `seeded_checkpoint`."""
    for path, text in seeded_checkpoint([None], [], metadata, str(uuid.uuid4()), batch, commit).items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)


def metadata_of(text: str) -> str:
    """Return the metadata of a batch from its file of `offsets`, as Spark wrote it."""
    return text.split("\n", 2)[1]


def batch_metadata(spark: SparkSession, shuffle_partitions: int) -> str:
    """Return a batch's metadata as Spark writes it. Spark gives a missing setting the value of an old version of Spark."""
    log = jvm_of(spark).org.apache.spark.sql.execution.streaming.checkpointing
    # Watermark and time of the batch are 0.
    metadata = json.loads(log.OffsetSeqMetadata.apply(0, 0, java_session(spark).conf()).json())
    # Spark takes the number of state partitions from here, not from the session (SPARK-19873).
    metadata["conf"]["spark.sql.shuffle.partitions"] = str(shuffle_partitions)
    return json.dumps(metadata)


def rate_start_file(start_ms: int) -> dict[str, str]:
    """Return the checkpoint file of the source `rate`: the time that its seconds count from, in epoch milliseconds."""
    return {"0": f"{_VERSION}\n{start_ms}"}
