"""Fixtures for the tests of publishing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from publishing_kit import ModelProducer, World
from spark_ckpt_kafka import publishing
from spark_ckpt_kafka.publishing import ShardPublisher

from spark_ckpt import failpoints


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., World]]:
    current: list[World] = []

    def make(kind: type[ShardPublisher] = ShardPublisher) -> World:
        current.append(World(tmp_path, kind))
        return current[-1]

    monkeypatch.setattr(publishing, "open_producer", lambda *_: ModelProducer(current[-1].log))
    yield make
    failpoints.arm("")
