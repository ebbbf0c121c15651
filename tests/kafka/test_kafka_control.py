"""The control plane waits for what passes by itself, and for nothing else."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from spark_ckpt_kafka import control
from spark_ckpt_kafka.control import Control, ControlError
from spark_ckpt_kafka.library import kafka_errors
from spark_ckpt_kafka.options import Connection


class Admin:
    """Fails with each of `errors` in turn, then names one topic."""

    def __init__(self, errors: list[Exception]) -> None:
        self.errors = errors
        self.closed = 0

    def list_topics(self) -> list[str]:
        if self.errors:
            raise self.errors.pop(0)
        return ["in"]

    def close(self) -> None:
        self.closed += 1


def cluster(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> tuple[Control, Admin]:
    admin = Admin(list(errors))

    def opened(settings: Mapping[str, object]) -> Admin:
        return admin

    monkeypatch.setattr(control, "open_admin", opened)
    return Control(Connection("broker:9092")), admin


def test_a_broker_that_names_no_node_yet_is_asked_again_through_a_new_client(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, admin = cluster(monkeypatch, *[kafka_errors.NodeNotReadyError("controller")] * 3)
    assert asked.topics() == ["in"]
    assert admin.closed == 3


def test_a_broker_that_never_names_a_node_is_told_after_the_settling_time(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, admin = cluster(monkeypatch, *[kafka_errors.NodeNotReadyError("controller")] * 10_000)
    monkeypatch.setattr(control.time, "monotonic", iter(range(0, 1000, 2)).__next__)
    with pytest.raises(ControlError, match="NodeNotReadyError") as caught:
        asked.topics()
    assert caught.value.retriable
    assert admin.closed < 10


def test_a_refusal_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, admin = cluster(monkeypatch, kafka_errors.TopicAuthorizationFailedError("in"))
    with pytest.raises(ControlError, match="access denied"):
        asked.topics()
    assert admin.closed == 1
