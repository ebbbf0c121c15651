"""Publishes the rows of one epoch and shard: the second phase of the two-phase commit. It may run any number of times.

The order of the steps makes it exactly-once. `init` fences every older producer of the id and waits until their last
transaction is decided. So the marker read after it is final. Rows and marker are in one transaction, and a producer
runs one transaction only. After any failure the next attempt starts at `init` again.

With an early send the transaction opens before its epoch commits, and stays open. The marker is written with the
commit, so that nothing is visible before it. While a transaction is open, no other producer of the id may initialise
here: that would abort it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from spark_ckpt.connector_parts.early_sends import SentEarly
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt_kafka.control import KafkaControl
from spark_ckpt_kafka.marker import MarkerDecision, TopicMarker, Wanted, contradiction, decide, lane_is_new
from spark_ckpt_kafka.options import Connection, Tuning
from spark_ckpt_kafka.producer import ProducerFailed, Progress, TransactionalProducer, open_producer
from spark_ckpt_kafka.refusals import Refusals
from spark_ckpt_kafka.rows import ShardRows, StagedPart
from spark_ckpt_kafka.transaction import Clock, OpenTransaction, Transaction, aborting

HEARTBEAT_S = 6 * 3600.0
"""Seconds after which an idle shard refreshes its marker. Brokers drop a marker after 7 days by default."""

T = TypeVar("T")


@dataclass(frozen=True)
class ShardSettings:
    """Settings of a shard for the life of its process. Sent over a pipe, because they hold the secrets."""

    connection: Connection
    tuning: Tuning
    store_id: str
    sink: str
    lane: int
    topic: str | None
    marker_topic: str
    audit_headers: bool

    def group(self, lane: int) -> str:
        """Return the transactional id and marker group of shard `lane`; it is the same in every incarnation."""
        # An init fences a zombie only under the same id, so that the incarnation is no part of it. The job's name may
        # change.
        return f"{self.store_id}.{self.sink}.{lane}"


@dataclass(frozen=True)
class ShardRequest:
    """One epoch of one shard. The fields after `parts` are input of the marker decision (`marker.Wanted`)."""

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
    diverged: tuple[int, ...] = ()

    @property
    def rows(self) -> int:
        """Number of rows to send."""
        return sum(part.rows for part in self.parts)


@dataclass(frozen=True, slots=True)
class ShardResult:
    """Result of a shard: the rows of its committed transaction, or `replayed`. `parts_ms`: durations of the parts
    (`Laps`).
    """

    rows: int
    replayed: bool
    parts_ms: dict[str, int] = field(default_factory=dict, compare=False)


class Laps:
    """Measures the parts of a publish, one after the other.

    - `init`: initialising the producer, if none was ready.
    - `verify`: checking the marker and the rows.
    - `send`: until every row is acknowledged.
    - `commit`: until the marker shows the epoch.

    Rows of an early send count in no part: `verify` and `send` cover the remaining rows.
    """

    def __init__(self) -> None:
        self._since_s = time.monotonic()
        self.took_ms: dict[str, int] = {}

    def after(self, part: str) -> Laps:
        """End the part `part` and begin the next one."""
        now_s = time.monotonic()
        self.took_ms[part], self._since_s = round((now_s - self._since_s) * 1000), now_s
        return self


class ShardPublisher:
    """Publishes one shard within one process. Calls `progress` at each sign of progress.

    The caller calls `idle` after `idle_s` seconds without a request. `control` reads topics and markers.
    """

    def __init__(
        self,
        settings: ShardSettings,
        progress: Progress,
        clock: Clock = time.monotonic,
        control: KafkaControl | None = None,
    ) -> None:
        self._settings = settings
        self._progress = progress
        self._clock = clock
        self._control = control or KafkaControl(settings.connection)
        self._group = settings.group(settings.lane)
        stamped = self._group if settings.audit_headers else None
        self._rows = ShardRows(settings.sink, settings.lane, settings.topic, stamped, self._check_topics)
        self._refusals = Refusals(self._control, settings.tuning, settings.topic)
        self._ready: TransactionalProducer | None = None
        self._committed: TransactionalProducer | None = None
        # Half of the broker's timeout: the other half is for the rest of the publish.
        self._early = OpenTransaction(settings.tuning.transaction_timeout_ms / 2000, clock)

    def prepare(self) -> None:
        """Initialise the producer of the next transaction in advance. Each transaction still has one init of its own.

        Does nothing while early-sent rows are in an open transaction: an init would abort it. After a failure the next
        request tries again, and reports why.
        """
        if self._ready is None and self._early.transaction is None:
            with suppress(ProducerFailed):
                self._ready = self._initialised()
            # A request may wait behind a failed init, and goes through the same timeouts.
            self._progress()

    def publish(self, request: ShardRequest, verified: Callable[[], None] = lambda: None) -> ShardResult:
        """Publish the epoch, unless the marker shows that it is published. Raises `ProducerFailed` or a `CkptError`.

        `verified` is called when every row to send matches the committed manifest. That is before the transaction
        opens; after an early send, it is before the transaction commits.
        """
        laps = Laps()
        self._early.keep_only(request.epoch, request.incarnation, request.parts)
        with self._refusals.explaining(request, self._rows):
            return self._transaction(
                # `laps.after` runs within the lambda: the producer has had its init by then.
                lambda transaction: self._publish(transaction, request, verified, laps.after("init"))
            )

    def send_early(self, request: ShardRequest) -> int:
        """Send those files of an uncommitted epoch that are not sent yet (early send), and return the number of rows.

        Every row is acknowledged on return, and the transaction stays open. A transaction that was open for half its
        timeout is aborted, and nothing more of its epoch is sent early. Raises like `publish`.
        """
        self._early.keep_only(request.epoch, request.incarnation, request.parts)
        # After `keep_only`, which may give up this very epoch.
        if self._early.was_given_up(request.epoch):
            return 0
        hit(Failpoint.SENDING_EARLY)
        transaction = self._taken()
        # `aborting` is the inner one: `explaining` reads files again, and readers would wait for the open transaction.
        with self._refusals.explaining(request, self._rows), aborting(transaction):
            sent = self._send_rest(transaction, request)
            self._check_delivered(transaction.producer.deliver(), request)
            # Rows without an acknowledgement must not count as sent: `publish` would leave them out.
            transaction.sent = SentEarly(request.epoch, request.incarnation, tuple(request.parts))
        # Stored only now: a failure above has aborted it, and the publish then begins with an init.
        self._early.transaction = transaction
        hit(Failpoint.SENT_EARLY)
        return sent

    def drop_early_send(self) -> None:
        """Abort the early send, if there is one."""
        self._early.drop()

    @property
    def idle_s(self) -> float:
        """Seconds without a request after which `idle` is due."""
        left_s = self._early.left_s
        return HEARTBEAT_S if left_s is None else left_s

    def idle(self) -> None:
        """Write the same marker again, so that it does not expire.

        An open transaction is aborted instead, before the broker does it.
        """
        if self._early.transaction is None:
            self._transaction(self._refresh)
        else:
            self._early.give_up()

    def _taken(self) -> Transaction:
        if (early := self._early.take()) is not None:
            return early
        producer, self._ready = self._ready or self._initialised(), None
        return Transaction(producer)

    def _transaction(self, work: Callable[[Transaction], T]) -> T:
        transaction = self._taken()
        with aborting(transaction):
            result = work(transaction)
        self._committed = transaction.producer
        return result

    def _initialised(self) -> TransactionalProducer:
        settings = self._settings
        # Nothing of a failed transaction is used again: its connections may hold requests of it.
        # It is taken out before the init: after a failed init the next attempt connects again, and does not renew a
        # broken one.
        last, self._committed = self._committed, None
        producer = (
            last.renew()
            if last is not None
            else open_producer(settings.connection, settings.tuning, self._group, self._progress)
        )
        # Connect and init may take `INIT_TIMEOUT_S` each, and the driver kills a process that is silent for both.
        self._progress()
        producer.init()
        hit(Failpoint.PUBLISH_INIT)
        return producer

    def _publish(
        self, transaction: Transaction, request: ShardRequest, verified: Callable[[], None], laps: Laps
    ) -> ShardResult:
        marker = self._read_marker()
        if marker is None:
            # A topic that is gone took its marker along: that is no marker which expired.
            self._check_topics(set())
        # The producer was initialised before this look. In the other order a zombie's commit could change the marker
        # after it.
        hit(Failpoint.MARKER_READ)
        if self._decide(marker, request) is MarkerDecision.DONE:
            # Early-sent rows of an epoch that is published already would be duplicates.
            if transaction.begun_s is not None:
                transaction.abort()
            return ShardResult(0, replayed=True, parts_ms=laps.after("verify").took_ms)

        def may_go() -> None:
            verified()
            laps.after("verify")

        self._send_rest(transaction, request, may_go)
        producer = transaction.producer
        # In the transaction of the rows: both become visible together, or neither.
        producer.add_marker(self._group, self._settings.marker_topic, *self._new_marker(marker, request))
        hit(Failpoint.OFFSETS_SENT)
        # The broker does not know which records a transaction should have: it commits one that lacks refused ones
        # without an error.
        self._deliver(producer, request)
        laps.after("send")
        hit(Failpoint.PRE_COMMIT)
        producer.commit()
        hit(Failpoint.PUBLISH_COMMITTED)
        self._verify(request)
        return ShardResult(request.rows, replayed=False, parts_ms=laps.after("commit").took_ms)

    def _send_rest(
        self, transaction: Transaction, request: ShardRequest, verified: Callable[[], None] = lambda: None
    ) -> int:
        """Send the rows of files that are not in the transaction, and return their number."""
        rest = transaction.rest_of(request.epoch, request.incarnation, request.parts)
        if rest is None:  # `keep_only` excludes this
            raise ProducerFailed("the open transaction holds rows of something else")
        # The topics of an open transaction were seen at its begin, and each look costs a round trip.
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

    def _decide(self, marker: TopicMarker | None, request: ShardRequest) -> MarkerDecision:
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
            diverged=request.diverged if request.rows else (),
        )
        # An epoch without rows cannot lose any to a diverged epoch: the decision then ignores diverged ones.
        decision = decide(marker, wanted)
        if decision is not MarkerDecision.ASK_FIRST_LANE:
            return decision
        # The first shard takes part in every epoch, so that its marker has the number of shards of the epoch before.
        if lane_is_new(self._read_marker(0), wanted):
            return MarkerDecision.PUBLISH
        raise contradiction(marker, wanted)

    def _new_marker(self, old: TopicMarker | None, request: ShardRequest) -> tuple[int, str]:
        marker = TopicMarker(
            epoch=request.epoch,
            previous=request.previous,
            incarnation=request.incarnation,
            rows=request.rows,
            lanes=request.lanes,
            # Shards publish in parallel: another one may find this marker at the new epoch already, and then needs
            # the older number.
            lanes_before=old.lanes if old else request.lanes,
            decision=request.decision,
        )
        return request.epoch, marker.encode()

    def _check_topics(self, topics: set[str]) -> None:
        # Before the transaction: a marker on a missing topic would block.
        self._control.partitions(topics | {self._settings.marker_topic})
        self._progress()

    def _deliver(self, producer: TransactionalProducer, request: ShardRequest) -> None:
        delivered = producer.deliver()
        hit(Failpoint.FLUSHED)
        self._check_delivered(delivered, request)

    def _check_delivered(self, delivered: int, request: ShardRequest) -> None:
        if delivered != request.rows:
            raise ProducerFailed(f"acknowledged: {delivered} of {request.rows}")

    def _verify(self, request: ShardRequest) -> None:
        # A client can report success for a commit that did not happen.
        marker = self._read_marker()
        # A higher epoch is a success, too: a successor may have published more between the commit and this look.
        # The next attempt reads the marker after an init, which ends all doubt.
        if marker is None or marker.epoch < request.epoch:
            raise ProducerFailed("the commit was reported as done, but the marker did not move")

    def _refresh(self, transaction: Transaction) -> None:
        # A group without members keeps an offset for offsets.retention.minutes after its last commit (KIP-211), so
        # the same marker is committed again.
        marker, producer = self._read_marker(), transaction.producer
        if marker is None:
            return
        transaction.begin(self._clock())
        producer.add_marker(self._group, self._settings.marker_topic, marker.epoch, marker.encode())
        producer.commit()
