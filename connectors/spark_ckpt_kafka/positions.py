"""Kafka cursors: the next offset of every partition, in Spark's form (`{"orders": {"0": 42}}`)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from spark_ckpt.connector import Cursor, Json
from spark_ckpt.errors import ConfigInvalid, RowsLost, SourceInvalid, StartOutOfRange

EARLIEST = -2
LATEST = -1

Positions = Mapping[tuple[str, int], int]
"""Offsets by (topic, partition)."""


def to_cursor(positions: Positions) -> Cursor:
    """Return the cursor of offsets: keys in fixed order, partitions as text, so that equal positions have equal
    text.
    """
    cursor: dict[str, dict[str, Json]] = {}
    for (topic, partition), offset in sorted(positions.items()):
        cursor.setdefault(topic, {})[str(partition)] = offset
    return cursor


def from_cursor(cursor: Cursor) -> dict[tuple[str, int], int]:
    """Return the offsets of a cursor, or of one parsed line of Spark's offset log. Raises `SourceInvalid`."""
    found: dict[tuple[str, int], int] = {}
    for topic, partitions in cursor.items():
        if not isinstance(partitions, Mapping) or not partitions:  # a topic that was read has at least one partition
            raise _unreadable(cursor)
        for partition, offset in partitions.items():
            if not str(partition).isdecimal() or not isinstance(offset, int) or isinstance(offset, bool):
                raise _unreadable(cursor)
            found[topic, int(partition)] = offset
    return found


def parse_offset_line(line: str) -> dict[tuple[str, int], int]:
    """Return the offsets of one source's line in Spark's offset log. Raises `SourceInvalid`."""
    try:
        value: Any = json.loads(line)
    except ValueError as error:
        raise _unreadable(line) from error
    if not isinstance(value, dict):
        raise _unreadable(line)
    return from_cursor(value)


def explicit(found: Positions) -> Positions:
    """Return `found` unchanged. Raises `SourceInvalid` for a symbolic offset (-1 latest, -2 earliest)."""
    special = next((place for place, offset in sorted(found.items()) if offset < 0), None)
    if special is not None:
        raise SourceInvalid(
            f"partition {special[1]} of topic {special[0]!r} is at {found[special]}, which is no offset",
            hint="the place is not known: give the job's source its start as offsets, in an empty store",
        )
    return found


def starting(
    start: object, partitions: Mapping[str, Sequence[int]], beginnings: Positions, ends: Positions
) -> dict[tuple[str, int], int]:
    """Return the configured start as explicit offsets of every partition. Raises `ConfigInvalid`.

    `start` is "earliest", "latest" or a mapping of offsets by topic and partition. There -2 means earliest and -1
    latest. Partitions that the mapping does not name start at the earliest offset.
    """
    every = [(topic, one) for topic, numbers in partitions.items() for one in numbers]
    if start in ("earliest", "latest"):
        chosen = beginnings if start == "earliest" else ends
        return {place: chosen[place] for place in every}
    wanted = None
    if isinstance(start, Mapping):
        with suppress(SourceInvalid):  # an offset as text, for example
            wanted = from_cursor({name: at for name, at in start.items() if at != {}})
    if wanted is None or not set(wanted) <= set(every):
        unknown = sorted(set(wanted or ()) - set(every))
        raise ConfigInvalid(
            f"start {start!r} does not fit the topic" + (f": there is no partition {unknown[0]}" if unknown else ""),
            hint="give 'earliest', 'latest', a datetime or {topic: {partition: offset}}",
        )
    # As explicit offsets: what "earliest" and "latest" mean changes until the query starts.
    special = {EARLIEST: beginnings, LATEST: ends}
    explicit = {place: wanted.get(place, EARLIEST) for place in every}
    return {place: special[at][place] if at in special else at for place, at in explicit.items()}


def check_start(chosen: Positions, beginnings: Positions, ends: Positions) -> None:
    """Raise `StartOutOfRange` for a configured offset that its topic does not have. `ends` include open
    transactions.
    """
    for (topic, partition), offset in sorted(chosen.items()):
        first, end = beginnings[topic, partition], ends[topic, partition]
        if not first <= offset <= end:
            why = (
                f"ends at offset {end}"
                if offset > end
                else f"begins at offset {first}: retention removed what was before"
            )
            raise StartOutOfRange(
                f"start names offset {offset} of topic {topic!r}, partition {partition}, which {why}",
                hint=f"start={{{topic!r}: {{'{partition}': N}}}} with N from {first} to {end}, or 'earliest' or 'latest'",
                topic=topic,
                partition=partition,
                start=offset,
                beginning=first,
                end=end,
            )


def resumed(cursor: Cursor, every: Iterable[tuple[str, int]]) -> dict[tuple[str, int], int]:
    """Return the start of a new query: the cursor's offsets; new partitions start at their beginning."""
    known = from_cursor(cursor)
    return {place: known.get(place, EARLIEST) for place in every}


def check_holes(wanted: Positions, beginnings: Positions, ends: Positions) -> None:
    """Raise `RowsLost` if the topic has lost records that the job still needs, `SourceInvalid` if a partition is gone."""
    for (topic, partition), offset in sorted(_with_added(wanted, beginnings).items()):
        place = (topic, partition)
        if place not in beginnings:
            raise SourceInvalid(
                f"partition {partition} of topic {topic!r} is gone, the job has read it up to offset {offset}",
                hint="restore the topic, or start a new job (a new store) on the topic as it is now",
            )
        # Negative offsets are symbols: "earliest" is before no hole.
        if 0 <= offset < beginnings[place]:
            raise RowsLost(
                f"retention removed offsets {offset} to {beginnings[place] - 1} of topic {topic!r}, "
                f"partition {partition}, which the job has not read",
                hint="raise retention.ms, so that records outlive an outage of the job",
            )
        if offset > ends[place]:
            raise RowsLost(
                f"topic {topic!r}, partition {partition} ends at offset {ends[place]}, the job has read up to {offset}: "
                "a broker that lacked records became the leader, or the topic was created again",
                hint="allow no unclean leader election",
            )


def past_lost(wanted: Positions, beginnings: Positions, ends: Positions) -> dict[tuple[str, int], int]:
    """Return the offsets behind all lost records. A partition whose end was lost continues at its present end."""
    return {
        place: min(max(offset, beginnings[place]), ends[place]) if place in beginnings else offset
        for place, offset in _with_added(wanted, beginnings).items()
        # An added partition that lost nothing needs no offset of its own.
        if place in wanted or beginnings.get(place, 0) > 0
    }


def _with_added(wanted: Positions, beginnings: Positions) -> dict[tuple[str, int], int]:
    """Return the offsets with those of partitions that were added to a topic of the job: they are read from 0 on."""
    read = {topic for topic, _ in wanted}
    return {**{place: 0 for place in beginnings if place[0] in read}, **wanted}


def check_stable(wanted: Positions, stable_ends: Positions) -> None:
    """Raise `SourceInvalid` for a position after the begin of an open transaction, which Spark reports as lost records.

    A position of a job is never there. A configured start may be, and that of a plain query, which reads such records.
    """
    for (topic, partition), offset in sorted(wanted.items()):
        if offset > (stable := stable_ends[topic, partition]):
            raise SourceInvalid(
                f"the job is to read topic {topic!r}, partition {partition} from offset {offset} on, but a transaction is open "
                f"there since offset {stable}",
                hint="wait until the transaction has ended (the brokers abort it after its transaction.timeout.ms), and "
                "start the job again",
            )


def reached(cursor: Cursor, end: Cursor) -> bool:
    """Return True if the cursor is at or after the end of every partition. A missing partition counts as read up to
    0.
    """
    known = from_cursor(cursor)
    return all(known.get(place, 0) >= offset for place, offset in from_cursor(end).items())


def lag(cursor: Cursor, end: Cursor) -> int:
    """Return the number of offsets between a cursor and an end, over all partitions of the end.

    A partition that the cursor lacks counts as read up to 0.
    """
    known = from_cursor(cursor)
    return sum(max(0, offset - known.get(place, 0)) for place, offset in from_cursor(end).items())


def _unreadable(value: object) -> SourceInvalid:
    return SourceInvalid(
        f"not a Kafka position: {str(value)[:200]}",
        hint="the job's sources were swapped or changed in kind: give each source its own stable name",
    )
