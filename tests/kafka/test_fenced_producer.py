"""A producer of librdkafka that was fenced says so in every call, aborting included: whoever publishes hears that it was fenced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException
from publishing_kit import ROWS, World
from spark_ckpt_kafka import confluent_producer, publishing
from spark_ckpt_kafka.confluent_producer import ConfluentProducer
from spark_ckpt_kafka.options import Connection, Tuning
from spark_ckpt_kafka.producer import ProducerFailed, refusal_of


class FencedClient:
    """librdkafka's client; fenced in the call `at`, and in every one that follows."""

    at = ""
    made: ClassVar[list[FencedClient]] = []

    def __init__(self, settings: dict[str, Any]) -> None:
        self.fenced = False
        self.made.append(self)

    def __getattr__(self, name: str) -> Callable[..., None]:
        def call(*_: object, **__: object) -> None:
            self.fenced = self.fenced or name == self.at
            if self.fenced:
                raise KafkaException(KafkaError(KafkaError._FENCED))

        call.__name__ = name
        return call

    def __len__(self) -> int:
        return 0 if self.at != "flush" or self.fenced else 1


@pytest.mark.parametrize(
    "at", ["begin_transaction", "produce", "poll", "flush", "send_offsets_to_transaction", "commit_transaction"]
)
@pytest.mark.parametrize("ahead", [False, True], ids=["", "ahead"])
def test_a_lane_whose_producer_is_fenced_says_so(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch, at: str, ahead: bool
) -> None:
    monkeypatch.setattr(confluent_producer, "Producer", FencedClient)
    monkeypatch.setattr(confluent_producer, "_group_metadata", lambda *_: None)
    monkeypatch.setattr(FencedClient, "at", at)
    one = world()
    monkeypatch.setattr(
        publishing,
        "open_producer",
        lambda *_: ConfluentProducer(Connection("b:1"), Tuning(), "store.out.0", lambda: None),
    )
    publisher = one.publisher()

    def both() -> None:
        if ahead:
            publisher.send_ahead(one.in_parts(1, ROWS // 2))
        publisher.publish(one.in_parts(1, ROWS))

    with pytest.raises(ProducerFailed) as caught:
        both()

    assert caught.value.fenced


def test_what_a_fenced_producer_has_open_is_dropped_without_a_word(
    world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer producer's init has aborted it."""
    monkeypatch.setattr(confluent_producer, "Producer", FencedClient)
    one = world()
    clients: list[ConfluentProducer] = []

    def opened(*_: object) -> ConfluentProducer:
        clients.append(ConfluentProducer(Connection("b:1"), Tuning(), "store.out.0", lambda: None))
        return clients[-1]

    monkeypatch.setattr(publishing, "open_producer", opened)
    publisher = one.publisher()
    publisher.send_ahead(one.in_parts(1, 1))
    FencedClient.made[-1].fenced = True

    publisher.drop_ahead()

    assert publisher.send_ahead(one.in_parts(1, 1)) == 1
    assert len(clients) == 2


class BrokenClient(FencedClient):
    """A record is refused, and the transaction's next call tells the state that this has led to."""

    on_delivery: Callable[..., None]

    def __init__(self, settings: dict[str, Any]) -> None:
        super().__init__(settings)
        self.on_delivery = settings["on_delivery"]

    def send_offsets_to_transaction(self, *_: object) -> None:
        raise KafkaException(KafkaError(KafkaError._STATE))

    def poll(self, *_: object) -> None:
        self.on_delivery(KafkaError(KafkaError._INVALID_DIFFERENT_RECORD), Refused(b"other"))
        self.on_delivery(KafkaError(KafkaError.INVALID_RECORD), Refused(b"bad"))


class Refused:
    """A record in a delivery report."""

    def __init__(self, key: bytes) -> None:
        self.key, self.topic, self.partition = lambda: key, lambda: "t", lambda: 0


def test_a_refused_record_is_what_a_failed_transaction_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confluent_producer, "Producer", BrokenClient)
    monkeypatch.setattr(confluent_producer, "_group_metadata", lambda *_: None)
    producer = ConfluentProducer(Connection("b:1"), Tuning(), "store.out.0", lambda: None)

    with pytest.raises(ProducerFailed, match="INVALID_RECORD") as failed:
        producer.add_marker("store.out.0", "t", 1, "")

    assert (failed.value.refusal, failed.value.key) == ("record", "t/0, key b'bad'")
    assert not failed.value.fenced


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (
            "deliver: KafkaError: it was part of a batch which had one more more invalid records",
            "record",
        ),
        ("deliver: MessageSizeTooLargeError: [Error 10]", "size"),
        ("send: ValueError: Unrecognized partition 7 for topic t", "partition"),
        ("flush: KafkaTimeoutError", ""),
    ],
)
def test_a_client_says_what_was_refused(text: str, refusal: str) -> None:
    assert refusal_of(text) == refusal
