"""Kafka records of undone batches. A rewind cannot retract them, so the plan lists them."""

from __future__ import annotations

from collections.abc import Iterator

from checkpoint_protocols.ids import ProcessId
from spark_rewind.checkpoint import Checkpoint
from spark_rewind.connections import topic_positions
from spark_rewind.inputs import Inputs
from spark_rewind.line import Line
from spark_rewind.plan import PublicRange
from spark_rewind.topics import TopicIndex, next_began_ms


def public_records(inputs: Inputs, line: Line, broker: TopicIndex | None) -> Iterator[PublicRange]:
    """Yield the offset ranges with records of undone batches, for each writer of a topic that rolls back."""
    for topic in inputs.declared.topics:
        for writer in map(inputs.query, topic.written_by):
            index = line.found.chosen[ProcessId(writer.name)].index
            began_ms = next_began_ms(writer, index)
            if began_ms is None:
                continue
            at_ms = began_ms - inputs.declared.clock_skew_ms
            taken = _Taken(inputs, topic.topic, at_ms)
            yield from (
                _known_to(broker, topic.topic, writer, at_ms, taken) if broker else _bounded(topic.topic, writer, taken)
            )


class _Taken:
    """Offsets that readers had reached by a time (`before`), and the furthest offsets until now, by partition."""

    def __init__(self, inputs: Inputs, topic: str, at_ms: int) -> None:
        self.before: dict[int, int] = {}
        self.furthest: dict[int, int] = {}
        for query in inputs.queries.values():
            for batch in query.batches:
                ends = topic_positions(query, None if batch is query.unfinished else batch.number)
                for (name, partition), offset in ends.items():
                    if name == topic:
                        self._add(partition, offset, batch.began_ms < at_ms)

    def _add(self, partition: int, offset: int, early: bool) -> None:
        self.furthest[partition] = max(offset, self.furthest.get(partition, 0))
        if early:
            self.before[partition] = max(offset, self.before.get(partition, 0))


def _known_to(broker: TopicIndex, topic: str, writer: Checkpoint, at_ms: int, taken: _Taken) -> Iterator[PublicRange]:
    first_at = broker.first_at(topic, at_ms)
    for partition, end in sorted(broker.ends(topic).items()):
        first = first_at.get(partition, end)
        if first < end:
            yield _range(topic, partition, writer, first, end - 1, taken)


def _bounded(topic: str, writer: Checkpoint, taken: _Taken) -> Iterator[PublicRange]:
    for partition in sorted(taken.furthest):
        yield _range(topic, partition, writer, taken.before.get(partition, 0), None, taken)


def _range(topic: str, partition: int, writer: Checkpoint, first: int, last: int | None, taken: _Taken) -> PublicRange:
    known = taken.furthest.get(partition)
    return PublicRange(
        topic=topic,
        partition=partition,
        writer=writer.name,
        first=first,
        last=last,
        known_last=None if known is None else known - 1,
        tight=last is not None,
    )
