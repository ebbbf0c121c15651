"""A topic for each test, staged rows, failures of the processes that publish."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kafka_kit import Cluster, Staged, close_all

from integration_tests.broker import Broker


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All tests here need the broker. kafka-python leaves refused sockets to the garbage collector."""
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.kafka)
            item.add_marker(pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"))


@pytest.fixture
def cluster(broker: Broker) -> Iterator[Cluster]:
    """A new topic and store id. Afterwards no transaction may be open in the topic."""
    one = Cluster(broker)
    yield one
    close_all()
    one.assert_settled()
    one.close()
    gc.collect()  # so that sockets which kafka-python leaves open are found here, where they are expected


@pytest.fixture
def staged(tmp_path: Path) -> Callable[..., Staged]:
    """Return a function that stages Parquet files for one epoch."""
    numbers = iter(range(1000))

    def make(*arguments: object, **named: object) -> Staged:
        return Staged.write(tmp_path / f"stage{next(numbers)}", *arguments, **named)  # type: ignore[arg-type]

    return make


@pytest.fixture
def failpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], None]:
    """Arm the publisher processes that start from now on, each failpoint once."""

    def arm(spec: str) -> None:
        once = tmp_path / "once"
        once.mkdir(exist_ok=True)
        monkeypatch.setenv("SPARK_CKPT_FAILPOINT", spec)
        monkeypatch.setenv("SPARK_CKPT_FAILPOINT_ONCE", str(once))

    return arm
