"""Channels between queries and tables for the recovery line: counts of sent and received data at each point.

Tables are processes like queries. A table at a version has received the batches that its transactions name. It has sent
its versions to its readers. So the two rules of the line cover every case:

- a batch that is undone at its query is an orphan in the table;
- a batch that a table lost exists nowhere else, so its query rolls back, too.

Some data carries no name of its batch. Then time bounds it: Spark fixes a batch's ends, notes `batchTimestampMs`, and
then works on the batch. A reader's batch that began before a batch of the writer holds no data of that batch. This is a
bound and no position: such channels are not `exact`, and a reader may roll back further than necessary.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate
from pathlib import Path

from checkpoint_protocols.ids import ChannelId, ProcessId
from spark_rewind.checkpoint import Batch, QueryCheckpoint
from spark_rewind.positions import DeltaPosition, FilesPosition, KafkaPosition, TopicPartition
from spark_rewind.reading import file_of
from spark_rewind.sink_logs import SinkLog
from spark_rewind.source_files import FileLog
from spark_rewind.tables import Table
from spark_rewind.topics import TopicIndex, boundaries

Index = int | None
"""Index of a point: the state after this batch or version. -1 precedes all; None is the current state.

The current state includes an unfinished batch.
"""

BEGINNING = -1


class ConnectionKind(Enum):
    """Kind of data that passes through a channel."""

    WRITES_TABLE = "batches into a table"
    WRITES_EPOCHS = "epochs of an outbox into a table"
    READS_TABLE = "versions of a table"
    TOPIC = "records of a topic"
    FOLDER = "files of a folder"
    DECLARED = "something that was declared"


@dataclass(frozen=True, slots=True)
class Channel:
    """A channel from a writer to a reader.

    - `sent`, `received`: counts by the point's index; messages count from 1.
    - `what`: the table, topic or folder.
    - `kept`: true if the reader can read the data again.
    - `exact`: false for bounds by time.
    """

    name: ChannelId
    kind: ConnectionKind
    writer: ProcessId
    reader: ProcessId
    what: str
    sent: Mapping[Index, int]
    received: Mapping[Index, int]
    kept: bool = True
    exact: bool = True


def query_points(query: QueryCheckpoint) -> list[Index]:
    """Return the indices of a query's points, oldest first."""
    start: list[Index] = [BEGINNING] if query.from_the_beginning else []
    done: list[Index] = [each.number for each in query.known if each.committed_ms is not None]
    return [*start, *done, *([None] if query.unfinished else [])]


def table_points(table: Table) -> list[Index]:
    """Return the indices of a table's points, oldest first. Before version 0 the table was absent or empty."""
    start: list[Index] = [BEGINNING] if table.versions[0].number == 0 else []
    return [*start, *(each.number for each in table.versions)]


def batch_at(query: QueryCheckpoint, index: Index) -> Batch | None:
    """Return the newest batch that a point includes, None for the beginning."""
    if index is None:
        return query.batches[-1] if query.batches else None
    return query.batch(index)


# -- tables ------------------------------------------------------------------------------------------------------------


def writes_table(query: QueryCheckpoint, table: Table, app_id: str, name: ProcessId) -> Channel:
    """Return the channel of batches that a table's transactions name.

    `app_id`: the query's id, or its `txnAppId` in `foreachBatch`.
    """
    found = [max((number for app, number in each.transactions if app == app_id), default=-1) for each in table.versions]
    before = table.before.get(app_id, -1)
    # A version without a transaction of the query holds the batches of the one before it.
    reached = list(accumulate(found, max, initial=before))[1:]
    # a batch that the table does not name wrote nothing to it: it counts as the named one before it
    known = sorted({before, *found} - {-1})
    # One more than the number, here and below: batches count from 0, messages of a channel from 1.
    sent = {index: _up_to(known, _number(query, index)) + 1 for index in query_points(query)}
    received: dict[Index, int] = {BEGINNING: 0}
    received |= {each.number: number + 1 for each, number in zip(table.versions, reached, strict=True)}
    label = ChannelId(f"{query.name} -> {table.root} as {app_id}")
    return Channel(label, ConnectionKind.WRITES_TABLE, _of(query), name, str(table.root), sent, received, kept=False)


def writes_epochs(
    query: QueryCheckpoint, table: Table, app_id: str, name: ProcessId, bases: Mapping[Index, int | None]
) -> Channel:
    """Return the channel of the epochs that a query's outbox published to a table.

    `app_id`: of the sink. `bases`: by the query's point the epoch that the outbox continues from; None if it is unknown.
    """
    from spark_ckpt_delta.marker import epoch_in

    found = [
        epoch_in(max((number for app, number in each.transactions if app == app_id), default=0))
        for each in table.versions
    ]
    before = epoch_in(table.before.get(app_id, 0))
    reached = list(accumulate(found, max, initial=before))[1:]
    # an epoch that the table does not name has no rows for it: it counts as the named one before it
    known = sorted({before, *found} - {0})
    sent: dict[Index, int] = {}
    count, indices = 0, query_points(query)
    for index in indices:
        base = bases[index]
        if index is None or index == indices[-1]:
            # a plan does not judge the present, even if the log is older than the table
            count = max(known, default=0)
        # A point without an epoch in the log counts like the point before it. The graph marks it as gone.
        elif base is not None:
            count = max(_up_to(known, base), 0)
        sent[index] = count
    received: dict[Index, int] = {BEGINNING: 0}
    received |= {each.number: epoch for each, epoch in zip(table.versions, reached, strict=True)}
    label = ChannelId(f"{query.name} -> {table.root} as {app_id}")
    return Channel(label, ConnectionKind.WRITES_EPOCHS, _of(query), name, str(table.root), sent, received, kept=False)


def writes_table_untold(query: QueryCheckpoint, table: Table, name: ProcessId, skew_ms: int) -> Iterator[Channel]:
    """Return two channels of a query that writes a table without transactions.

    The first counts the batches that a version may hold, the second those that it certainly holds.
    """
    times = list(accumulate((each.at_ms for each in table.versions), max))
    # the earliest time of any later version: clocks of writers may go backwards
    earliest = list(accumulate((each.at_ms for each in reversed(table.versions)), min))[::-1]
    first = query.known[0].number if query.known else 0
    may: dict[Index, int] = {BEGINNING: 0}
    sure: dict[Index, int] = {BEGINNING: 0}
    done = [each for each in query.known if each.committed_ms is not None]
    finished = done[-1].number + 1 if done else first
    ends = list(accumulate((each.committed_ms or 0 for each in done), max))
    for number, version in enumerate(table.versions):
        # a version may hold each batch that began before it was written
        may[version.number] = begun_by(query, times[number] + skew_ms)
        # a batch that ended before the next version was written is in this version or an earlier one
        later = next(iter(earliest[number + 1 : number + 2]), None)
        # The skew counts against both bounds: a version may hold more batches, and surely holds fewer.
        over = len(done) if later is None else bisect_right(ends, later - skew_ms - 1)
        sure[version.number] = done[over - 1].number + 1 if over else first
    where, writer = str(table.root), _of(query)
    everything = {index: _number(query, index) + 1 for index in query_points(query)}
    # An unfinished batch may have written nothing yet, so no version has to hold it.
    certain = {index: min(count, finished) for index, count in everything.items()}
    label = f"{query.name} -> {table.root} by time"
    yield Channel(ChannelId(label), ConnectionKind.WRITES_TABLE, writer, name, where, everything, may, exact=False)
    yield Channel(
        ChannelId(f"{label}, certain"),
        ConnectionKind.WRITES_TABLE,
        writer,
        name,
        where,
        certain,
        sure,
        kept=False,
        exact=False,
    )


def reads_table(query: QueryCheckpoint, table: Table, name: ProcessId) -> Channel | None:
    """Return the channel of versions that a Delta source has read, None if the query does not read the table."""
    received = {index: _versions_read(query, index, table.ids) for index in query_points(query)}
    if not any(received.values()):
        return None
    sent: dict[Index, int] = {
        index: (index if index is not None else table.newest) + 1 for index in table_points(table)
    }
    label = ChannelId(f"{table.root} -> {query.name}")
    return Channel(label, ConnectionKind.READS_TABLE, name, _of(query), str(table.root), sent, received)


def _versions_read(query: QueryCheckpoint, index: Index, ids: frozenset[str]) -> int:
    return max((each.versions for each in delta_positions(query, index) if each.table in ids), default=0)


def delta_positions(query: QueryCheckpoint, index: Index) -> list[DeltaPosition]:
    """Return the positions of a query's Delta sources at a point."""
    batch = batch_at(query, index)
    return [each for each in batch.ends.values() if isinstance(each, DeltaPosition)] if batch else []


# -- topics ------------------------------------------------------------------------------------------------------------


def topic_positions(
    query: QueryCheckpoint, index: Index, choose: Callable[[int, int], int] = max
) -> dict[TopicPartition, int]:
    """Return the positions of a query's Kafka sources at a point.

    `choose` picks the offset of a partition that several sources read; by default the furthest.
    """
    found: dict[TopicPartition, int] = {}
    batch = batch_at(query, index)
    for each in batch.ends.values() if batch else ():
        if isinstance(each, KafkaPosition):
            # Two sources of a query may read one topic, each to a place of its own.
            for place, offset in each.offsets.items():
                found[place] = choose(offset, found.get(place, offset))
    return found


def through_topic(
    writer: QueryCheckpoint, readers: Sequence[QueryCheckpoint], topic: str, broker: TopicIndex | None, skew_ms: int
) -> Iterator[Channel]:
    """Yield channels of a topic's records: one per partition and reader."""
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
                    label, ConnectionKind.TOPIC, _of(writer), _of(reader), what, bounds[place[1]], received, exact=False
                )


# -- folders, and what is only declared ----------------------------------------------------------------------------------


def through_folder(writer: QueryCheckpoint, reader: QueryCheckpoint, written: SinkLog) -> Channel | None:
    """Return the channel of files from a file sink to a file source, None if the source read none."""
    # The sink's log and the source's may spell one file as a path and as a URI.
    batches = {_spelled(path): batch for path, batch in written.batches.items()}
    furthest = {source: _furthest(log, batches) for source, log in reader.files.items()}
    received = {index: _files_batch(batch_at(reader, index), furthest) + 1 for index in query_points(reader)}
    if not any(received.values()):
        return None
    sent = {index: _number(writer, index) + 1 for index in query_points(writer)}
    label = ChannelId(f"{writer.name} -> {reader.name} through {written.folder}")
    return Channel(label, ConnectionKind.FOLDER, _of(writer), _of(reader), str(written.folder), sent, received)


def _furthest(log: FileLog, batches: Mapping[str, int]) -> tuple[list[int], list[int]]:
    """Return the entries of a source's log in order, and the newest batch of the files up to each."""
    # Once for all points of a reader: each path is parsed, and a folder may have a hundred thousand.
    found = sorted((entry, batches.get(_spelled(path), -1)) for path, entry in log.entries.items())
    return [entry for entry, _ in found], list(accumulate((batch for _, batch in found), max))


def _files_batch(batch: Batch | None, furthest: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> int:
    """Return the newest batch of the writer that a reader has files of; -1 for none."""
    found = -1
    for source, position in batch.ends.items() if batch else ():
        if isinstance(position, FilesPosition) and source in furthest:
            entries, newest = furthest[source]
            read = bisect_right(entries, position.log_offset)
            found = max(found, newest[read - 1] if read else -1)
    return found


def _spelled(uri: str) -> str:
    local: Path | None = file_of(uri)
    return uri if local is None else str(local)


def declared_edge(writer: QueryCheckpoint, reader: QueryCheckpoint, over: str, skew_ms: int) -> Channel:
    """Return the channel of batches that a reader may have seen when its own batch began."""
    received: dict[Index, int] = {}
    for index in query_points(reader):
        batch = batch_at(reader, index)
        received[index] = begun_by(writer, batch.began_ms + skew_ms) if batch else 0
    # clocks can go backwards; a reader keeps what it has seen
    received = dict(zip(received, accumulate(received.values(), max), strict=True))
    sent = {index: _number(writer, index) + 1 for index in query_points(writer)}
    label = ChannelId(f"{writer.name} -> {reader.name} through {over}")
    return Channel(label, ConnectionKind.DECLARED, _of(writer), _of(reader), over, sent, received, exact=False)


def begun_by(writer: QueryCheckpoint, at_ms: int) -> int:
    """Return the number of batches that may have begun by a time.

    Batches in a gap after a known batch may have begun once that batch was committed.
    """
    known = writer.known
    began = list(accumulate((each.began_ms for each in known), max))
    found = bisect_right(began, at_ms)
    if found == 0:
        return known[0].number if known else 0
    last = known[found - 1]
    # Between two known batches lie unknown ones if the log has dropped them: they began after the commit of the first.
    if found == len(known) or last.committed_ms is None or at_ms < last.committed_ms:
        return last.number + 1
    return known[found].number


def _of(query: QueryCheckpoint) -> ProcessId:
    return ProcessId(query.name)


def _number(query: QueryCheckpoint, index: Index) -> int:
    batch = batch_at(query, index)
    return batch.number if batch else BEGINNING


def _up_to(numbers: Sequence[int], most: int) -> int:
    found = bisect_right(numbers, most)
    return numbers[found - 1] if found else -1


def shrinking(values: Iterable[int]) -> bool:
    """Return true if a count is smaller than the one before it."""
    before = 0
    for value in values:
        if value < before:
            return True
        before = value
    return False
