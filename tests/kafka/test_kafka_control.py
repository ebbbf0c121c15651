"""The control plane retries errors that pass, and no others."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from spark_ckpt_kafka import KafkaSource, control
from spark_ckpt_kafka.control import ControlError, KafkaControl
from spark_ckpt_kafka.library import kafka_errors
from spark_ckpt_kafka.options import Connection

from spark_ckpt.errors import SourceInvalid


class Admin:
    """Raise each of `errors` in turn, then name one topic of a user's and one of the brokers' own."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors
        self.closed = 0
        self._manager = self
        self._get_cluster_metadata = None

    def run(self, request: object, topics: object) -> dict[str, object]:
        if self.errors:
            raise self.errors.pop(0)
        names = {"in": False, "__consumer_offsets": True}
        return {"cluster_id": "c", "topics": [{"name": name, "is_internal": own} for name, own in names.items()]}

    def close(self) -> None:
        self.closed += 1


def cluster(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> tuple[KafkaControl, Admin]:
    admin = Admin(list(errors))

    def opened(settings: Mapping[str, object]) -> Admin:
        return admin

    monkeypatch.setattr(control, "open_admin", opened)
    return KafkaControl(Connection("broker:9092")), admin


@pytest.mark.parametrize("call", [KafkaSource.start, KafkaSource.end, KafkaSource.identity])
def test_a_source_with_unreachable_brokers_is_read_again_by_the_next_incarnation(
    monkeypatch: pytest.MonkeyPatch, call: Callable[[KafkaSource, Any], object]
) -> None:
    def away(settings: Mapping[str, object]) -> Admin:
        raise kafka_errors.KafkaTimeoutError("Unable to bootstrap")

    monkeypatch.setattr(control, "open_admin", away)
    with pytest.raises(SourceInvalid) as caught:
        call(KafkaSource("broker:9092", "in"), None)
    assert caught.value.retriable

    def refused(settings: Mapping[str, object]) -> Admin:
        raise kafka_errors.TopicAuthorizationFailedError

    monkeypatch.setattr(control, "open_admin", refused)
    with pytest.raises(SourceInvalid) as caught:
        call(KafkaSource("broker:9092", "in"), None)
    assert not caught.value.retriable


@pytest.mark.parametrize(
    "error",
    [
        kafka_errors.NodeNotReadyError("controller"),
        kafka_errors.KafkaConnectionError("111 ECONNREFUSED"),
        kafka_errors.NotLeaderForPartitionError("moved"),
        kafka_errors.RequestTimedOutError("frozen"),
    ],
    ids=["no node named yet", "dead", "moved", "frozen"],
)
def test_errors_that_a_cluster_settles_are_retried_with_a_new_client(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(control, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=lambda seconds: None))
    asked, admin = cluster(monkeypatch, *[error] * 3)
    assert asked.topics() == ["in"]
    assert admin.closed == 3


def test_a_broker_that_never_names_a_node_is_reported_after_the_settling_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, admin = cluster(monkeypatch, *[kafka_errors.NodeNotReadyError("controller")] * 10_000)
    clock = SimpleNamespace(monotonic=iter(range(0, 1000, 2)).__next__, sleep=lambda seconds: None)
    monkeypatch.setattr(control, "time", clock)
    with pytest.raises(ControlError, match="NodeNotReadyError") as caught:
        asked.topics()
    assert caught.value.retriable
    assert admin.closed < 10


def test_a_refusal_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, admin = cluster(monkeypatch, kafka_errors.TopicAuthorizationFailedError("in"))
    with pytest.raises(ControlError, match="access denied"):
        asked.topics()
    assert admin.closed == 1


def test_settings_that_the_cluster_hides_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, _ = cluster(monkeypatch, kafka_errors.ClusterAuthorizationFailedError("no right to describe"))
    assert asked.settings() == {}


@pytest.mark.parametrize("error", [OSError("reset"), kafka_errors.KafkaTimeoutError("slow")])
def test_an_outage_does_not_pass_for_settings_without_limits(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A sink would commit epochs with records that the topic refuses."""
    asked, _ = cluster(monkeypatch, error)
    with pytest.raises(ControlError, match="no usable answer"):
        asked.settings()


class Naming:
    """Answer a metadata request with each of `answers` in turn."""

    def __init__(self, *answers: dict[str, object]) -> None:
        self.answers = list(answers)
        self._manager = self
        self._get_cluster_metadata = None

    def run(self, request: object, topics: list[str]) -> dict[str, object]:
        return self.answers.pop(0)

    def close(self) -> None:
        pass


def answer(cluster_id: str | None, topic_id: object = None, code: int = 0) -> dict[str, object]:
    return {"cluster_id": cluster_id, "topics": [{"name": "in", "error_code": code, "topic_id": topic_id}]}


def identity(monkeypatch: pytest.MonkeyPatch, *answers: dict[str, object]) -> dict[str, str]:
    admin = Naming(*answers)
    monkeypatch.setattr(control, "open_admin", lambda settings: admin)
    return KafkaControl(Connection("broker:9092")).identity(["in"])


def test_a_cluster_without_its_id_yet_is_asked_again_and_not_taken_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topic_id = uuid.UUID(int=7)
    found = identity(monkeypatch, answer(None), answer("c", topic_id))
    assert found == {"cluster": "c", "topic in": str(topic_id)}


@pytest.mark.parametrize("none", [None, uuid.UUID(int=0)])
def test_a_topic_of_a_broker_without_ids_is_known_by_its_name(monkeypatch: pytest.MonkeyPatch, none: object) -> None:
    assert identity(monkeypatch, answer("c", none)) == {"cluster": "c", "topic in": ""}


def test_a_topic_that_does_not_exist_has_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ControlError, match="'in' does not exist") as caught:
        identity(monkeypatch, answer("c", code=3))
    assert "kafka-topics.sh --bootstrap-server broker:9092 --create --topic in " in caught.value.hint


def test_a_topic_is_internal_if_the_brokers_say_so_and_not_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = [{"name": "__ev", "is_internal": False}, {"name": "__consumer_offsets", "is_internal": True}]
    monkeypatch.setattr(control, "open_admin", lambda settings: Naming({"cluster_id": "c", "topics": topics}))
    assert KafkaControl(Connection("broker:9092")).topics() == ["__ev"]


def test_topics_of_a_pattern_and_what_they_are_come_from_one_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another broker may not know a new topic yet: asked about it by name, it would deny the topic."""
    here = {"error_code": 0, "partitions": [{"partition_index": 0}], "is_internal": False}
    topics = [{"name": name, **here} for name in ("in-1", "in-2", "other")]
    unknown = [{"name": "in-2", "error_code": 3}]
    answers = [{"cluster_id": "c", "topics": each} for each in (topics, unknown)]

    monkeypatch.setattr(control, "open_admin", lambda settings: Naming(*answers))
    source = KafkaSource("broker:9092", pattern="in-.*")
    assert source.identity(None) == {"kind": "kafka", "cluster": "c", "topic in-1": "", "topic in-2": ""}
    assert KafkaControl(Connection("broker:9092")).partitions(re.compile("in-.*")) == {"in-1": [0], "in-2": [0]}

    monkeypatch.setattr(control, "open_admin", lambda settings: Naming(*answers))
    with pytest.raises(SourceInvalid, match=r"no topic matches 'out-\.\*'"):
        KafkaSource("broker:9092", pattern="out-.*").identity(None)


def test_a_partition_that_a_broker_does_not_know_yet_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = [kafka_errors.UnknownTopicOrPartitionError("in-3")]

    class Lagging(Admin):
        def list_partition_offsets(self, specs: Mapping[Any, Any], *_: object) -> dict[Any, Any]:
            if errors:
                raise errors.pop()
            return dict.fromkeys(specs, SimpleNamespace(offset=7))

    monkeypatch.setattr(control, "open_admin", lambda settings: Lagging([]))
    assert KafkaControl(Connection("broker:9092")).ends({"in": [3]}) == {("in", 3): 7}


def test_a_kept_connection_that_the_broker_has_closed_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    admin = Admin([])
    monkeypatch.setattr(control, "open_admin", lambda settings: admin)
    kept = control.KeptControl(Connection("broker:9092"))
    for errors in ([], [kafka_errors.KafkaConnectionError("idle for ten minutes")]):
        admin.errors = list(errors)
        assert kept.ask(KafkaControl.topics) == ["in"]
    assert admin.closed == 1


def test_a_kept_connection_stays_open_between_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(control, "open_admin", lambda settings: opened.append(settings) or Admin([]))
    kept = control.KeptControl(Connection("broker:9092"))
    assert [kept.ask(KafkaControl.topics) for _ in range(3)] == [["in"]] * 3
    assert len(opened) == 1
