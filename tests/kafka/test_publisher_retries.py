"""A publisher retries failed attempts within bounds, and keeps the shards of an epoch together."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
from spark_ckpt_kafka import publisher as publisher_module
from spark_ckpt_kafka.options import Connection, Tuning
from spark_ckpt_kafka.producer import ProducerFailed
from spark_ckpt_kafka.publisher import MAX_FENCINGS, KafkaPublisher, PublishPatience, requests_of, slowest_ms
from spark_ckpt_kafka.publishing import ShardRequest, ShardResult, ShardSettings

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import EpochOutput, StagedEarly, StagedFile
from spark_ckpt.errors import CkptError, EpochDamaged, Fenced, PublishConflict, PublishFailed, RowsRefused

SETTINGS = ShardSettings(Connection("b:9092", {"sasl.password": "secret"}), Tuning(), "s", "out", 0, "t", "t", False)


class FakeProcess:
    """A publisher process that answers from a script."""

    script: ClassVar[list[ShardResult | Exception]] = []
    started: ClassVar[list[int]] = []
    """Sizes of the batches of processes, in bytes."""

    def __init__(self, settings: ShardSettings, stall_s: float) -> None:
        self.pid, self.settings = None, settings
        self.started.append(settings.tuning.batch_size)

    def kill(self) -> None:
        pass

    def start(self) -> None:
        pass

    def ask(self, request: ShardRequest, verified: Callable[[], None]) -> ShardResult:
        verified()
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def send_early(self, request: ShardRequest) -> int:
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return request.rows

    def close(self) -> None:
        pass


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> Callable[..., KafkaPublisher]:
    clock = itertools.count(0, 0.25)
    time = SimpleNamespace(monotonic=lambda: next(clock))
    monkeypatch.setattr(publisher_module, "time", time)

    def make(*script: ShardResult | Exception) -> KafkaPublisher:
        FakeProcess.script = list(script)
        return KafkaPublisher(SETTINGS, 1, 1, PublishPatience(total_s=3.0, first_pause_s=0.0), FakeProcess)  # type: ignore[arg-type]

    return make


def _output(*files: StagedFile) -> EpochOutput:
    return EpochOutput(Epoch(3), Incarnation(1), Epoch(2), "/root", {}, files, begun_after=Epoch(1))


DONE = ShardResult(5, replayed=False)


def test_the_receipt_has_the_parts_of_the_slowest_lane(publisher: Callable[..., KafkaPublisher]) -> None:
    result = ShardResult(5, replayed=False, parts_ms={"init": 3, "send": 40})
    assert publisher(result).publish(_output()).detail["parts_ms"] == {"init": 3, "send": 40}
    slow = ShardResult(5, replayed=False, parts_ms={"send": 50, "commit": 2})
    assert slowest_ms([result, slow]) == {"init": 3, "send": 50, "commit": 2}


def test_a_failed_attempt_is_repeated(publisher: Callable[..., KafkaPublisher]) -> None:
    receipt = publisher(ProducerFailed("died"), ProducerFailed("died"), DONE).publish(_output())

    assert not receipt.replayed


TOO_LARGE = ProducerFailed("MSG_SIZE_TOO_LARGE", refusal="size")


def test_a_batch_that_is_too_large_for_its_topic_is_halved_until_it_fits(
    publisher: Callable[..., KafkaPublisher],
) -> None:
    made = publisher(TOO_LARGE, TOO_LARGE, DONE)
    FakeProcess.started.clear()

    made.publish(_output())

    whole = SETTINGS.tuning.batch_size
    assert FakeProcess.started == [whole // 2, whole // 4]


def test_batches_have_a_smallest_size_with_one_small_record(publisher: Callable[..., KafkaPublisher]) -> None:
    """A topic whose limit was lowered may take each record, and not two of them."""
    FakeProcess.started.clear()
    with pytest.raises(PublishFailed, match="MSG_SIZE_TOO_LARGE"):
        publisher(*[TOO_LARGE] * 100).publish(_output())
    assert min(FakeProcess.started) == 256


def test_a_refused_record_is_not_retried(publisher: Callable[..., KafkaPublisher]) -> None:
    with pytest.raises(RowsRefused):
        publisher(RowsRefused("no key"), DONE).publish(_output())

    assert FakeProcess.script == [DONE]


def test_a_stopped_publisher_makes_no_attempt(publisher: Callable[..., KafkaPublisher]) -> None:
    made = publisher(DONE)
    made.give_up()

    with pytest.raises(PublishFailed, match="its run has ended"):
        made.publish(_output())

    assert FakeProcess.script == [DONE]


@pytest.mark.parametrize(
    ("within_s", "total_s", "stall_s"), [(None, 120.0, None), (600.0, 120.0, 300.0), (30.0, 15.0, 15.0)]
)
def test_patience_ends_before_the_job_stops_waiting(
    within_s: float | None, total_s: float, stall_s: float | None
) -> None:
    bounded = PublishPatience().within(within_s)
    assert (bounded.total_s, bounded.stall_s) == (total_s, stall_s)


def test_patience_ends_with_an_error_that_names_the_last_failure(publisher: Callable[..., KafkaPublisher]) -> None:
    endless = [ProducerFailed(f"attempt {number}", hint="start it") for number in range(100)]

    with pytest.raises(PublishFailed, match="attempt") as failed:
        publisher(*endless).publish(_output())

    assert failed.value.hint == "start it"
    assert failed.value.retriable
    assert len(FakeProcess.script) > 50, "it gave up long before the script's end"


def test_being_fenced_repeatedly_ends_the_incarnation(publisher: Callable[..., KafkaPublisher]) -> None:
    fenced = [ProducerFailed("fenced", fenced=True)] * MAX_FENCINGS

    with pytest.raises(Fenced):
        publisher(*fenced, DONE).publish(_output())


def test_being_fenced_occasionally_does_not_end_the_incarnation(publisher: Callable[..., KafkaPublisher]) -> None:
    fenced = [ProducerFailed("fenced", fenced=True)] * (MAX_FENCINGS - 1)

    publisher(*fenced, ProducerFailed("other"), ProducerFailed("fenced", fenced=True), DONE).publish(_output())


@pytest.mark.parametrize("error", [PublishConflict("marker"), EpochDamaged("file"), Fenced("newer")])
def test_an_error_for_the_operator_is_not_retried(publisher: Callable[..., KafkaPublisher], error: CkptError) -> None:
    with pytest.raises(type(error)):
        publisher(error, DONE).publish(_output())

    assert FakeProcess.script == [DONE]


def test_a_failed_early_send_is_left_to_the_publish(publisher: Callable[..., KafkaPublisher]) -> None:
    """It is one attempt with a retriable error: patience is for committed epochs."""
    staged = StagedEarly(Epoch(3), Incarnation(1), "/root", {}, [_file(0, 0), _file(0, 1)])
    one = publisher(DONE, ProducerFailed("died", hint="wait"))

    assert one.send_early(replace(staged, files=())) == 0
    assert one.send_early(staged) == 20
    with pytest.raises(PublishFailed, match="died") as failed:
        one.send_early(staged)
    assert failed.value.retriable


def _file(lane: int, part: int) -> StagedFile:
    return StagedFile(f"{lane}-{part}.parquet", 1, 10, lane, batch=0, task=0, part=part)


def test_an_epoch_staged_with_more_lanes_than_now_is_published_with_them_all() -> None:
    requests = requests_of(_output(_file(0, 0), _file(2, 0), _file(0, 1)), lanes=1, incarnation=4)

    assert [[part.path for part in request.parts] for request in requests] == [
        ["0-0.parquet", "0-1.parquet"],
        [],
        ["2-0.parquet"],
    ]
    assert {(request.lanes, request.incarnation, request.dropped) for request in requests} == {(3, 4, ())}
    assert {request.begun_after for request in requests} == {1}


class VerifyingProcess(FakeProcess):
    """Verifies, then publishes; or ends with the lane's error before or after it verified."""

    published: ClassVar[list[int]] = []
    errors: ClassVar[dict[int, tuple[str, Exception]]] = {}
    has_epoch: ClassVar[set[int]] = set()

    def __init__(self, settings: ShardSettings, stall_s: float) -> None:
        super().__init__(settings, stall_s)
        self.lane = settings.lane

    def ask(self, request: ShardRequest, verified: Callable[[], None]) -> ShardResult:
        if self.lane in self.has_epoch:
            return ShardResult(0, replayed=True)
        when, error = self.errors.get(self.lane, ("never", Exception()))
        if when == "before":
            raise error
        verified()
        if when == "after":
            raise error
        self.published.append(self.lane)
        return DONE


@pytest.fixture
def three_lanes() -> KafkaPublisher:
    """A publisher with three shards."""
    VerifyingProcess.published, VerifyingProcess.errors, VerifyingProcess.has_epoch = [], {}, set()
    return KafkaPublisher(SETTINGS, 3, 1, PublishPatience(total_s=0.0), VerifyingProcess)  # type: ignore[arg-type]


def test_no_lane_publishes_an_epoch_of_which_another_lanes_rows_are_damaged(three_lanes: KafkaPublisher) -> None:
    VerifyingProcess.errors = {1: ("before", EpochDamaged("file 1-0.parquet", epoch=3))}

    with pytest.raises(EpochDamaged, match=r"1-0\.parquet"):
        three_lanes.publish(_output())

    assert VerifyingProcess.published == []


def test_damage_names_the_lanes_that_have_the_epoch_already(three_lanes: KafkaPublisher) -> None:
    VerifyingProcess.errors = {1: ("before", EpochDamaged("file 1-0.parquet"))}
    VerifyingProcess.has_epoch = {0, 2}

    with pytest.raises(EpochDamaged) as caught:
        three_lanes.publish(_output())

    assert caught.value.context["published_lanes"] == "0, 2"


def test_the_error_of_a_refused_record_names_the_lanes_that_have_published(three_lanes: KafkaPublisher) -> None:
    VerifyingProcess.errors = {1: ("after", RowsRefused("no key")), 2: ("after", ProducerFailed("the broker is away"))}

    with pytest.raises(RowsRefused) as caught:
        three_lanes.publish(_output())

    assert caught.value.context["published_lanes"] == "0"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_lane_that_must_wait_does_not_delay_the_others(three_lanes: KafkaPublisher, when: str) -> None:
    VerifyingProcess.errors = {1: (when, ProducerFailed("the broker is away"))}

    with pytest.raises(PublishFailed):
        three_lanes.publish(_output())

    assert sorted(VerifyingProcess.published) == [0, 2]
