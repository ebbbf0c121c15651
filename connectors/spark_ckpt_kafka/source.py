"""Spark's own Kafka source with exact cursors: read_committed, explicit start offsets, lost records refused at the
start.
"""

from __future__ import annotations

import copy
import datetime as dt
import json
import math
import re
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from spark_ckpt.connector import Adopted, Cursor
from spark_ckpt.connector_parts.arguments import checks_arguments
from spark_ckpt.errors import ConfigInvalid, EnvironmentUnfit, SourceInvalid, SourceSilent
from spark_ckpt.wording import did_you_mean
from spark_ckpt_kafka import positions
from spark_ckpt_kafka.control import ControlError, KafkaControl, KeptControl
from spark_ckpt_kafka.options import Connection, redacted, split_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from spark_ckpt_kafka.values import Values


T = TypeVar("T")


class Subscription:
    """Topics by name, or those that match `pattern`. Raises `ConfigInvalid` for an invalid pattern."""

    def __init__(self, named: Sequence[str], pattern: str | None) -> None:
        self._named = list(named)
        self._pattern = _compiled(pattern) if pattern else None

    def __str__(self) -> str:
        return self._pattern.pattern if self._pattern else ",".join(self._named)

    def partitions(self, control: KafkaControl) -> dict[str, list[int]]:
        """Return the partition numbers of each current topic.

        Raises `ControlError` for a topic that does not exist, and `SourceInvalid` if none matches.
        """
        return self._some(control.partitions(self._pattern or self._named), 0)

    def identity(self, control: KafkaControl) -> dict[str, str]:
        """Return the endpoint: the cluster and the current topics. Raises as `partitions`."""
        return self._some(control.identity(self._pattern or self._named), 1)

    def _some(self, found: dict[str, T], besides: int) -> dict[str, T]:
        if len(found) == besides:
            raise SourceInvalid(f"no topic matches {str(self)!r}", hint="create one, or change the pattern")
        return found

    def for_spark(self) -> dict[str, str]:
        """Return the option of Spark's reader."""
        return {"subscribePattern": str(self)} if self._pattern else {"subscribe": str(self)}


def _compiled(pattern: str) -> re.Pattern[str]:
    """Return the pattern if Java, which matches topics for Spark, reads it in the same way. Raises `ConfigInvalid`."""
    try:
        with warnings.catch_warnings():
            # Warns of nested and intersected classes (`[a-z&&[^b]]`), which Python reads as plain characters.
            warnings.simplefilter("error", FutureWarning)
            compiled = re.compile(pattern)
    except (re.error, FutureWarning) as error:
        raise ConfigInvalid(
            f"{pattern!r} is not a regular expression that Python and Java read alike: {error}",
            hint="write the pattern without nested classes, or give the topics by name",
        ) from error
    if "(?P" in pattern:
        raise ConfigInvalid(
            f"{pattern!r} has a named group in Python's spelling, which Java does not know",
            hint="use a group without a name",
        )
    return compiled


_READER_OPTIONS = frozenset(
    {
        "includeHeaders",
        "maxOffsetsPerTrigger",
        "minOffsetsPerTrigger",
        "maxTriggerDelay",
        "minPartitions",
        "maxRecordsPerPartition",
        "failOnDataLoss",
        "groupIdPrefix",
        "fetchOffset.numRetries",
        "fetchOffset.retryIntervalMs",
        "kafkaConsumer.pollTimeoutMs",
    }
)
_MOST, _LEAST = "maxOffsetsPerTrigger", "minOffsetsPerTrigger"
_NUMBERS = frozenset({_MOST, _LEAST, "minPartitions", "maxRecordsPerPartition", "kafkaConsumer.pollTimeoutMs"})
_ISOLATION, _LEVELS = "isolation.level", ("read_committed", "read_uncommitted")
_CONSUMER = {
    _ISOLATION: "read_committed",
    # After each poll Spark seeks to both ends of the partition, so that the consumer drops its fetched records. A
    # poll should therefore return a whole fetch; with Kafka's 500 records most of them would be fetched many times.
    # Fetches stay at Kafka's 1 MiB: larger buffers are humongous objects for Java's default collector.
    "max.poll.records": "100000",
    # After each poll the consumer requests more at once. At the end of a topic the broker keeps that request for
    # Kafka's 500 ms and queues later requests after it, also the one for the partition's end, which Spark sends next.
    # Spark polls only for records that exist, so that a short wait loses nothing.
    "fetch.max.wait.ms": "1",
}

Start = str | dt.datetime | Mapping[str, Mapping[str, int]]
"""Start of a new job: "earliest", "latest", a time, or offsets by topic and partition."""

_BY_TIME = "write start=datetime(2026, 11, 28, tzinfo=timezone.utc): the first records from this time on"
_BY_OFFSET = 'write start="earliest", "latest" or {topic: {partition: offset}}'
_TO_THE_END = "job.start(availableNow=True) ends a job at the topics' ends"

_OURS = {
    "bootstrap.servers": "write bootstrap_servers=",
    "subscribe": 'write topic="orders" or topics=["orders", "refunds"]',
    "subscribePattern": 'write pattern="orders-.*"',
    "assign": "a job reads all partitions of its topics: write topic=, topics= or pattern=",
    "startingOffsets": _BY_OFFSET,
    **dict.fromkeys(
        ("startingTimestamp", "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy"), _BY_TIME
    ),
    **dict.fromkeys(("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"), _TO_THE_END),
}
"""Spark's options that the source sets itself, each with the argument or the call that has its meaning."""

_SPARKS = {
    **_OURS,
    "group_id": "a job keeps its offsets in the store; shown_group= shows them in a consumer group",
    "servers": _OURS["bootstrap.servers"],
    **{name: f'write options={{"{name}": ...}}' for name in sorted(_READER_OPTIONS)},
}


@checks_arguments(_SPARKS)
class KafkaSource:
    """Read a topic, several topics, or all topics that match a pattern, with Spark's columns.

    The columns are key, value, topic, partition, offset, timestamp, timestampType, and headers if you set `includeHeaders`.

    - `start`: "earliest", "latest", {topic: {partition: offset}}, or a `datetime` with a time zone: each partition begins
      at its first record from this time on, or at its end. Only the first start of a job uses it; later starts continue
      from an epoch.
    - `options`: Spark's reader options (maxOffsetsPerTrigger, includeHeaders, ...) and Kafka's dotted names, with or
      without a leading `kafka.`.
    - `shown_group`: a consumer group to which the job writes the offsets of its newest epoch, so that Kafka's own tools
      show position and lag. The job never reads these offsets. The group must have no members.
    - `value`: format of values that use a schema registry (`Avro`, `JsonSchema`, `Protobuf`). The column `value` then has
      the type of the schema.

    By default the source does not read records of open and aborted transactions: it sets `isolation.level` to
    read_committed. You can set another value in `options`.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        topic: str | None = None,
        *,
        topics: Sequence[str] = (),
        pattern: str | None = None,
        start: Start = "earliest",
        options: Mapping[str, object] | None = None,
        shown_group: str | None = None,
        value: Values | None = None,
    ) -> None:
        if not isinstance(topic, str | None) or isinstance(topics, str):
            raise ConfigInvalid("topic is one name, topics are several", hint=_SPARKS["subscribe"])
        named = [topic] if topic else list(topics)
        if bool(named) == bool(pattern) or (topic and topics):
            raise ConfigInvalid("a Kafka source reads one of: topic, topics, pattern", hint="give exactly one of them")
        if isinstance(start, dt.datetime) and start.tzinfo is None:
            raise ConfigInvalid(f"start {start} has no time zone", hint=_BY_TIME)
        self._topics = Subscription(named, pattern)
        self._start: Start = start
        security, others = split_options(options or {})
        self._connection = Connection(bootstrap_servers, security)
        self._kept = KeptControl(self._connection)
        self._consumer, self._reader = _split_reader_options(others)
        self._committed = self._consumer[_ISOLATION] == "read_committed"
        self._shown_group = shown_group
        self._value = value

    def __repr__(self) -> str:
        return f"KafkaSource({dict(self.describe())})"

    def check(self, spark: SparkSession) -> None:
        """Check that the topics exist, the cluster answers, and the session has Spark's Kafka connector.

        Raises `SourceInvalid` or `EnvironmentUnfit`.
        """
        # Spark looks for the connector's classes as soon as a stream is loaded.
        self._stream(spark, "earliest")
        with _as_source_error(), KafkaControl(self._connection) as control:
            self._topics.partitions(control)

    def start(self, spark: SparkSession) -> Cursor:
        """Return explicit offsets of every current partition. Raises `StartOutOfRange` for offsets that are not in
        the topic.
        """
        return self._started({})

    def renewed(self, spark: SparkSession, cursor: Cursor, changed: Collection[str]) -> Cursor:
        """Return a cursor after a change of endpoint: unchanged topics keep their offsets, others begin at the
        configured start.
        """
        same_cluster = not {"kind", "cluster"} & set(changed)
        same = {topic: at for topic, at in cursor.items() if same_cluster and f"topic {topic}" not in changed}
        return self._started(same)

    def _started(self, kept: Cursor) -> Cursor:
        """Return the configured start of every current topic; topics in `kept` keep their offsets."""
        with _as_source_error(), KafkaControl(self._connection) as control:
            partitions = self._topics.partitions(control)
            beginnings, ends = control.beginnings(partitions), control.ends(partitions, committed=self._committed)
            start: object = self._start
            if isinstance(start, dt.datetime):
                # Asked last: a record that arrives meanwhile is found, or is after the end.
                start = positions.to_cursor({**ends, **control.first_at(partitions, _ms(start))})
            chosen = positions.starting(start, partitions, beginnings, ends)
            if not isinstance(self._start, str):
                begun = {place: offset for place, offset in chosen.items() if place[0] not in kept}
                positions.check_start(begun, beginnings, control.ends(partitions, committed=False))
                self._check_stable(control, begun, partitions)
        return {**positions.to_cursor(chosen), **{topic: at for topic, at in kept.items() if topic in partitions}}

    def read(self, spark: SparkSession, cursor: Cursor) -> DataFrame:
        """Return the rows from the cursor on; partitions that it does not name are read from their beginning.

        Raises `RowsLost` if the topic no longer has records that the job still needs.
        """
        with _as_source_error(), KafkaControl(self._connection) as control:
            partitions = self._topics.partitions(control)
            # Ends include open transactions: only a re-created topic ends before the cursor.
            beginnings, ends = control.beginnings(partitions), control.ends(partitions, committed=False)
            # Spark reports lost records only when a batch reads them (failOnDataLoss), and names no way to continue.
            positions.check_holes(positions.from_cursor(cursor), beginnings, ends)
            self._check_stable(control, positions.from_cursor(cursor), partitions)
        return self._decoded(spark, json.dumps(positions.to_cursor(positions.resumed(cursor, beginnings))))

    def columns(self, spark: SparkSession) -> StructType:
        """Return Spark's columns, with the type of decoded values. Asks no broker."""
        return self._decoded(spark, "earliest").schema

    def _decoded(self, spark: SparkSession, starting_offsets: str) -> DataFrame:
        rows = self._stream(spark, starting_offsets)
        return rows if self._value is None else self._value.decoded(rows)

    def past_lost(self, spark: SparkSession, cursor: Cursor) -> Cursor:
        """Return the cursor behind records that retention or a broker has lost."""
        with _as_source_error(), KafkaControl(self._connection) as control:
            partitions = self._topics.partitions(control)
            beginnings, ends = control.beginnings(partitions), control.ends(partitions, committed=False)
        return positions.to_cursor(positions.past_lost(positions.from_cursor(cursor), beginnings, ends))

    def _check_stable(
        self, control: KafkaControl, wanted: positions.Positions, partitions: Mapping[str, Sequence[int]]
    ) -> None:
        if self._committed:
            positions.check_stable(wanted, control.ends(partitions))

    def cursor(self, offset: str, previous: Cursor) -> Cursor:
        """Return the cursor of one line of Spark's offset log. Partitions that the line does not name keep theirs."""
        return positions.to_cursor(positions.from_cursor(previous) | positions.parse_offset_line(offset))

    @classmethod
    def adopted(cls, offset: str) -> Adopted:
        """Return the cursor of a plain query: the next offset of every partition. Spark records no ids of cluster
        and topics.
        """
        cursor = positions.to_cursor(positions.explicit(positions.parse_offset_line(offset)))
        return Adopted(cursor, {"kind": "kafka", "cluster": ""} | {f"topic {topic}": "" for topic in cursor})

    def end(self, spark: SparkSession) -> Cursor:
        """Return the last stable offset of every partition."""
        with _as_source_error(), KafkaControl(self._connection) as control:
            return positions.to_cursor(control.ends(self._topics.partitions(control), committed=self._committed))

    def reached(self, cursor: Cursor, end: Cursor) -> bool:
        """Return True if every partition has been read up to `end`."""
        return positions.reached(cursor, end)

    def lag(self, cursor: Cursor, end: Cursor) -> int:
        """Return the number of offsets between the two. Transaction markers and compacted records count, as in
        Kafka's tools.
        """
        return positions.lag(cursor, end)

    @property
    def shown_as(self) -> str | None:
        """Consumer group that shows how far the job has read."""
        return self._shown_group

    def show(self, cursor: Cursor) -> None:
        """Commit the cursor as the group's offsets. Raises `SourceInvalid`, also if the group has members."""
        if self._shown_group is not None:
            with _as_source_error(), KafkaControl(self._connection) as control:
                control.show_offsets(self._shown_group, positions.from_cursor(cursor))

    @property
    def rows_per_batch(self) -> int | None:
        """Option maxOffsetsPerTrigger."""
        rows = self._reader.get(_MOST)
        return None if rows is None else int(rows)

    def limited(self, rows: int) -> KafkaSource | None:
        """Return the source with batches of at most `rows` records. None if its own limit is lower or it has a
        minimum.
        """
        own = self.rows_per_batch
        if _LEAST in self._reader or (own is not None and own <= rows):
            return None
        other = copy.copy(self)
        other._reader = self._reader | {_MOST: str(rows)}
        return other

    def identity(self, spark: SparkSession) -> Mapping[str, str]:
        """Return the endpoint: the cluster and the current topics. One request over a kept connection."""
        with _as_source_error():
            return {"kind": "kafka"} | self._kept.ask(self._topics.identity)

    def disconnect(self) -> None:
        """Close the kept connection."""
        self._kept.close()

    def describe(self) -> Mapping[str, str]:
        """Return kind, topics, servers and settings, without secrets."""
        return {"kind": "kafka", "topic": str(self._topics)} | self._connection.describe() | redacted(self._reader)

    def _stream(self, spark: SparkSession, starting_offsets: str) -> DataFrame:
        from pyspark.errors import AnalysisException, PySparkException

        consumer = {f"kafka.{name}": value for name, value in self._consumer.items()}
        options = (
            # A user may set it to false for Spark's batches. `check_holes` refuses lost records at a start all the
            # same.
            {"failOnDataLoss": "true"}
            | self._reader
            | consumer
            | self._connection.for_spark()
            | self._topics.for_spark()
        )
        reader = spark.readStream.format("kafka").options(**options).option("startingOffsets", starting_offsets)
        try:
            return reader.load()
        except PySparkException as error:
            said = str(error).lower()
            if not isinstance(error, AnalysisException) or "kafka" not in said or "find" not in said:
                raise SourceInvalid(f"Spark refuses the Kafka options: {error}", hint="see the message") from error
            raise EnvironmentUnfit(
                "the session has no Kafka connector",
                hint="make the program's first session with spark_ckpt.session(name, 'kafka'), or put"
                " spark-sql-kafka-0-10 into spark.jars: Java that runs already takes no more jars",
            ) from error


def _split_reader_options(options: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return (settings of Kafka's consumer, options of Spark's reader). Refuses options that the source sets itself."""
    if ours := sorted(_OURS.keys() & options.keys()):
        raise ConfigInvalid(f"option {ours[0]!r} is set by the source", hint=_OURS[ours[0]])
    reader = {name: value for name, value in options.items() if name in _READER_OPTIONS}
    consumer = {name: value for name, value in options.items() if name not in reader}
    if unknown := sorted(name for name in consumer if "." not in name):
        raise ConfigInvalid(
            f"unknown Kafka source option {unknown[0]!r}",
            hint=did_you_mean(unknown[0], _READER_OPTIONS)
            or f"known: {', '.join(sorted(_READER_OPTIONS))}, and Kafka's dotted names",
        )
    # Spark would read nothing with 0 offsets per trigger, and report fewer as lost records.
    for name in sorted(_NUMBERS & reader.keys()):
        if not re.fullmatch("0*[1-9][0-9]*", reader[name]):
            raise ConfigInvalid(f"{name} must be a whole number above 0, not {reader[name]!r}")
    if (level := (_CONSUMER | consumer)[_ISOLATION]) not in _LEVELS:
        raise ConfigInvalid(f"unknown {_ISOLATION} {level!r}", hint=f"one of {', '.join(_LEVELS)}")
    return _CONSUMER | consumer, reader


def _ms(time: dt.datetime) -> int:
    """Return the first millisecond of Kafka's timestamps at or after the time."""
    return math.ceil((time - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) / dt.timedelta(milliseconds=1))


@contextmanager
def _as_source_error() -> Iterator[None]:
    """Raise a `ControlError` as `SourceInvalid`, and as `SourceSilent` if the cluster does not answer."""
    try:
        yield
    except ControlError as error:
        # A job begins its next incarnation while the brokers are away, too: that must not end it as a missing topic does.
        raise (SourceSilent if error.retriable else SourceInvalid)(error.what, hint=error.hint) from error
