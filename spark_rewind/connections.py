"""What connects queries and tables, as channels of the recovery line: what each has sent and received at each point.

Tables are processes as queries are: a table at a version has received the batches that its transactions name, and has sent
its versions to whoever reads it. So the two rules of the line say everything: what a table holds of an undone batch is an
orphan there, and a batch that a table lost would be lost for good if its query did not go back too.

Where nothing names what was passed on, time does. Spark fixes a batch's ends before it notes `batchTimestampMs`, and does
the batch's work after it. So what a reader took in a batch that began before a batch of the writer holds nothing of the latter.
That is a bound, not a position: such channels are not `exact`, and a reader may go back further than it had to.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from pathlib import Path

from checkpoint_protocols.ids import ChannelId, ProcessId
from spark_rewind.checkpoint import Batch, Checkpoint
from spark_rewind.positions import DeltaPosition, FilesPosition, KafkaPosition, TopicPartition
from spark_rewind.reading import file_of
from spark_rewind.sink_logs import SinkLog
from spark_rewind.tables import Table
from spark_rewind.topics import TopicIndex, boundaries

Index = int | None
"""Of a point: a batch or version, the state after it; -1 before all; None: as it is now, an unfinished batch included."""

BEGINNING = -1


class Kind(Enum):
    """What passes through a channel."""

    WRITES_TABLE = "batches into a table"
    READS_TABLE = "versions of a table"
    TOPIC = "records of a topic"
    FOLDER = "files of a folder"
    DECLARED = "something that was declared"


@dataclass(frozen=True, slots=True)
class Channel:
    """One way from a writer to a reader. `sent` and `received`: how much, by the point's index; messages count from 1.

    `what`: the table, topic or folder. `kept`: whether the reader can read it again. `exact`: else bounds by time.
    """

    name: ChannelId
    kind: Kind
    writer: ProcessId
    reader: ProcessId
    what: str
    sent: Mapping[Index, int]
    received: Mapping[Index, int]
    kept: bool = True
    exact: bool = True


def query_points(query: Checkpoint) -> list[Index]:
    """Indices of a query's points, oldest first."""
    start: list[Index] = [BEGINNING] if query.from_the_beginning else []
    done: list[Index] = [each.number for each in query.known if each.committed_ms is not None]
    return [*start, *done, *([None] if query.unfinished else [])]


def table_points(table: Table) -> list[Index]:
    """Indices of a table's points, oldest first; before its first version it was not there, or empty."""
    start: list[Index] = [BEGINNING] if table.versions[0].number == 0 else []
    return [*start, *(each.number for each in table.versions)]


def batch_at(query: Checkpoint, index: Index) -> Batch | None:
    """The newest batch that a point includes; None before all."""
    if index is None:
        return query.batches[-1] if query.batches else None
    return query.batch(index)


# -- tables ------------------------------------------------------------------------------------------------------------


def writes_table(query: Checkpoint, table: Table, app_id: str, name: ProcessId) -> Channel:
    """Batches that a table's transactions name: `app_id` is the query's id, or what it gives in `foreachBatch`."""
    found = [max((number for app, number in each.transactions if app == app_id), default=-1) for each in table.versions]
    before = table.before.get(app_id, -1)
    reached = list(accumulate(found, max, initial=before))[1:]
    known = sorted({before, *found} - {-1})
    sent = {index: _up_to(known, _number(query, index)) + 1 for index in query_points(query)}
    received: dict[Index, int] = {BEGINNING: 0}
    received |= {each.number: number + 1 for each, number in zip(table.versions, reached, strict=True)}
    label = ChannelId(f"{query.name} -> {table.root} as {app_id}")
    return Channel(label, Kind.WRITES_TABLE, _of(query), name, str(table.root), sent, received, kept=False)


def writes_table_untold(query: Checkpoint, table: Table, name: ProcessId, skew_ms: int) -> Iterator[Channel]:
    """Batches of a query that writes a table without transactions: what a version may hold, and what it holds for certain."""
    times = list(accumulate((each.at_ms for each in table.versions), max))
    first = query.known[0].number if query.known else 0
    may: dict[Index, int] = {BEGINNING: 0}
    sure: dict[Index, int] = {BEGINNING: 0}
    done = [each for each in query.known if each.committed_ms is not None]
    finished = done[-1].number + 1 if done else first
    ends = list(accumulate((each.committed_ms or 0 for each in done), max))
    for number, version in enumerate(table.versions):
        may[version.number] = _begun_by(query, times[number] + skew_ms)
        later = min((each.at_ms for each in table.versions[number + 1 :]), default=None)
        over = len(done) if later is None else bisect_right(ends, later - skew_ms - 1)
        sure[version.number] = done[over - 1].number + 1 if over else first
    where, writer = str(table.root), _of(query)
    everything = {index: _number(query, index) + 1 for index in query_points(query)}
    certain = {index: min(count, finished) for index, count in everything.items()}
    label = f"{query.name} -> {table.root} by time"
    yield Channel(ChannelId(label), Kind.WRITES_TABLE, writer, name, where, everything, may, exact=False)
    yield Channel(
        ChannelId(f"{label}, certain"), Kind.WRITES_TABLE, writer, name, where, certain, sure, kept=False, exact=False
    )


def reads_table(query: Checkpoint, table: Table, name: ProcessId) -> Channel | None:
    """Versions that a Delta source has read; None if no source of the query reads this table."""
    received = {index: _versions_read(query, index, table.ids) for index in query_points(query)}
    if not any(received.values()):
        return None
    sent: dict[Index, int] = {
        index: (index if index is not None else table.newest) + 1 for index in table_points(table)
    }
    label = ChannelId(f"{table.root} -> {query.name}")
    return Channel(label, Kind.READS_TABLE, name, _of(query), str(table.root), sent, received)


def _versions_read(query: Checkpoint, index: Index, ids: frozenset[str]) -> int:
    return max((each.versions for each in delta_positions(query, index) if each.table in ids), default=0)


def delta_positions(query: Checkpoint, index: Index) -> list[DeltaPosition]:
    """Where a query's Delta sources stand at a point."""
    batch = batch_at(query, index)
    return [each for each in batch.ends.values() if isinstance(each, DeltaPosition)] if batch else []


# -- topics ------------------------------------------------------------------------------------------------------------


def topic_positions(
    query: Checkpoint, index: Index, choose: Callable[[int, int], int] = max
) -> dict[TopicPartition, int]:
    """Where a query's Kafka sources stand at a point; where several read one partition, the furthest of them."""
    found: dict[TopicPartition, int] = {}
    batch = batch_at(query, index)
    for each in batch.ends.values() if batch else ():
        if isinstance(each, KafkaPosition):
            for place, offset in each.offsets.items():
                found[place] = choose(offset, found.get(place, offset))
    return found


def through_topic(
    writer: Checkpoint, readers: Sequence[Checkpoint], topic: str, broker: TopicIndex | None, skew_ms: int
) -> Iterator[Channel]:
    """Records of a topic, partition by partition, to each of its readers."""
    positions = {
        reader.name: {index: topic_positions(reader, index) for index in query_points(reader)} for reader in readers
    }
    seen = [
        (batch.began_ms, topic_positions(reader, None if batch is reader.unfinished else batch.number))
        for reader in readers
        for batch in reader.batches
    ]
    places = sorted({place for _, each in seen for place in each if place[0] == topic})
    bounds = boundaries(writer, query_points(writer), topic, [number for _, number in places], seen, broker, skew_ms)
    for reader in readers:
        for place in places:
            received = {index: each.get(place, 0) for index, each in positions[reader.name].items()}
            if any(received.values()):
                label = ChannelId(f"{writer.name} -> {reader.name} through {topic}/{place[1]}")
                what = f"topic {topic}, partition {place[1]}"
                yield Channel(
                    label, Kind.TOPIC, _of(writer), _of(reader), what, bounds[place[1]], received, exact=False
                )


# -- folders, and what is only declared ----------------------------------------------------------------------------------


def through_folder(writer: Checkpoint, reader: Checkpoint, written: SinkLog) -> Channel | None:
    """Files that a file sink wrote and a file source has read; None if it has read none of them."""
    batches = {_spelled(path): batch for path, batch in written.batches.items()}
    received = {index: _files_batch(reader, index, batches) + 1 for index in query_points(reader)}
    if not any(received.values()):
        return None
    sent = {index: _number(writer, index) + 1 for index in query_points(writer)}
    label = ChannelId(f"{writer.name} -> {reader.name} through {written.folder}")
    return Channel(label, Kind.FOLDER, _of(writer), _of(reader), str(written.folder), sent, received)


def _files_batch(reader: Checkpoint, index: Index, batches: Mapping[str, int]) -> int:
    batch = batch_at(reader, index)
    found = -1
    for source, position in batch.ends.items() if batch else ():
        if isinstance(position, FilesPosition) and source in reader.files:
            read = reader.files[source].up_to(position.log_offset)
            found = max(found, *(batches.get(_spelled(path), -1) for path in read), -1)
    return found


def _spelled(uri: str) -> str:
    local: Path | None = file_of(uri)
    return uri if local is None else str(local)


def declared_edge(writer: Checkpoint, reader: Checkpoint, over: str, skew_ms: int) -> Channel:
    """Batches of a writer that a reader may have seen when its own batch began."""
    received: dict[Index, int] = {}
    for index in query_points(reader):
        batch = batch_at(reader, index)
        received[index] = _begun_by(writer, batch.began_ms + skew_ms) if batch else 0
    received = dict(zip(received, accumulate(received.values(), max), strict=True))
    sent = {index: _number(writer, index) + 1 for index in query_points(writer)}
    label = ChannelId(f"{writer.name} -> {reader.name} through {over}")
    return Channel(label, Kind.DECLARED, _of(writer), _of(reader), over, sent, received, exact=False)


def _begun_by(writer: Checkpoint, at_ms: int) -> int:
    """How many batches may have begun by a time. Those in a gap behind a known batch may have, once it was committed."""
    known = writer.known
    began = list(accumulate((each.began_ms for each in known), max))
    found = bisect_right(began, at_ms)
    if found == 0:
        return known[0].number if known else 0
    last = known[found - 1]
    if found == len(known) or last.committed_ms is None or at_ms < last.committed_ms:
        return last.number + 1
    return known[found].number


def _of(query: Checkpoint) -> ProcessId:
    return ProcessId(query.name)


def _number(query: Checkpoint, index: Index) -> int:
    batch = batch_at(query, index)
    return batch.number if batch else BEGINNING


def _up_to(numbers: Sequence[int], most: int) -> int:
    found = bisect_right(numbers, most)
    return numbers[found - 1] if found else -1


def shrinking(values: Iterable[int]) -> bool:
    """Whether counts ever get smaller."""
    before = 0
    for value in values:
        if value < before:
            return True
        before = value
    return False
