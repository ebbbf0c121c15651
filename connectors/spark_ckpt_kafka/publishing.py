"""Publishing one epoch's rows of one lane: the second half of the two-phase commit, any number of times.

The order is what makes it exactly-once.  `init` fences every older producer of the id and waits until
their last transaction is decided, so the marker read after it is final; rows and marker are in one
transaction; a producer is used for one transaction only.  Whatever fails, the next attempt starts at
`init` again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from spark_ckpt.errors import PublishFailed
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt_kafka.control import Control
from spark_ckpt_kafka.marker import Decision, TopicMarker, Wanted, contradiction, decide, lane_is_new
from spark_ckpt_kafka.options import Connection, Tuning
from spark_ckpt_kafka.producer import (
    Chunk,
    Plane,
    ProducerFailed,
    Progress,
    TransactionalProducer,
    open_producer,
)
from spark_ckpt_kafka.rows import StagedPart, StagedRows, VerifiedRows

SETTLE_S = 0.03
"""A broker finishes a commit shortly after it answered; an init before that is refused and retried much
later.
"""

T = TypeVar("T")


@dataclass(frozen=True)
class LaneSettings:
    """What a lane needs for its whole life. Sent to its process over a pipe: it holds the secrets."""

    connection: Connection
    tuning: Tuning
    plane: Plane
    store_id: str
    sink: str
    lane: int
    topic: str | None
    marker_topic: str
    audit_headers: bool

    def group(self, lane: int) -> str:
        """The transactional id and the marker's group of a lane, the same in every incarnation."""
        return f"{self.store_id}.{self.sink}.{lane}"


@dataclass(frozen=True)
class Request:
    """One epoch of one lane."""

    epoch: int
    previous: int
    incarnation: int
    dropped: tuple[int, ...]
    lanes: int
    root: str
    storage_options: dict[str, str] = field(repr=False)
    parts: Sequence[StagedPart] = ()
    newest: int | None = None
    decision: str = ""
    begun_after: int | None = None
    beside: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """How many rows are to be sent."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, slots=True)
class Published:
    """What a lane did: rows of the transaction it committed, or `replayed`. `parts_ms`: how long its parts took (`Laps`)."""

    rows: int
    replayed: bool
    parts_ms: dict[str, int] = field(default_factory=dict, compare=False)


class Laps:
    """How long the parts of a publish took, one after the other: `init` of the producer if it was not ready, `verify` of marker and
    rows, `send` until every row is acknowledged, `commit` until the marker shows it."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self.took_ms: dict[str, int] = {}

    def after(self, part: str) -> Laps:
        """The part is over, the next one begins."""
        now_s = time.monotonic()
        self.took_ms[part], self._since_s = round((now_s - self._since_s) * 1000), now_s
        return self


class LanePublisher:
    """A lane's publishing side within one process. `progress` is called while things move."""

    def __init__(self, settings: LaneSettings, progress: Progress) -> None:
        self._settings = settings
        self._progress = progress
        self._control = Control(settings.connection)
        self._group = settings.group(settings.lane)
        self._ready: TransactionalProducer | None = None

    def prepare(self) -> None:
        """Initialise the next transaction's producer now, while there is time. It is still one init for each."""
        if self._ready is None:
            self._ready = self._initialised()

    def publish(self, request: Request, verified: Callable[[], None] = lambda: None) -> Published:
        """Publish the epoch unless the marker says that it is. Raises `ProducerFailed` or a `CkptError`.

        `verified` is called when every row to be sent is known to be what was decided, before the transaction opens.
        """
        laps = Laps()
        return self._transaction(lambda producer: self._publish(producer, request, verified, laps.after("init")))

    def heartbeat(self) -> None:
        """Write the marker again as it is, so that an idle sink's marker does not expire."""
        self._transaction(self._refresh)

    def _transaction(self, work: Callable[[TransactionalProducer], T]) -> T:
        producer, self._ready = self._ready or self._initialised(), None
        try:
            result = work(producer)
        except Exception:
            with contextlib.suppress(ProducerFailed):
                producer.abort()
            raise
        producer.close()
        return result

    def _initialised(self) -> TransactionalProducer:
        settings = self._settings
        producer = open_producer(settings.plane, settings.connection, settings.tuning, self._group, self._progress)
        producer.init()
        hit(Failpoint.PUBLISH_INIT)
        return producer

    def _publish(
        self, producer: TransactionalProducer, request: Request, verified: Callable[[], None], laps: Laps
    ) -> Published:
        marker = self._read_marker()
        hit(Failpoint.MARKER_READ)
        if self._decide(marker, request) is Decision.DONE:
            return Published(0, replayed=True, parts_ms=laps.after("verify").took_ms)
        self._check_topics({self._settings.topic} if self._settings.topic else set())
        rows = self._staged(request).verified(self._progress)
        verified()
        laps.after("verify")
        producer.begin()
        self._send(producer, rows)
        producer.add_marker(self._group, self._settings.marker_topic, *self._new_marker(marker, request))
        hit(Failpoint.OFFSETS_SENT)
        self._deliver(producer, request)
        laps.after("send")
        hit(Failpoint.PRE_COMMIT)
        producer.commit()
        hit(Failpoint.PUBLISH_COMMITTED)
        self._verify(request)
        return Published(request.rows, replayed=False, parts_ms=laps.after("commit").took_ms)

    def _read_marker(self, lane: int | None = None) -> TopicMarker | None:
        group = self._group if lane is None else self._settings.group(lane)
        marker = self._control.marker(group, self._settings.marker_topic)
        self._progress()
        return marker

    def _decide(self, marker: TopicMarker | None, request: Request) -> Decision:
        lane = self._settings.lane
        wanted = Wanted(
            group=self._group,
            lane=lane,
            epoch=request.epoch,
            previous=request.previous,
            incarnation=request.incarnation,
            dropped=request.dropped,
            newest=request.newest,
            decision=request.decision,
            begun_after=request.begun_after,
            beside=request.beside if request.rows else (),
        )
        decision = decide(marker, wanted)
        if decision is not Decision.ASK_FIRST_LANE:
            return decision
        if lane_is_new(self._read_marker(0), wanted):
            return Decision.PUBLISH
        raise contradiction(marker, wanted)

    def _new_marker(self, old: TopicMarker | None, request: Request) -> tuple[int, str]:
        marker = TopicMarker(
            epoch=request.epoch,
            previous=request.previous,
            incarnation=request.incarnation,
            rows=request.rows,
            lanes=request.lanes,
            lanes_before=old.lanes if old else request.lanes,
            decision=request.decision,
        )
        return request.epoch, marker.encode()

    def _check_topics(self, topics: set[str]) -> None:
        """Topics exist. Asked before the transaction: a marker on a missing topic would block."""
        self._control.partitions(topics | {self._settings.marker_topic})
        self._progress()

    def _staged(self, request: Request) -> StagedRows:
        return StagedRows(
            request.root,
            request.storage_options,
            request.parts,
            self._settings.topic,
            self._stamp(request.epoch),
            {"epoch": request.epoch, "sink": self._settings.sink, "lane": self._settings.lane},
        )

    def _send(self, producer: TransactionalProducer, rows: VerifiedRows) -> None:
        known: set[str] = set()
        for row_group in rows.row_groups():
            for chunk in row_group:
                self._check_new_topics(chunk, known)
                producer.send(chunk)
            hit(Failpoint.MID_SEND)

    def _check_new_topics(self, chunk: Chunk, known: set[str]) -> None:
        if self._settings.topic:
            return
        named = {topic for topic in chunk.topics or () if topic is not None}
        if chunk.topics is None or None in chunk.topics:
            raise PublishFailed(
                "a row has no topic",
                hint="give KafkaSink(topic=...), or fill the column 'topic' in every row",
            )
        if new := named - known:
            self._check_topics(new)
            known |= new

    def _stamp(self, epoch: int) -> list[tuple[str, bytes | None]]:
        if not self._settings.audit_headers:
            return []
        return [("ckpt-lane", self._group.encode()), ("ckpt-epoch", str(epoch).encode())]

    def _deliver(self, producer: TransactionalProducer, request: Request) -> None:
        delivered = producer.deliver()
        hit(Failpoint.FLUSHED)
        if delivered != request.rows:
            raise ProducerFailed(f"acknowledged: {delivered} of {request.rows}")

    def _verify(self, request: Request) -> None:
        """The commit was real: the marker says so. A client can report success for nothing."""
        marker = self._read_marker()
        if marker is None or marker.epoch < request.epoch:
            raise ProducerFailed("the commit was reported as done, but the marker did not move")

    def _refresh(self, producer: TransactionalProducer) -> None:
        marker = self._read_marker()
        if marker is None:
            return
        producer.begin()
        producer.add_marker(self._group, self._settings.marker_topic, marker.epoch, marker.encode())
        producer.commit()
