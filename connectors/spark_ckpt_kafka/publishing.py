"""Publishing one epoch's rows of one lane: the second half of the two-phase commit, any number of times.

The order is what makes it exactly-once.  `init` fences every older producer of the id and waits until
their last transaction is decided, so the marker read after it is final; rows and marker are in one
transaction; a producer is used for one transaction only.  Whatever fails, the next attempt starts at
`init` again.

Rows may be sent ahead: the transaction is opened while their epoch is not decided, and stays open. The marker comes with the
commit, so that nothing is shown and nothing is said before the decision. While a transaction is open no other producer of the
id is initialised here, because that would abort it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from spark_ckpt.connector_parts.sent_ahead import SentAhead
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt_kafka.control import Control
from spark_ckpt_kafka.lane_rows import LaneRows
from spark_ckpt_kafka.marker import Decision, TopicMarker, Wanted, contradiction, decide, lane_is_new
from spark_ckpt_kafka.options import Connection, Tuning
from spark_ckpt_kafka.producer import Plane, ProducerFailed, Progress, TransactionalProducer, open_producer
from spark_ckpt_kafka.refusals import Refusals
from spark_ckpt_kafka.rows import StagedPart
from spark_ckpt_kafka.transaction import Ahead, Clock, Transaction, aborting

SETTLE_S = 0.03
"""A broker finishes a commit shortly after it answered; an init before that is refused and retried much
later.
"""

HEARTBEAT_S = 6 * 3600.0
"""How long a lane may be idle before it refreshes its marker; brokers forget one after 7 days by default."""

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
    rows, `send` until every row is acknowledged, `commit` until the marker shows it. What was sent ahead is in none of them:
    `verify` and `send` are of the rest."""

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self.took_ms: dict[str, int] = {}

    def after(self, part: str) -> Laps:
        """The part is over, the next one begins."""
        now_s = time.monotonic()
        self.took_ms[part], self._since_s = round((now_s - self._since_s) * 1000), now_s
        return self


class LanePublisher:
    """A lane's publishing side within one process. `progress` is called while things move.

    `idle_s` tells its host when to call `idle`.
    """

    def __init__(self, settings: LaneSettings, progress: Progress, clock: Clock = time.monotonic) -> None:
        self._settings = settings
        self._progress = progress
        self._clock = clock
        self._control = Control(settings.connection)
        self._group = settings.group(settings.lane)
        stamped = self._group if settings.audit_headers else None
        self._rows = LaneRows(settings.sink, settings.lane, settings.topic, stamped, self._check_topics)
        self._refusals = Refusals(self._control, settings.plane, settings.tuning, settings.topic)
        self._ready: TransactionalProducer | None = None
        self._ahead = Ahead(settings.tuning.transaction_timeout_ms / 2000, clock)

    def prepare(self) -> None:
        """Initialise the next transaction's producer now, while there is time. It is still one init for each.

        Not while rows sent ahead are in an open transaction: an init would abort it.
        """
        if self._ready is None and self._ahead.transaction is None:
            self._ready = self._initialised()

    def publish(self, request: Request, verified: Callable[[], None] = lambda: None) -> Published:
        """Publish the epoch unless the marker says that it is. Raises `ProducerFailed` or a `CkptError`.

        `verified` is called when every row to be sent is known to be what was decided, before the transaction opens or,
        where rows were sent ahead, before it is committed.
        """
        laps = Laps()
        self._ahead.keep_only(request.epoch, request.incarnation, request.parts)
        with self._refusals.explaining(request, self._rows):
            return self._transaction(
                lambda transaction: self._publish(transaction, request, verified, laps.after("init"))
            )

    def send_ahead(self, request: Request) -> int:
        """Send what of an undecided epoch's files is not sent yet, all acknowledged; how many rows. Raises as `publish` does.

        The transaction stays open. One that was open for half its timeout is aborted, and nothing more of its epoch is
        sent ahead.
        """
        self._ahead.keep_only(request.epoch, request.incarnation, request.parts)
        if self._ahead.was_given_up(request.epoch):
            return 0
        hit(Failpoint.SENDING_AHEAD)
        transaction = self._taken()
        with self._refusals.explaining(request, self._rows), aborting(transaction):
            sent = self._send_rest(transaction, request)
            self._check_delivered(transaction.producer.deliver(), request)
            transaction.sent = SentAhead(request.epoch, request.incarnation, tuple(request.parts))
        self._ahead.transaction = transaction
        hit(Failpoint.SENT_AHEAD)
        return sent

    def drop_ahead(self) -> None:
        """Abort what was sent ahead, if anything was."""
        self._ahead.drop()

    @property
    def idle_s(self) -> float:
        """How long nothing may be asked of the lane until `idle` is due."""
        left_s = self._ahead.left_s
        return HEARTBEAT_S if left_s is None else left_s

    def idle(self) -> None:
        """Nothing was asked for `idle_s`: write the marker again as it is, so that it does not expire.

        An open transaction is aborted instead, before the broker does it.
        """
        if self._ahead.transaction is None:
            self._transaction(self._refresh)
        else:
            self._ahead.give_up()

    def _taken(self) -> Transaction:
        """The open transaction, or the next one."""
        if (ahead := self._ahead.take()) is not None:
            return ahead
        producer, self._ready = self._ready or self._initialised(), None
        return Transaction(producer)

    def _transaction(self, work: Callable[[Transaction], T]) -> T:
        transaction = self._taken()
        with aborting(transaction):
            result = work(transaction)
        transaction.producer.close()
        return result

    def _initialised(self) -> TransactionalProducer:
        settings = self._settings
        producer = open_producer(settings.plane, settings.connection, settings.tuning, self._group, self._progress)
        producer.init()
        hit(Failpoint.PUBLISH_INIT)
        return producer

    def _publish(
        self, transaction: Transaction, request: Request, verified: Callable[[], None], laps: Laps
    ) -> Published:
        marker = self._read_marker()
        hit(Failpoint.MARKER_READ)
        if self._decide(marker, request) is Decision.DONE:
            if transaction.begun_s is not None:
                transaction.abort()
            return Published(0, replayed=True, parts_ms=laps.after("verify").took_ms)

        def may_go() -> None:
            verified()
            laps.after("verify")

        self._send_rest(transaction, request, may_go)
        producer = transaction.producer
        producer.add_marker(self._group, self._settings.marker_topic, *self._new_marker(marker, request))
        hit(Failpoint.OFFSETS_SENT)
        self._deliver(producer, request)
        laps.after("send")
        hit(Failpoint.PRE_COMMIT)
        producer.commit()
        hit(Failpoint.PUBLISH_COMMITTED)
        self._verify(request)
        return Published(request.rows, replayed=False, parts_ms=laps.after("commit").took_ms)

    def _send_rest(
        self, transaction: Transaction, request: Request, verified: Callable[[], None] = lambda: None
    ) -> int:
        """Send the rows of files that are not in the transaction; how many."""
        rest = transaction.rest_of(request.epoch, request.incarnation, request.parts)
        if rest is None:  # `keep_only` has seen to it
            raise ProducerFailed("the open transaction holds rows of something else")
        if transaction.begun_s is None:
            self._check_topics({self._settings.topic} if self._settings.topic else set())
        rows = self._rows.verified(request.epoch, request.root, request.storage_options, rest, self._progress)
        verified()
        transaction.begin(self._clock())
        self._rows.send(transaction.producer, rows)
        return sum(part.rows for part in rest)

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

    def _deliver(self, producer: TransactionalProducer, request: Request) -> None:
        delivered = producer.deliver()
        hit(Failpoint.FLUSHED)
        self._check_delivered(delivered, request)

    def _check_delivered(self, delivered: int, request: Request) -> None:
        if delivered != request.rows:
            raise ProducerFailed(f"acknowledged: {delivered} of {request.rows}")

    def _verify(self, request: Request) -> None:
        """The commit was real: the marker says so. A client can report success for nothing."""
        marker = self._read_marker()
        if marker is None or marker.epoch < request.epoch:
            raise ProducerFailed("the commit was reported as done, but the marker did not move")

    def _refresh(self, transaction: Transaction) -> None:
        marker, producer = self._read_marker(), transaction.producer
        if marker is None:
            return
        transaction.begin(self._clock())
        producer.add_marker(self._group, self._settings.marker_topic, marker.epoch, marker.encode())
        producer.commit()
