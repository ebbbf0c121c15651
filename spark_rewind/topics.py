"""How far a query had written a Kafka topic: not in its checkpoint, so bounded by time.

Spark's Kafka sink leaves nothing in the topic that names a batch. What is known is when each batch began, before it wrote its
first record. So the end of a topic at that moment is where the batch's records begin, or lies before it; and there are two
ways to learn of it:

- the broker's time index: no record of the batch has an older timestamp, for its producer, or the broker, stamps it when it
  is sent. The first offset with a timestamp that is not older is the bound.
- a reader of the topic: what it took in a batch that began earlier was there already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol

from spark_rewind.checkpoint import Checkpoint
from spark_rewind.positions import TopicPartition

UNBOUNDED = 2**62
"""All that there is: the writer has not begun another batch."""


class TopicIndex(Protocol):
    """What a broker says of a topic, by partition."""

    def earliest(self, topic: str) -> Mapping[int, int]:
        """The first offset that retention has left."""

    def ends(self, topic: str) -> Mapping[int, int]:
        """The offset after the last record."""

    def first_at(self, topic: str, at_ms: int) -> Mapping[int, int]:
        """The first offset whose timestamp is not older than a time; a partition without one is left out."""


Seen = Sequence[tuple[int, Mapping[TopicPartition, int]]]
"""What readers took: when the batch began, and where it ended."""


def boundaries(
    writer: Checkpoint,
    points: Sequence[int | None],
    topic: str,
    partitions: Sequence[int],
    seen: Seen,
    broker: TopicIndex | None,
    skew_ms: int,
) -> dict[int, dict[int | None, int]]:
    """By partition and point of the writer: offsets below are not of its later batches."""
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
        growing = accumulate((row.get(partition, 0) for row in rows), max)
        found[partition] = dict(zip(points, growing, strict=True))
    return found


def next_began_ms(writer: Checkpoint, index: int | None) -> int | None:
    """A time that is not later than when the first batch began that a point does not include; None if none was begun.

    The log may have let go of that batch, if the point is a pinned one: it began after the point's own batch was committed.
    """
    following = None if index is None else next((each for each in writer.known if each.number > index), None)
    if following is None or index is None or following.number == index + 1:
        return None if following is None else following.began_ms
    own = writer.batch(index)
    return own.committed_ms if own is not None and own.committed_ms is not None else 0


def _asked(broker: TopicIndex, topic: str, partitions: Sequence[int], at_ms: int) -> dict[int, int]:
    found, ends = broker.first_at(topic, at_ms), broker.ends(topic)
    return {each: found.get(each, ends.get(each, 0)) for each in partitions}


def _taken_before(seen: Seen, topic: str, partitions: Sequence[int], at_ms: int) -> dict[int, int]:
    known = [ends for began_ms, ends in seen if began_ms < at_ms]
    return {each: max((ends.get((topic, each), 0) for ends in known), default=0) for each in partitions}
