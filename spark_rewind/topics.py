"""Bounds by time for the records that a query wrote to a Kafka topic. Its checkpoint holds no offsets of them.

Spark's Kafka sink leaves no batch number in the topic. The log holds the time at which each batch began, and a batch
writes its first record later. So its records begin at or after the end of the topic at that time. Two sources tell that
end:

- the broker's time index: the producer or the broker stamps each record when it is sent, so no record of the batch is
  older. The bound is the first offset whose timestamp is not older.
- a reader of the topic: records that it took in an earlier batch existed already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from spark_rewind.checkpoint import QueryCheckpoint
from spark_rewind.positions import TopicPartition

UNBOUNDED = 2**62
"""Bound of a writer that has not begun another batch: every record counts."""


class TopicIndex(Protocol):
    """A broker's view of a topic, by partition."""

    def earliest(self, topic: str) -> Mapping[int, int]:
        """Return the first offsets that retention has kept."""

    def ends(self, topic: str) -> Mapping[int, int]:
        """Return the offsets after the last record."""

    def first_at(self, topic: str, at_ms: int) -> Mapping[int, int]:
        """Return the first offsets whose timestamp is at or after a time. Partitions without one are left out."""


Seen = Sequence[tuple[int, Mapping[TopicPartition, int]]]
"""Batches of readers: time at which each began (milliseconds since 1970), with its end offsets."""


def boundaries(
    writer: QueryCheckpoint,
    points: Sequence[int | None],
    topic: str,
    partitions: Sequence[int],
    seen: Seen,
    broker: TopicIndex | None,
    skew_ms: int,
) -> dict[int, dict[int | None, int]]:
    """Return bounds by partition and by point of the writer. Records of batches after that point have higher offsets.

    - `points`: indices of the writer's points, oldest first.
    - `seen`: batches of readers, the bound without a `broker`.
    - `skew_ms`: largest difference between clocks, in milliseconds.
    """
    rows: list[Mapping[int, int]] = []
    for index in points:
        at_ms = next_began_ms(writer, index)
        if at_ms is None:
            rows.append(dict.fromkeys(partitions, UNBOUNDED))
        elif broker is not None:
            rows.append(_asked(broker, topic, partitions, at_ms - skew_ms))
        else:
            rows.append(_taken_before(seen, topic, partitions, at_ms - skew_ms))
    found: dict[int, dict[int | None, int]] = {}
    for partition in partitions:
        # a later point never has a lower bound, even if timestamps in the topic are out of order
        growing = accumulate((row.get(partition, 0) for row in rows), max)
        found[partition] = dict(zip(points, growing, strict=True))
    return found


def next_began_ms(writer: QueryCheckpoint, index: int | None) -> int | None:
    """Return a lower bound of the start of the first batch that a point excludes, None without such a batch.

    The log may have dropped that batch, if the point is pinned. It began after the point's own batch was committed.
    """
    # The current state excludes no batch.
    following = None if index is None else next((each for each in writer.known if each.number > index), None)
    if following is None or index is None or following.number == index + 1:
        return None if following is None else following.began_ms
    # 0 for an unknown time: then every record may be of a batch that is undone.
    own = writer.batch(index)
    return own.committed_ms if own is not None and own.committed_ms is not None else 0


def _asked(broker: TopicIndex, topic: str, partitions: Sequence[int], at_ms: int) -> dict[int, int]:
    found, ends = broker.first_at(topic, at_ms), broker.ends(topic)
    # A partition without a record from that time on has none of the batch: the bound is its end.
    return {each: found.get(each, ends.get(each, 0)) for each in partitions}


def _taken_before(seen: Seen, topic: str, partitions: Sequence[int], at_ms: int) -> dict[int, int]:
    known = [ends for began_ms, ends in seen if began_ms < at_ms]
    return {each: max((ends.get((topic, each), 0) for ends in known), default=0) for each in partitions}
