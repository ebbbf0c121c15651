"""Explanation of a line: positions of each query and table, the causes of each step, and the undone work."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from checkpoint_protocols.checkpoints.recovery_line import LineStep, StepCause
from checkpoint_protocols.ids import ProcessId
from spark_rewind.checkpoint import QueryCheckpoint
from spark_rewind.connections import (
    BEGINNING,
    Channel,
    ConnectionKind,
    Index,
    batch_at,
    delta_positions,
    topic_positions,
)
from spark_rewind.graph import declared_writers
from spark_rewind.inputs import Inputs
from spark_rewind.intervals import named
from spark_rewind.line import Line
from spark_rewind.notes import notes_of
from spark_rewind.outboxes import RewoundOutbox, TableMarker
from spark_rewind.plan import (
    FolderPlan,
    LostPoint,
    OutboxPlan,
    OutboxSinkPlan,
    PublicRange,
    QueryPlan,
    RewindPlan,
    RewindReason,
    SourceEnd,
    TablePlan,
    TargetPlan,
    UndoneVersion,
    UnreadVersions,
)
from spark_rewind.positions import DeltaPosition, FilesPosition, KafkaPosition, Position
from spark_rewind.sink_logs import SinkLog
from spark_rewind.tables import Table, Version
from spark_rewind.targets import RewindTarget
from spark_rewind.topics import TopicIndex, next_began_ms


def public_records(inputs: Inputs, line: Line, broker: TopicIndex | None) -> Iterator[PublicRange]:
    """Yield the offset ranges with records of undone batches, for each writer of a topic that rolls back."""
    for topic in inputs.declared.topics:
        for writer in map(inputs.query, topic.written_by):
            index = line.found.chosen[ProcessId(writer.name)].index
            began_ms = next_began_ms(writer, index)
            if began_ms is None:
                continue
            # Earlier rather than later: the clock that stamps a record may be behind the writer's.
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
                        # An offset that a reader reached before the writer's batch began is after none of its records.
                        self._add(partition, offset, batch.began_ms < at_ms)

    def _add(self, partition: int, offset: int, early: bool) -> None:
        self.furthest[partition] = max(offset, self.furthest.get(partition, 0))
        if early:
            self.before[partition] = max(offset, self.before.get(partition, 0))


def _known_to(
    broker: TopicIndex, topic: str, writer: QueryCheckpoint, at_ms: int, taken: _Taken
) -> Iterator[PublicRange]:
    first_at = broker.first_at(topic, at_ms)
    for partition, end in sorted(broker.ends(topic).items()):
        first = first_at.get(partition, end)
        # The end is after the last record: nothing was written since the batch began.
        if first < end:
            yield _range(topic, partition, writer, first, end - 1, taken)


def _bounded(topic: str, writer: QueryCheckpoint, taken: _Taken) -> Iterator[PublicRange]:
    for partition in sorted(taken.furthest):
        yield _range(topic, partition, writer, taken.before.get(partition, 0), None, taken)


def _range(
    topic: str, partition: int, writer: QueryCheckpoint, first: int, last: int | None, taken: _Taken
) -> PublicRange:
    known = taken.furthest.get(partition)
    return PublicRange(
        topic=topic,
        partition=partition,
        writer=writer.name,
        first=first,
        last=last,
        # Readers' offsets are those of the next record.
        known_last=None if known is None else known - 1,
        tight=last is not None,
    )


_NUMBERS = {DeltaPosition: "delta", KafkaPosition: "kafka", FilesPosition: "files"}


def plan_of(inputs: Inputs, line: Line, target: RewindTarget, broker: TopicIndex | None, now_ms: int) -> RewindPlan:
    """Return the plan for a line that exists. `now_ms`: milliseconds since 1970."""
    explainer = _Explainer(inputs, line, target)
    queries = [explainer.query(ProcessId(name), each) for name, each in inputs.queries.items()]
    # A table that no query reads or writes is not in the graph, unless it is the target.
    tables = [explainer.table(name, each) for name, each in inputs.tables.items() if name in line.intervals.points]
    folders = [explainer.folder(writer, log) for writer, log in inputs.sinks]
    public = list(public_records(inputs, line, broker))
    outboxes = [explainer.outbox(each) for each in inputs.outboxes]
    asked = TargetPlan(kind=target.kind, text=str(target), most=target.most, process=target.process)
    notes = [
        *inputs.notes,
        *(note for each in inputs.queries.values() for note in each.notes),
        *notes_of(inputs, line, tables, broker),
    ]
    return RewindPlan(
        made_at_ms=now_ms,
        target=asked,
        queries=queries,
        tables=tables,
        public=public,
        notes=notes,
        folders=folders,
        outboxes=outboxes,
    )


class _Explainer:
    """Builds sentences and parts of a plan for one line."""

    def __init__(self, inputs: Inputs, line: Line, target: RewindTarget) -> None:
        self.inputs = inputs
        self.line = line
        self.target = target

    def at(self, process: ProcessId) -> Index:
        return self.line.found.chosen[process].index

    def stays(self, process: ProcessId) -> bool:
        return self.at(process) == self.line.intervals.newest(process).index

    def query(self, name: ProcessId, query: QueryCheckpoint) -> QueryPlan:
        index, stays = self.at(name), self.stays(name)
        batch = batch_at(query, index)
        # a query at the beginning has read nothing: any batch in the log names its sources
        number = batch.number if batch else BEGINNING
        ends = batch.ends if batch else dict.fromkeys(query.batches[0].ends if query.batches else ())
        newest = query.batches[-1].number if query.batches else BEGINNING
        # The answer compares the point's files with their digests: only a query that rolls back is worth that.
        pinned = query.kept_in(batch) if batch and not stays else None
        return QueryPlan(
            name=name,
            folder=str(query.folder),
            query=query.query,
            newest=query.committed,
            unfinished=query.unfinished.number if query.unfinished else None,
            batch=None if stays else index,
            stays=stays,
            undone=[] if stays else list(range(number + 1, newest + 1)),
            sources=[_source(source, end) for source, end in ends.items()],
            operators=len(query.operators),
            state_version=number + 1 if query.operators and batch and not stays else None,
            reasons=self.reasons(name),
            passed_over=self.passed_over(name),
            digest=query.digest,
            kept_in=str(pinned.folder) if pinned else None,
            point=pinned.point if pinned else None,
        )

    def table(self, name: ProcessId, table: Table) -> TablePlan:
        index = self.at(name)
        version = BEGINNING if index is None else index
        return TablePlan(
            path=str(table.root),
            ids=sorted(table.ids),
            newest=table.newest,
            version=version,
            stays=self.stays(name),
            written_by=self._partners(name, reading=False),
            read_by=self._partners(name, reading=True),
            undone=list(self._undone(table, version)),
            in_flight=list(self._in_flight(table, version)),
            reasons=self.reasons(name),
            passed_over=self.passed_over(name),
            digest=table.digest,
            kept_in=[] if self.stays(name) else [str(each) for each in table.kept_in],
        )

    def folder(self, writer: QueryCheckpoint, log: SinkLog) -> FolderPlan:
        name = ProcessId(writer.name)
        index, stays = self.at(name), self.stays(name)
        batch = log.newest if stays or index is None else min(index, log.newest)
        channels = [each for each in self.line.intervals.channels.values() if each.what == str(log.folder)]
        return FolderPlan(
            path=str(log.folder),
            newest=log.newest,
            batch=batch,
            stays=stays,
            files_gone=len(log.after(batch)),
            written_by=writer.name,
            read_by=sorted({each.reader for each in channels}),
            digest=log.digest,
        )

    def outbox(self, outbox: RewoundOutbox) -> OutboxPlan:
        name = ProcessId(outbox.query.name)
        base = None if self.stays(name) else outbox.base(batch_at(outbox.query, self.at(name)))
        return OutboxPlan(
            store=outbox.uri,
            name=outbox.name,
            query=outbox.query.name,
            token=outbox.log_state.lease_token,
            incarnation=outbox.log_state.incarnation,
            latest=outbox.log_state.latest,
            base=base,
            left=[] if base is None else outbox.left(base),
            dropped=0 if base is None else outbox.dropped(base),
            sinks=[
                OutboxSinkPlan(
                    name=sink.name,
                    table=None if sink.table is None else self._root_of(sink.table),
                    applications=list(sink.applications),
                    incarnations=list(sink.incarnations),
                )
                for sink in outbox.sinks
            ],
        )

    def _root_of(self, table: Path) -> str:
        """Return a table's folder as the plan spells it."""
        roots = (each.root for each in self.inputs.tables.values())
        return str(next((each for each in roots if each.resolve() == table.resolve()), table))

    def reasons(self, process: ProcessId) -> list[RewindReason]:
        return [self._reason(step) for step in self.line.found.why(process)] if not self.stays(process) else []

    def passed_over(self, process: ProcessId) -> list[LostPoint]:
        gone = self.line.passed_over(process)
        return [LostPoint(point=each.index, why=each.gone or "") for each in gone if each.index is not None]

    def _partners(self, table: ProcessId, *, reading: bool) -> list[str]:
        channels = self.line.intervals.channels.values()
        found = {
            each.reader if reading else each.writer
            for each in channels
            if table == (each.writer if reading else each.reader)
        }
        return sorted(found)

    def _reason(self, step: LineStep) -> RewindReason:
        # A target excludes the current state at once, so that its step begins at no candidate.
        left = step.left.index if step.left else self.line.intervals.newest(step.process).index
        taken = step.taken.index if step.taken else None
        if step.cause is StepCause.FAILED:
            sentence = f"{step.process} rolls back to {self._named(step.process, taken)}: --to {self.target}"
            return RewindReason(who=step.process, cause="target", left=left, taken=taken, sentence=sentence)
        channel = self.line.intervals.channels[step.channel] if step.channel else None
        assert channel is not None and step.other is not None and step.other_at is not None  # noqa: S101 - for the type checker
        why = sentence_of(channel, step, self._named(step.other, step.other_at.index))
        there_and_back = f"from {self._named(step.process, left)} to {self._named(step.process, taken)}"
        return RewindReason(
            who=step.process,
            cause="orphan" if step.cause is StepCause.ORPHAN else "lost",
            left=left,
            taken=taken,
            through=channel.what,
            other=step.other,
            other_at=step.other_at.index,
            exact=channel.exact,
            sentence=f"{step.process} rolls back {there_and_back}: {why}",
        )

    def _named(self, process: ProcessId, index: Index) -> str:
        return named(index, process in self.inputs.tables)

    def _undone(self, table: Table, most: int) -> Iterator[UndoneVersion]:
        writers = {each.query: each.name for each in self.inputs.queries.values()}
        writers |= {app: query.name for query, app in declared_writers(self.inputs, table) if app is not None}
        for version in table.versions:
            if version.number > most:
                yield UndoneVersion(
                    version=version.number,
                    operation=version.operation,
                    at_ms=version.at_ms,
                    batches=[
                        *(f"{writers[app]} batch {number}" for app, number in version.transactions if app in writers),
                        *(str(each) for each in self._epochs(version)),
                    ],
                    strangers=[
                        app
                        for app, _ in version.transactions
                        if app not in writers and not any(each.owns(app) for each in self.inputs.outboxes)
                    ],
                )

    def _epochs(self, version: Version) -> Iterator[TableMarker]:
        for outbox in self.inputs.outboxes:
            found = (outbox.written(app, number) for app, number in version.transactions)
            yield from (each for each in found if each is not None)

    def _in_flight(self, table: Table, version: int) -> Iterator[UnreadVersions]:
        for name, query in self.inputs.queries.items():
            positions = [each for each in delta_positions(query, self.at(ProcessId(name))) if each.table in table.ids]
            if positions and (first := min(each.version for each in positions)) <= version:
                yield UnreadVersions(reader=name, first=first, last=version)


def sentence_of(channel: Channel, step: LineStep, other_at: str) -> str:
    """Return the reason of a step, from the data that passed through the channel."""
    # Messages of a channel count from 1, as epochs do; batches, versions and offsets count from 0.
    first = step.first if isinstance(step.first, int) else 0
    last = first + step.count - 1
    if channel.kind is ConnectionKind.WRITES_EPOCHS:
        epochs = _many("epoch", "epochs", first, last)
        if step.cause is StepCause.LOST:
            return f"{step.other} at {other_at} does not hold {epochs} of its outbox"
        return f"it holds {epochs} of the outbox of {step.other}, which rolls back to {other_at}"
    if step.cause is StepCause.LOST:
        return f"{step.other} at {other_at} does not hold its {_many('batch', 'batches', first - 1, last - 1)}"
    if channel.kind is ConnectionKind.READS_TABLE:
        return f"it has read {_many('version', 'versions', first - 1, last - 1)} of {step.other}, which rolls back to {other_at}"
    if channel.kind is ConnectionKind.TOPIC:
        what = _many("offset", "offsets", first - 1, last - 1)
        return f"it has read {what} of {channel.what}, which {step.other} may have written after {other_at}"
    batches = _many("batch", "batches", first - 1, last - 1)
    if channel.exact:
        verb = "holds" if channel.kind is ConnectionKind.WRITES_TABLE else "has read files of"
        return f"it {verb} {batches} of {step.other}, which rolls back to {other_at}"
    return f"it may hold {batches} of {step.other} through {channel.what}, which rolls back to {other_at}"


def _many(one: str, many: str, first: int, last: int) -> str:
    return f"{one} {first}" if first == last else f"{many} {first} to {last}"


def _source(source: str, end: Position | None) -> SourceEnd:
    if end is None:
        return SourceEnd(source=source, kind="unread", position="its own beginning")
    kinds: dict[type, str] = dict(_NUMBERS)
    return SourceEnd.model_validate({"source": source, "kind": kinds.get(type(end), "other"), "position": str(end)})
