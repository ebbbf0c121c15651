"""The driver of a plain query with an outbox is killed between its steps: Kafka and Delta have every row once."""

from __future__ import annotations

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession

from integration_tests.broker import Broker
from integration_tests.outbox import outbox_driver
from integration_tests.outbox.format_outboxes import write_module
from integration_tests.outbox.outbox_deaths import live, live_until_done, records, start, wait_until_stopped
from integration_tests.outbox.outbox_query import BEGIN_S, Place, expected, write_files
from integration_tests.spark import plain_session
from integration_tests.survival.ledger import create_topic, read_committed
from integration_tests.survival.process import ROOT
from spark_ckpt.store.store import Store

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.kill]
FILES = range(6)


@pytest.fixture
def spark() -> Iterator[SparkSession]:
    yield from plain_session()


def test_the_outbox_pages_query_runs_as_written(
    tmp_path: Path, broker: Broker, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.json").write_text('{"customer": "ada", "total": 1500}\n{"customer": "bob", "total": 3}\n')
    text = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "outbox.md").read_text(), re.DOTALL)[1]
    topic = create_topic(broker.servers, "alerts")
    names = {
        "servers": broker.servers,
        "df": spark.readStream.schema("customer string, total long").json(str(tmp_path / "in")),
    }
    exec(compile(text.replace('(servers, "alerts")', f'(servers, "{topic}")'), "docs/outbox.md", "exec"), names)
    names["query"].processAllAvailable()
    names["query"].stop()
    names["out"].close()
    assert [json.loads(record.value())["customer"] for record in read_committed(broker.servers, topic)] == ["ada"]
    assert DeltaTable("gold").to_pyarrow_table(columns=["customer"]).num_rows == 2


def test_every_row_is_once_in_kafka_and_delta_although_the_driver_died_when_one_of_them_had_the_epoch(
    tmp_path: Path, broker: Broker, spark: SparkSession
) -> None:
    place, topic = Place(tmp_path), create_topic(broker.servers, "outbox")
    write_files(place.inbox, FILES)
    sinks = ("--servers", broker.servers, "--topic", topic)

    assert live(place, "ACKED:kill:4", *sinks) == -signal.SIGKILL
    assert place.rows("gold") + records(broker.servers, topic) != expected(FILES) + expected(FILES)
    outbox_driver.run_on(spark, outbox_driver.parsed([str(place.folder), *sinks]))

    assert place.rows("gold") == expected(FILES)
    assert records(broker.servers, topic) == expected(FILES)


DEATHS = ("EPOCH_COMMITTING:kill:2", "EPOCH_COMMITTED:kill:2", "ACKED:kill:4", "STAGED:kill:5")
"""Before and after the outbox's commit; after one of two sinks has the epoch; in a task. Many more: the campaign `outbox`."""


@pytest.mark.long  # in the gate: the test above, and tests/simulator/test_outbox_world.py
@pytest.mark.parametrize("overlap", [(), ("--overlap",)], ids=["", "overlap"])
def test_every_row_is_once_in_kafka_and_delta_after_kills_of_the_driver(
    tmp_path: Path, broker: Broker, overlap: tuple[str, ...]
) -> None:
    place, topic = Place(tmp_path), create_topic(broker.servers, "outbox")
    write_files(place.inbox, FILES)
    killed, failed = live_until_done(
        place, ",".join(DEATHS), "--servers", broker.servers, "--topic", topic, *overlap, most=8
    )
    assert killed == len(DEATHS) - 1
    assert failed >= 1
    assert place.rows("gold") == expected(FILES)
    assert records(broker.servers, topic) == expected(FILES)


@pytest.mark.long  # in the gate: tests/simulator/test_outbox_format_world.py
def test_every_row_is_once_in_kafka_and_delta_after_kills_of_the_formats_processes(
    tmp_path: Path, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commits of `format("outbox")` run in a separate process, whose death fails the driver."""
    place, topic = Place(tmp_path), create_topic(broker.servers, "outbox")
    write_files(place.inbox, FILES)
    module = write_module(tmp_path, tmp_path, broker.servers, topic)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT), os.environ["PYTHONPATH"]]))
    deaths = "EPOCH_COMMITTING:kill:2,STAGED:kill:5"  # test_outbox_pipelines.py has the other failpoints
    assert live_until_done(place, deaths, "--outbox", f"{module}:both", most=4) == (0, 2)
    assert place.rows("gold") == expected(FILES)
    assert records(broker.servers, topic) == expected(FILES)


@pytest.mark.long  # in the gate: tests/simulator/test_outbox_world.py
def test_a_frozen_driver_is_fenced_and_publishes_nothing(tmp_path: Path, broker: Broker) -> None:
    place, topic = Place(tmp_path), create_topic(broker.servers, "outbox")
    arguments = ("--servers", broker.servers, "--topic", topic)
    write_files(place.inbox, FILES)
    older = start(place, "EPOCH_COMMITTING:stop:3", *arguments)
    wait_until_stopped(older)
    assert live(place, "", *arguments) == 0
    older.send_signal(signal.SIGCONT)
    assert older.wait(300) != 0
    assert "[CKPT_FENCED]" in (place.folder / "driver.log").read_text()
    assert place.rows("gold") == expected(FILES)
    assert records(broker.servers, topic) == expected(FILES)


def orphans(place: Place) -> set[str]:
    """Staged files, in the table and in the store, without an epoch in the log."""
    store = Store.open(place.store, "orders", kind="outbox")
    named = {
        Path(file.path).name
        for manifest in store.log.manifests()
        for output in manifest.outputs.values()
        for file in output.files
    }
    return {path.name for folder in ("gold", "store") for path in place.staged(folder)} - named


@pytest.mark.long  # in the gate: files of dead tasks in test_outbox.py, tests/delta/test_delta_orphans.py
def test_the_next_start_deletes_the_files_of_a_killed_batch_in_the_table_and_in_the_store(
    tmp_path: Path, broker: Broker
) -> None:
    place, topic = Place(tmp_path), create_topic(broker.servers, "outbox")
    arguments = ("--servers", broker.servers, "--topic", topic)
    write_files(place.inbox, FILES)
    assert live(place, "EPOCH_COMMITTING:kill:3", *arguments) != 0
    assert {name.split("-")[1] for name in orphans(place)} == {"gold", "alerts"}
    for path in place.staged("gold"):
        os.utime(path, (BEGIN_S, BEGIN_S))  # a table's younger files may belong to a running driver
    assert live(place, "", *arguments) == 0
    assert not orphans(place)
    assert place.rows("gold") == records(broker.servers, topic) == expected(FILES)
