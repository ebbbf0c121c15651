"""Notes of a plan: facts that it cannot know."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from checkpoint_protocols.ids import ProcessId
from spark_rewind.checkpoint import QueryCheckpoint
from spark_rewind.connections import ConnectionKind, topic_positions
from spark_rewind.inputs import Inputs
from spark_rewind.line import Line
from spark_rewind.plan import TablePlan
from spark_rewind.topics import TopicIndex, next_began_ms

_OURS = "spark-ckpt/"
"""Beginning of the names under which jobs and outboxes write transactions."""


def notes_of(inputs: Inputs, line: Line, tables: Sequence[TablePlan], broker: TopicIndex | None) -> Iterator[str]:
    """Yield one sentence per fact that the plan cannot know or does not check."""
    yield from _strangers(tables)
    yield from _outboxes(inputs, line)
    yield from _outputs(inputs, line)
    yield from _topics(inputs, broker)
    if broker is None:
        yield from _unseen(inputs, line)
    if any(not each.exact and each.kind is not ConnectionKind.TOPIC for each in line.intervals.channels.values()):
        yield (
            "where only times bound the exchanged rows, a query may roll back further than necessary; the clocks of all drivers "
            f"are assumed to agree within {inputs.declared.clock_skew_ms} ms (clock_skew_ms)"
        )


def _strangers(tables: Sequence[TablePlan]) -> Iterator[str]:
    for table in tables:
        foreign = [each for each in table.undone if each.strangers]
        if foreign:
            who = ", ".join(sorted({app for each in foreign for app in each.strangers}))
            yield f"table {table.path}: {who} wrote versions that go and is none of these queries: its rows go, too"
        if any(app.startswith(_OURS) for each in foreign for app in each.strangers):
            yield f"table {table.path}: if that is the outbox of one of these queries, plan again with --outbox STORE"
        by_hand = [each for each in table.undone if not each.batches and not each.strangers]
        if by_hand:
            what = ", ".join(f"{each.version} ({each.operation})" for each in by_hand)
            yield f"table {table.path}: versions that go were written outside of these queries: {what}"


def _outboxes(inputs: Inputs, line: Line) -> Iterator[str]:
    for outbox in inputs.outboxes:
        name, chosen = outbox.query.name, line.found.chosen[ProcessId(outbox.query.name)].index
        newest = outbox.log_state.by_id.get(outbox.log_state.latest)
        known = newest.spark_batch if newest is not None else None
        committed = outbox.query.committed
        if known is not None and committed is not None and known.number < committed and chosen != committed:
            yield (
                f"outbox '{outbox.name}' is older than {name}: it ends with batch {known.number}, {name} has committed batch "
                f"{committed}. Rows that sinks without a table have of later batches cannot be listed"
            )


def _outputs(inputs: Inputs, line: Line) -> Iterator[str]:
    writers = {each.writer for each in line.intervals.channels.values()}
    writers |= {ProcessId(inputs.query(name).name) for topic in inputs.declared.topics for name in topic.written_by}
    writers |= {ProcessId(query.name) for query, _ in inputs.sinks}
    writers |= {ProcessId(each.query.name) for each in inputs.outboxes}
    for name in inputs.queries:
        if ProcessId(name) not in writers:
            yield (
                f"{name}: its output is not known. Rows that it wrote after its batch stay there, and it writes them once more. "
                "If it writes files with Spark's own sink, declare the folder: that sink would skip the repeated batches"
            )


def _unseen(inputs: Inputs, line: Line) -> Iterator[str]:
    """Yield topics with public records at unknown offsets: no query reads the topic and no broker was asked."""
    for topic in inputs.declared.topics:
        read = any(
            place[0] == topic.topic
            for query in inputs.queries.values()
            for place in topic_positions(query, _now(query))
        )
        for writer in map(inputs.query, topic.written_by):
            index = line.found.chosen[ProcessId(writer.name)].index
            if index is not None and next_began_ms(writer, index) is not None and not read:
                yield (
                    f"topic {topic.topic}: records of {writer.name} since its batch {index + 1} are public. "
                    "At which offsets is not known: none of these queries reads it, and no broker was asked (--bootstrap-servers)"
                )


def _now(query: QueryCheckpoint) -> int | None:
    # None names the current state, with its unfinished batch.
    return None if query.unfinished else query.committed


def _topics(inputs: Inputs, broker: TopicIndex | None) -> Iterator[str]:
    read = {topic: query.name for query in inputs.queries.values() for topic, _ in topic_positions(query, _now(query))}
    declared = {each.topic for each in inputs.declared.topics}
    for topic in sorted(set(read) - declared):
        yield f"topic {topic}: {read[topic]} reads it. If one of these queries writes it, declare that: no checkpoint says it"
    if broker is None and read:
        names = ", ".join(sorted(read))
        yield f"no broker was asked whether {names} still hold what would be read again (--bootstrap-servers)"
    if declared:
        how = (
            "the broker's time index"
            if broker
            else "what readers had taken by then; with --bootstrap-servers it is narrower"
        )
        yield (
            "Kafka records do not name the batch that wrote them. Where a batch's records begin is bound by its starting time and "
            f"{how}; the clocks are taken to agree within {inputs.declared.clock_skew_ms} ms (clock_skew_ms)"
        )
