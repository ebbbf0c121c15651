"""The publish protocol against a model of a broker's transactions: crashes, lost answers, zombies; rows exactly once.

The model fences, aborts and commits as a broker does.  Attempts die at every failpoint, commits lose their
answer, and a second publisher runs in the middle of the first one.  Planted bugs show that the check would
notice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from spark_ckpt_kafka import publishing
from spark_ckpt_kafka.marker import TopicMarker, decode
from spark_ckpt_kafka.options import Connection, Tuning
from spark_ckpt_kafka.producer import Chunk, ProducerFailed, TransactionalProducer
from spark_ckpt_kafka.publishing import LanePublisher, LaneSettings, Published, Request
from spark_ckpt_kafka.rows import StagedPart

from spark_ckpt import failpoints
from spark_ckpt.errors import CkptError
from spark_ckpt.failpoints import FailpointHit

ROWS = 4
POINTS = ("PUBLISH_INIT", "MARKER_READ", "MID_SEND", "OFFSETS_SENT", "FLUSHED", "PRE_COMMIT", "PUBLISH_COMMITTED")


@dataclass
class Log:
    """One transactional id at a broker: its newest producer, its open transaction, what is committed."""

    newest: int = 0
    committed: list[bytes | None] = field(default_factory=list)
    marker: tuple[int, str] | None = None
    lose_next_answer: bool = False
    drop_next_record: bool = False
    before_commit: Callable[[], object] | None = None


class ModelProducer:
    """A producer of the log; fenced as soon as a newer one initialised."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.rows: list[bytes | None] = []
        self.marker: tuple[int, str] | None = None

    def init(self) -> None:
        self.log.newest += 1
        self.number = self.log.newest

    def begin(self) -> None:
        self._check()

    def send(self, chunk: Chunk) -> None:
        self._check()
        self.rows += chunk.values

    def add_marker(self, group: str, topic: str, epoch: int, metadata: str) -> None:
        self._check()
        self.marker = (epoch, metadata)

    def deliver(self) -> int:
        self._check()
        if self.log.drop_next_record:
            self.log.drop_next_record = False
            self.rows.pop()
        return len(self.rows)

    def commit(self) -> None:
        if (meanwhile := self.log.before_commit) is not None:
            self.log.before_commit = None
            meanwhile()
        self._check()
        self.log.committed += self.rows
        self.log.marker = self.marker
        if self.log.lose_next_answer:
            self.log.lose_next_answer = False
            raise ProducerFailed("no answer")

    def abort(self) -> None:
        self._check()

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.number != self.log.newest:
            raise ProducerFailed("fenced", fenced=True)


class ModelControl:
    """The marker, and topics that all exist."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def marker(self, group: str, topic: str) -> TopicMarker | None:
        return decode(*self.log.marker, group) if self.log.marker else None

    def partitions(self, topics: object) -> dict[str, list[int]]:
        return {}


class World:
    """A log, staged epochs, and publishers that die."""

    def __init__(self, folder: Path, kind: type[LanePublisher] = LanePublisher) -> None:
        self.log = Log()
        self.folder = folder
        self.kind = kind

    def publisher(self) -> LanePublisher:
        place = Connection("b:1")
        lane = LaneSettings(place, Tuning(), "kafka-python", "store", "out", 0, "t", "t", audit_headers=False)
        one = self.kind(lane, lambda: None)
        one._control = ModelControl(self.log)  # type: ignore[assignment]
        return one

    def request(self, epoch: int) -> Request:
        path = self.folder / f"{epoch}.parquet"
        if not path.exists():
            pq.write_table(pa.table({"value": [b"%d:%d" % (epoch, row) for row in range(ROWS)]}), path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        part = StagedPart(path.name, ROWS, path.stat().st_size, digest)
        return Request(epoch, epoch - 1, 1, (), 1, str(self.folder), {}, [part])

    def attempt(self, epoch: int, dies_at: str | None = None) -> Published | None:
        """One process's attempt; None when it died or has to be repeated."""
        failpoints.arm(f"{dies_at}:raise" if dies_at else "")
        try:
            return self.publisher().publish(self.request(epoch))
        except (FailpointHit, ProducerFailed):
            return None
        finally:
            failpoints.arm("")

    def expected(self, epochs: int) -> list[bytes]:
        return [b"%d:%d" % (epoch, row) for epoch in range(1, epochs + 1) for row in range(ROWS)]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    current: list[World] = []

    def make(kind: type[LanePublisher] = LanePublisher) -> World:
        current.append(World(tmp_path, kind))
        return current[-1]

    monkeypatch.setattr(publishing, "open_producer", lambda *_: ModelProducer(current[-1].log))
    yield make
    failpoints.arm("")


Fault = st.sampled_from([*POINTS, "LOST_ANSWER", "DROPPED_RECORD", "OTHER_PUBLISHER"])


def _suffer(world: World, epoch: int, fault: str) -> None:
    """One attempt at the epoch with one fault."""
    if fault == "LOST_ANSWER":
        world.log.lose_next_answer = True
    elif fault == "DROPPED_RECORD":
        world.log.drop_next_record = True
    elif fault == "OTHER_PUBLISHER":
        world.log.before_commit = lambda: world.attempt(epoch)
    world.attempt(epoch, fault if fault in POINTS else None)
    world.log.lose_next_answer = world.log.drop_next_record = False
    world.log.before_commit = None


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=st.lists(st.lists(Fault, max_size=4), min_size=1, max_size=4))
def test_rows_are_there_exactly_once_whatever_happens(world: Callable[..., World], faults: list[list[str]]) -> None:
    one = world()

    for epoch, suffered in enumerate(faults, start=1):
        for fault in suffered:
            _suffer(one, epoch, fault)
        assert one.attempt(epoch) is not None

    assert one.log.committed == one.expected(len(faults))


class MarkerBeforeInit(LanePublisher):
    """Planted bug: decides on a marker that older producers can still move."""

    def publish(self, request: Request, verified: Callable[[], None] = lambda: None) -> Published:
        stale = self._read_marker()
        self._read_marker = lambda lane=None: stale  # type: ignore[method-assign]
        self._verify = lambda request: None  # type: ignore[method-assign]
        return super().publish(request, verified)


class TrustsTheFlush(LanePublisher):
    """Planted bug: does not compare acknowledged records with rows (kafka-python's hazard H1)."""

    def _deliver(self, producer: TransactionalProducer, request: Request) -> None:
        producer.deliver()


def test_a_marker_read_before_init_would_be_noticed(world: Callable[..., World]) -> None:
    one = world(MarkerBeforeInit)
    other = LanePublisher.publish
    publisher = one.publisher()
    read = publisher._read_marker

    def read_then_pause(lane: int | None = None) -> TopicMarker | None:
        marker = read(lane)
        publisher._read_marker = read  # type: ignore[method-assign]
        other(_correct(one), one.request(1))
        return marker

    publisher._read_marker = read_then_pause  # type: ignore[method-assign]
    publisher.publish(one.request(1))

    assert len(one.log.committed) == 2 * ROWS, "the planted bug publishes twice"


def _correct(world: World) -> LanePublisher:
    world.kind = LanePublisher
    return world.publisher()


def test_a_record_lost_before_the_commit_would_be_noticed(world: Callable[..., World]) -> None:
    one = world(TrustsTheFlush)

    _suffer(one, 1, "DROPPED_RECORD")

    assert len(one.log.committed) == ROWS - 1, "the planted bug loses a row"


def test_an_epoch_that_is_there_opens_no_transaction(world: Callable[..., World]) -> None:
    one = world()
    first = one.attempt(1)

    again = one.attempt(1)

    assert first == Published(ROWS, replayed=False)
    assert again == Published(0, replayed=True)
    assert list(first.parts_ms) == ["init", "verify", "send", "commit"]
    assert list(again.parts_ms) == ["init", "verify"]


def test_a_commit_that_did_nothing_is_not_believed(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = world()
    monkeypatch.setattr(ModelProducer, "commit", lambda self: None)

    with pytest.raises(ProducerFailed, match="marker did not move"):
        one.publisher().publish(one.request(1))


def test_a_heartbeat_keeps_the_marker_as_it_is(world: Callable[..., World]) -> None:
    one = world()
    one.attempt(1)
    before = one.log.marker
    one.log.marker = (before[0], before[1]) if before else None

    one.publisher().heartbeat()

    assert one.log.marker == before
    assert one.log.newest == 2, "it was written again, by a producer of its own"
    assert one.log.committed == one.expected(1)


def test_a_heartbeat_without_a_marker_writes_none(world: Callable[..., World]) -> None:
    one = world()

    one.publisher().heartbeat()

    assert one.log.marker is None


def test_prepare_initialises_once_for_each_transaction(world: Callable[..., World]) -> None:
    one = world()
    publisher = one.publisher()

    publisher.prepare()
    publisher.prepare()
    publisher.publish(one.request(1))
    publisher.publish(one.request(2))

    assert one.log.newest == 2
    assert one.log.committed == one.expected(2)


def test_an_error_for_the_operator_leaves_nothing_behind(world: Callable[..., World]) -> None:
    one = world()
    request = one.request(1)
    (one.folder / "1.parquet").unlink()

    with pytest.raises(CkptError):
        one.publisher().publish(request)

    assert one.log.committed == []
    assert one.log.marker is None
