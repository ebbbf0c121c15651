"""A plain query from Kafka to Delta is killed, adopted, and continues as a job, with an unchanged table and state."""

from __future__ import annotations

import contextlib
import io
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from spark_ckpt_delta import DeltaSink
from spark_ckpt_kafka import KafkaSource
from spark_ckpt_kafka.control import KafkaControl
from spark_ckpt_kafka.options import Connection

import spark_ckpt as ckpt
from integration_tests.adopt.totals import OUTPUT, RECORD, STATE, USERS, Record, add_up, records, rows_of, state_of
from integration_tests.broker import Broker
from integration_tests.survival.process import Driver
from spark_ckpt.cli.app import exit_code
from spark_ckpt.store.store import Store
from tests.rewind.rewind_kit import content_of

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
TOPIC, JOB, BEFORE, AFTER = "clicks", "totals", 2000, 400


def send(broker: Broker, rows: Sequence[Record]) -> None:
    """Send records; those of one user are in one partition, in their order."""
    producer = Producer({"bootstrap.servers": broker.servers, "enable.idempotence": True})
    for user, seq, amount in rows:
        producer.produce(TOPIC, json.dumps({"user": user, "seq": seq, "amount": amount}), user)
    assert producer.flush(60) == 0


def killed_in_the_middle(broker: Broker, folder: Path) -> Path:
    """The checkpoint of a plain query that was killed in a batch after its second one, with most of the input before it."""
    checkpoint = folder / "checkpoint"
    where = [
        "--servers",
        broker.servers,
        "--topic",
        TOPIC,
        "--table",
        str(folder / "table"),
        "--checkpoint",
        str(checkpoint),
    ]
    with Driver(where, folder / "plain", program="integration_tests.adopt.plain_query") as driver:
        begun = checkpoint / "offsets" / "3"
        driver.wait_for(begun.exists, "a fourth batch")
        driver.kill()
    return checkpoint


def run_job(spark: SparkSession, broker: Broker, folder: Path) -> None:
    """Run the same query as a job; the function is the plain query's."""
    job = ckpt.Job(spark, JOB, store=str(folder / "store"), interval="1 second")
    clicks = job.source("clicks", KafkaSource(broker.servers, TOPIC))
    rows = clicks.select(F.from_json(F.col("value").cast("string"), RECORD).alias("r")).select("r.*")
    totals = rows.groupBy("user").applyInPandasWithState(
        add_up, OUTPUT, STATE, "append", GroupStateTimeout.NoTimeout, name="totals"
    )
    totals.to(DeltaSink(str(folder / "table")))
    assert job.start(availableNow=True).awaitTermination(180)


def adopt(folder: Path, checkpoint: Path) -> dict[str, object]:
    arguments = ["adopt", str(checkpoint), str(folder / "store"), "--job", JOB, "--json", "--watch-s", "0"]
    arguments += ["--source", "clicks=0", "--operator", "totals=0", "--output", str(folder / "table")]
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert exit_code(arguments) == 0
    return json.loads(out.getvalue())


def shown(folder: Path) -> list[tuple[str, int, int, int]]:
    table = DeltaTable(str(folder / "table")).to_pyarrow_table().select(["user", "seq", "n", "total"])
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.long  # in the gate: test_delta_to_job.py, and tests/adopt/test_unfinished_batches.py
def test_it_continues_at_the_next_record_with_its_state_and_shows_each_record_once(spark, broker, tmp_path):
    every = records(0, BEFORE + AFTER)
    with KafkaControl(Connection(broker.servers, {})) as control:
        control.create_topic(TOPIC, 3)
    send(broker, every[:BEFORE])
    checkpoint = killed_in_the_middle(broker, tmp_path)
    before, taken = content_of(checkpoint), len(shown(tmp_path))

    adopted = adopt(tmp_path, checkpoint)

    assert content_of(checkpoint) == before
    assert sum(adopted["sources"]["clicks"]["cursor"][TOPIC].values()) == taken < BEFORE
    send(broker, every[BEFORE:])
    run_job(spark, broker, tmp_path)
    assert shown(tmp_path) == rows_of(every)
    store = Store.open(str(tmp_path / "store"), JOB)
    state = store.state("totals").read(store.log.state().latest).to_pylist()
    assert {row["user"]: {name: row[name] for name in ("n", "total", "last")} for row in state} == state_of(every)
    committed, done = (taken_as(tmp_path, checkpoint, name) for name in ("committed", "done"))
    assert committed == done


def taken_as(folder: Path, checkpoint: Path, name: str) -> tuple[object, list[dict[str, object]]]:
    """Cursors and state after the newest committed batch, with or without its commit. Spark's reader needs a commit."""
    copy, store = folder / name, folder / f"{name}-store"
    shutil.copytree(checkpoint, copy)
    newest = max(int(path.name) for path in (copy / "commits").glob("[0-9]*"))
    for path in (copy / "offsets").glob("[0-9]*"):
        if int(path.name) > newest:
            path.unlink()
    arguments = ["adopt", str(copy), str(store), "--job", JOB, "--source", "clicks", "--operator", "totals"]
    arguments += ["--watch-s", "0"]
    if name == "done":
        (copy / "commits" / str(newest)).unlink()
        arguments += ["--unfinished", "done"]
    assert exit_code(arguments) == 0
    opened = Store.open(str(store), JOB)
    rows = opened.state("totals").read(1).to_pylist()
    assert len(rows) == USERS
    return opened.log.manifest(1).cursors, sorted(rows, key=lambda row: row["user"])
