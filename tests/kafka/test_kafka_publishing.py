"""The publish protocol against a model of a broker's transactions: crashes, lost answers, zombies; rows exactly once.

The model fences, aborts and commits as a broker does.  Attempts die at every failpoint, commits lose their
answer, and a second publisher runs in the middle of the first one.  Planted bugs show that the check would
notice.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from publishing_kit import ROWS, ModelControl, ModelProducer, World
from spark_ckpt_kafka import publishing
from spark_ckpt_kafka.control import ControlError
from spark_ckpt_kafka.marker import TopicMarker
from spark_ckpt_kafka.producer import INIT_TIMEOUT_S, ProducerFailed, TransactionalProducer
from spark_ckpt_kafka.publisher import STALL_MARGIN_S
from spark_ckpt_kafka.publishing import ShardPublisher, ShardRequest, ShardResult

from spark_ckpt.errors import CkptError, PublishConflict

POINTS = ("PUBLISH_INIT", "MARKER_READ", "MID_SEND", "OFFSETS_SENT", "FLUSHED", "PRE_COMMIT", "PUBLISH_COMMITTED")

Fault = st.sampled_from([*POINTS, "LOST_ANSWER", "DROPPED_RECORD", "OTHER_PUBLISHER"])


def _suffer(world: World, epoch: int, fault: str) -> None:
    """Make one attempt at the epoch with one fault."""
    if fault == "LOST_ANSWER":
        world.log.lose_next_answer = True
    elif fault == "DROPPED_RECORD":
        world.log.drop_next_record = True
    elif fault == "OTHER_PUBLISHER":
        world.log.before_commit = lambda: world.attempt(epoch)
    world.attempt(epoch, fault if fault in POINTS else None)
    world.log.lose_next_answer = world.log.drop_next_record = False
    world.log.before_commit = None


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(faults=st.lists(st.lists(Fault, max_size=4), min_size=1, max_size=4))
def test_rows_are_there_exactly_once_after_any_faults(world: Callable[..., World], faults: list[list[str]]) -> None:
    one = world()

    for epoch, suffered in enumerate(faults, start=1):
        for fault in suffered:
            _suffer(one, epoch, fault)
        assert one.attempt(epoch) is not None

    assert one.log.committed == one.expected(len(faults))


class MarkerBeforeInit(ShardPublisher):
    """A planted bug: decides by a marker that older producers can still move."""

    def publish(self, request: ShardRequest, verified: Callable[[], None] = lambda: None) -> ShardResult:
        stale = self._read_marker()
        self._read_marker = lambda lane=None: stale  # type: ignore[method-assign]
        self._verify = lambda request: None  # type: ignore[method-assign]
        return super().publish(request, verified)


class TrustsTheFlush(ShardPublisher):
    """A planted bug: does not compare acknowledged records with rows."""

    def _deliver(self, producer: TransactionalProducer, request: ShardRequest) -> None:
        producer.deliver()


def test_a_planted_read_of_the_marker_before_init_is_found(world: Callable[..., World]) -> None:
    one = world()

    class PausesAfterTheFirstRead(MarkerBeforeInit):
        def _read_marker(self, lane: int | None = None) -> TopicMarker | None:
            marker = super()._read_marker(lane)
            world_of_the_other.publisher().publish(one.request(1))
            return marker

    world_of_the_other, one.kind = copy.copy(one), PausesAfterTheFirstRead
    one.publisher().publish(one.request(1))

    assert len(one.log.committed) == 2 * ROWS, "the planted bug publishes twice"


def test_a_planted_loss_of_a_record_before_the_commit_is_found(world: Callable[..., World]) -> None:
    one = world(TrustsTheFlush)

    _suffer(one, 1, "DROPPED_RECORD")

    assert len(one.log.committed) == ROWS - 1, "the planted bug loses a row"


def test_a_published_epoch_opens_no_transaction(world: Callable[..., World]) -> None:
    one = world()
    first = one.attempt(1)

    again = one.attempt(1)

    assert first == ShardResult(ROWS, replayed=False)
    assert again == ShardResult(0, replayed=True)
    assert list(first.parts_ms) == ["init", "verify", "send", "commit"]
    assert list(again.parts_ms) == ["init", "verify"]


def test_a_topic_that_is_gone_is_named_and_not_its_marker(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(self: ModelControl, topics: object) -> dict[str, list[int]]:
        raise ControlError("topic 't' does not exist", hint="create it", retriable=False)

    one = world()
    with pytest.raises(PublishConflict, match="no marker"):
        one.publisher().publish(one.request(7))
    monkeypatch.setattr(ModelControl, "partitions", gone)
    with pytest.raises(ControlError, match="does not exist"):
        one.publisher().publish(one.request(7))


def test_a_commit_without_effect_is_noticed(world: Callable[..., World], monkeypatch: pytest.MonkeyPatch) -> None:
    one = world()
    monkeypatch.setattr(ModelProducer, "commit", lambda self: None)

    with pytest.raises(ProducerFailed, match="marker did not move"):
        one.publisher().publish(one.request(1))


def test_a_heartbeat_keeps_the_marker_as_it_is(world: Callable[..., World]) -> None:
    one = world()
    one.attempt(1)
    before = one.log.marker
    one.log.marker = (before[0], before[1]) if before else None

    one.publisher().idle()

    assert one.log.marker == before
    assert one.log.newest == 2, "it was written again, by a producer of its own"
    assert one.log.committed == one.expected(1)


def test_a_heartbeat_without_a_marker_writes_none(world: Callable[..., World]) -> None:
    one = world()

    one.publisher().idle()

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


@pytest.mark.parametrize("fails_at", ["connect", "init"])
def test_a_process_that_waits_for_its_brokers_reports_progress_within_its_drivers_limit(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, fails_at: str
) -> None:
    """A driver that kills it first would report the silence instead of the reason."""
    now_s = 0.0
    signs_s = [now_s]

    def waited(at: str) -> None:
        nonlocal now_s
        now_s += INIT_TIMEOUT_S
        if at == fails_at:
            raise ProducerFailed(f"{at}: the brokers are away")

    class Waiting(ModelProducer):
        def init(self) -> None:
            waited("init")

    def connected(*_: object) -> ModelProducer:
        waited("connect")
        return Waiting(one.log)

    one = world()
    monkeypatch.setattr(publishing, "open_producer", connected)
    publisher = one.publisher(progress=lambda: signs_s.append(now_s))

    publisher.prepare()
    with pytest.raises(ProducerFailed, match="the brokers are away"):
        publisher.publish(one.request(1))

    silent_s = [later - earlier for earlier, later in itertools.pairwise([*signs_s, now_s])]
    assert max(silent_s) < STALL_MARGIN_S


def test_an_error_for_the_operator_leaves_no_transaction(world: Callable[..., World]) -> None:
    one = world()
    request = one.request(1)
    (one.folder / "1.parquet").unlink()

    with pytest.raises(CkptError):
        one.publisher().publish(request)

    assert one.log.committed == []
    assert one.log.marker is None
