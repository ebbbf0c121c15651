"""The dependency graph of queries and tables: points to restore and channels between processes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from checkpoint_protocols.ids import ProcessId
from spark_rewind.checkpoint import Batch, QueryCheckpoint
from spark_rewind.connections import (
    BEGINNING,
    Channel,
    Index,
    batch_at,
    declared_edge,
    delta_positions,
    query_points,
    reads_table,
    table_points,
    through_folder,
    through_topic,
    topic_positions,
    writes_epochs,
    writes_table,
    writes_table_untold,
)
from spark_rewind.inputs import Inputs
from spark_rewind.intervals import Intervals, Point, check_order
from spark_rewind.outboxes import RewoundOutbox
from spark_rewind.positions import FilesPosition, KafkaPosition, TopicPartition
from spark_rewind.reading import local_folder
from spark_rewind.tables import Table
from spark_rewind.topics import TopicIndex


def graph_of(inputs: Inputs, broker: TopicIndex | None, wanted: ProcessId | None = None) -> Intervals:
    """Build the graph of all processes and channels.

    A table that no query reads or writes is left out, except the target's table `wanted`. Raises `CheckpointDamaged`
    for counts that decrease, `ConfigInvalid`.
    """
    # both ends of a channel from a query to itself move together: it limits no line
    channels = [each for each in _channels(inputs, broker) if each.writer != each.reader]
    ends = {name for each in channels for name in (each.writer, each.reader)} | {wanted}
    points: dict[ProcessId, Sequence[Point]] = {
        ProcessId(name): _query_points(each, inputs, broker) for name, each in inputs.queries.items()
    }
    points |= {name: _table_points(table) for name, table in inputs.tables.items() if name in ends}
    check_order(channels, points)
    return Intervals(points, {each.name: each for each in channels})


def _channels(inputs: Inputs, broker: TopicIndex | None) -> Iterator[Channel]:
    declared = inputs.declared
    for name, table in inputs.tables.items():
        yield from _around_table(inputs, table, name)
    for topic in declared.topics:
        for writer in map(inputs.query, topic.written_by):
            readers = [each for each in inputs.queries.values() if each is not writer]
            yield from through_topic(writer, readers, topic.topic, broker, declared.clock_skew_ms)
    for writer, written in inputs.sinks:
        found = (through_folder(writer, each, written) for each in inputs.queries.values())
        yield from (each for each in found if each is not None)
    for edge in declared.edges:
        yield declared_edge(inputs.query(edge.writer), inputs.query(edge.reader), edge.over, declared.clock_skew_ms)


def _around_table(inputs: Inputs, table: Table, name: ProcessId) -> Iterator[Channel]:
    known = {app for version in table.versions for app, _ in version.transactions} | set(table.before)
    for query in inputs.queries.values():
        if query.query in known:
            yield writes_table(query, table, query.query, name)
        reading = reads_table(query, table, name)
        if reading is not None:
            yield reading
    for outbox in inputs.outboxes:
        bases = outbox_bases(outbox)
        for sink in outbox.sinks:
            if sink.table is not None and sink.table.resolve() == table.root.resolve():
                written = sorted(known.intersection(sink.applications))
                yield from (writes_epochs(outbox.query, table, app, name, bases) for app in written)
    for query, app_id in declared_writers(inputs, table):
        if app_id is not None:
            yield writes_table(query, table, app_id, name)
        # no transaction names this query: only times bound its batches
        elif query.query not in known:
            yield from writes_table_untold(query, table, name, inputs.declared.clock_skew_ms)


def outbox_bases(outbox: RewoundOutbox) -> dict[Index, int | None]:
    """Return by the query's point the epoch that its outbox continues from; None if the log has it no longer."""
    query = outbox.query
    return {
        index: None if index is None else outbox.base(batch_at(query, index))
        for index in query_points(query) or [BEGINNING]
    }


def declared_writers(inputs: Inputs, table: Table) -> Iterator[tuple[QueryCheckpoint, str | None]]:
    """Yield queries that are declared to write a table, each with its application id or None."""
    for each in inputs.declared.tables:
        if table is inputs.tables.get(_process(inputs, each.path)):
            yield from ((inputs.query(writer.query), writer.app_id) for writer in each.written_by)


def _process(inputs: Inputs, path: str) -> ProcessId:
    where = local_folder(path).resolve()
    return next((name for name, table in inputs.tables.items() if table.root.resolve() == where), ProcessId(path))


# -- points ------------------------------------------------------------------------------------------------------------


def _query_points(query: QueryCheckpoint, inputs: Inputs, broker: TopicIndex | None) -> list[Point]:
    indices = query_points(query) or [BEGINNING]
    # Without the newest point, which is never marked as gone: a plan does not judge the present.
    lost = _Lost(_kept_offsets(query, broker), _gone_files(query, indices[:-1]))
    return [_query_point(query, index, index == indices[-1], inputs, lost) for index in indices]


@dataclass(frozen=True, slots=True)
class _Lost:
    """Input of a query that its sources have lost, asked once for all of its points.

    - `earliest`: by topic and partition the first offset that retention has kept.
    - `files`: by source the newest entry of its log with a missing file, and the file.
    """

    earliest: Mapping[TopicPartition, int]
    files: Mapping[str, tuple[int, str]]


def _query_point(query: QueryCheckpoint, index: Index, is_now: bool, inputs: Inputs, lost: _Lost) -> Point:
    # The current state with an unfinished batch: Spark itself finishes that batch at the next start.
    if index is None:
        return Point(None)
    batch = batch_at(query, index)
    gone = None if is_now else _sources_gone(query, index, inputs, lost)
    if batch is None:
        return Point(index, gone=gone)
    return Point(index, batch.committed_ms, gone, lambda: query.state_gone(batch), lambda: query.state_torn(batch))


def _sources_gone(query: QueryCheckpoint, index: int, inputs: Inputs, lost: _Lost) -> str | None:
    reasons = [
        *_files_gone(query, index, lost),
        *_versions_gone(query, index, inputs),
        *_records_gone(query, index, lost.earliest),
        *_written_gone(query, index, inputs),
        *_epoch_gone(query, index, inputs),
    ]
    return next(iter(reasons), None)


def _gone_files(query: QueryCheckpoint, indices: Sequence[Index]) -> dict[str, tuple[int, str]]:
    """Return by source the newest lost file that one of these points would read again."""
    if not indices:
        return {}
    found = {
        source: log.newest_gone(min(_entry_read(query, index, source) for index in indices))
        for source, log in query.files.items()
    }
    return {source: gone for source, gone in found.items() if gone is not None}


def _entry_read(query: QueryCheckpoint, index: Index, source: str) -> int:
    batch = batch_at(query, index)
    position = batch.ends.get(source) if batch else None
    return position.log_offset if isinstance(position, FilesPosition) else BEGINNING


def _files_gone(query: QueryCheckpoint, index: Index, lost: _Lost) -> Iterator[str]:
    for source, (entry, path) in lost.files.items():
        if entry > _entry_read(query, index, source):
            yield f"source {source} would read file {path} again, and it is missing"


def _versions_gone(query: QueryCheckpoint, index: Index, inputs: Inputs) -> Iterator[str]:
    for position in delta_positions(query, index):
        table = next((each for each in inputs.tables.values() if position.table in each.ids), None)
        # A reader that has read everything may name the next version, which does not exist yet.
        if table is None or position.version > table.newest:
            continue
        why = table.restore_gone(position.version) if position.snapshot else table.feed_gone(position.version)
        if why is not None:
            yield f"it would read on in {table.root} at version {position.version}: {why}"


def _written_gone(query: QueryCheckpoint, index: Index, inputs: Inputs) -> Iterator[str]:
    # A sink's log must still tell the files of later batches from those of this one.
    if index is not None:
        reasons = (log.cut_gone(index) for writer, log in inputs.sinks if writer is query)
        yield from (each for each in reasons if each is not None)


def _epoch_gone(query: QueryCheckpoint, index: int, inputs: Inputs) -> Iterator[str]:
    """Yield a reason if the log of the query's outbox cannot continue after the batch."""
    for outbox in inputs.outboxes:
        # Without this epoch the outbox would refuse the next batch (CKPT_BATCH_UNEXPECTED), after the rewind.
        if outbox.query.query == query.query and outbox.base(batch_at(query, index)) is None:
            kept = [
                brief.spark_batch.number
                for brief in outbox.log_state.lineage()
                if brief.spark_batch is not None and brief.spark_batch.query == query.query
            ]
            has = f"it has batches {kept[-1]} to {kept[0]}" if kept else "it has none of this query"
            yield f"outbox '{outbox.name}' does not have this batch in its log: {has}"


def _kept_offsets(query: QueryCheckpoint, broker: TopicIndex | None) -> dict[TopicPartition, int]:
    # The newest batch names every topic and partition that the query reads now.
    places = {place for batch in query.batches[-1:] for place in topic_positions(query, _index(query, batch))}
    return {place: broker.earliest(place[0]).get(place[1], 0) for place in sorted(places)} if broker else {}


def _index(query: QueryCheckpoint, batch: Batch) -> Index:
    return None if batch is query.unfinished else batch.number


def _records_gone(query: QueryCheckpoint, index: Index, kept: Mapping[TopicPartition, int]) -> Iterator[str]:
    # 0: a partition that was added after the point is read from its first record.
    needed: dict[TopicPartition, int] = dict.fromkeys(kept, 0) | topic_positions(query, index, min)
    # From the beginning a source needs the start that it recorded.
    if index == BEGINNING:
        needed |= {
            place: at
            for each in query.starts.values()
            if isinstance(each, KafkaPosition)
            for place, at in each.offsets.items()
        }
    for (topic, partition), offset in needed.items():
        earliest = kept.get((topic, partition), 0)
        if offset < earliest:
            yield f"topic {topic}, partition {partition}: it would read offset {offset}, retention has left {earliest} and later"


def _table_points(table: Table) -> list[Point]:
    times = {each.number: each.at_ms for each in table.versions}
    found = []
    for index in table_points(table):
        number = BEGINNING if index is None else index
        # Before its first version a table needs no file, and a plan does not judge the present.
        gone = None if number in (BEGINNING, table.newest) else table.restore_gone(number)
        found.append(Point(number, times.get(number), gone))
    return found
