"""Sends the rows of a shard from verified files to a producer; checks each topic before its first row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from spark_ckpt.errors import RowsRefused
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt_kafka.producer import Chunk, Headers, Progress, TransactionalProducer
from spark_ckpt_kafka.rows import StagedPart, StagedRows, VerifiedRows


@dataclass(frozen=True)
class LaneRows:
    """Rows of one shard of a sink.

    - `topic`: topic of every row; None if each row names its own.
    - `stamped`: name of the shard for audit headers; None for no headers.
    - `check_topics`: raises if a topic does not exist. A marker or a row for a missing topic would block.
    """

    sink: str
    lane: int
    topic: str | None
    stamped: str | None
    check_topics: Callable[[set[str]], None]

    def verified(
        self,
        epoch: int,
        root: str,
        storage_options: Mapping[str, str],
        parts: Sequence[StagedPart],
        progress: Progress,
    ) -> VerifiedRows:
        """Return the rows of the files after comparing every byte. Raises `EpochDamaged` or a `StoreOutage`."""
        where = {"epoch": epoch, "sink": self.sink, "lane": self.lane}
        return StagedRows(root, storage_options, parts, self.topic, self._stamp(epoch), where).verified(progress)

    def send(self, producer: TransactionalProducer, rows: VerifiedRows) -> None:
        """Send the rows in order. Raises `RowsRefused` for a row without a topic."""
        known: set[str] = set()
        for row_group in rows.row_groups():
            for chunk in row_group:
                self._check_new_topics(chunk, known)
                producer.send(chunk)
            hit(Failpoint.MID_SEND)

    def _check_new_topics(self, chunk: Chunk, known: set[str]) -> None:
        if self.topic:
            return
        named = {topic for topic in chunk.topics or () if topic is not None}
        if chunk.topics is None or None in chunk.topics:
            raise RowsRefused(
                "a row has no topic",
                hint="give KafkaSink(topic=...), or fill the column 'topic' in every row",
            )
        if new := named - known:
            self.check_topics(new)
            known |= new

    def _stamp(self, epoch: int) -> Headers:
        if self.stamped is None:
            return []
        return [("ckpt-lane", self.stamped.encode()), ("ckpt-epoch", str(epoch).encode())]
