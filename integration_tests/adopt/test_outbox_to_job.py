"""A plain query with an outbox over Kafka and Delta becomes a job in the outbox's store: each record once in both sinks."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer
from deltalake import DeltaTable
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupStateTimeout
from spark_ckpt_delta import DeltaSink
from spark_ckpt_kafka import KafkaSink, KafkaSource

import spark_ckpt as ckpt
from integration_tests.adopt.totals import OUTPUT, RECORD, STATE, Record, add_up, records, rows_of
from integration_tests.broker import Broker
from integration_tests.survival.ledger import create_topic, read_committed
from spark_ckpt.cli.app import exit_code
from spark_ckpt.errors import StoreForeign
from spark_ckpt.store.store import Store

pytestmark = [
    pytest.mark.spark,
    pytest.mark.kafka,
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
]
JOB, BEFORE, AFTER = "totals", 240, 120
Row = tuple[str, int, int, int]


def send(broker: Broker, topic: str, rows: list[Record]) -> None:
    producer = Producer({"bootstrap.servers": broker.servers, "enable.idempotence": True})
    for user, seq, amount in rows:
        producer.produce(topic, json.dumps({"user": user, "seq": seq, "amount": amount}), user)
    assert producer.flush(60) == 0


def totals_of(rows: DataFrame, **named: str) -> DataFrame:
    parsed = rows.select(F.from_json(F.col("value").cast("string"), RECORD).alias("r")).select("r.*")
    return parsed.groupBy("user").applyInPandasWithState(
        add_up, OUTPUT, STATE, "append", GroupStateTimeout.NoTimeout, **named
    )


def run_query(spark: SparkSession, broker: Broker, folder: Path, source: str, topic: str) -> Exception | None:
    reader = spark.readStream.format("kafka").option("kafka.bootstrap.servers", broker.servers)
    lines = reader.option("subscribe", source).option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", 60)
    out = ckpt.Outbox(
        str(folder / "store"),
        name="plain",
        checkpoint=str(folder / "checkpoint"),
        sinks={
            "gold": DeltaSink(str(folder / "gold")),
            "alerts": KafkaSink(broker.servers, topic).rows(key="user", value="to_json(struct(*))"),
        },
    )
    query = out.start(totals_of(lines.load()).writeStream.trigger(availableNow=True))
    with suppress(StreamingQueryException):
        assert query.awaitTermination(300)
    out.close()
    return query.exception()


def run_job(spark: SparkSession, broker: Broker, folder: Path, source: str, topic: str) -> None:
    job = ckpt.Job(spark, JOB, store=str(folder / "store"), interval="1 second")
    totals = totals_of(job.source("clicks", KafkaSource(broker.servers, source)), name="totals")
    totals.to(DeltaSink(str(folder / "gold")), name="gold")
    alerts = totals.selectExpr("user AS key", "to_json(struct(*)) AS value")
    alerts.to(KafkaSink(broker.servers, topic), name="alerts")
    assert job.start(availableNow=True).awaitTermination(180)


def shown(broker: Broker, folder: Path, topic: str) -> tuple[Counter[Row], Counter[Row]]:
    table = DeltaTable(str(folder / "gold")).to_pyarrow_table().select(["user", "seq", "n", "total"])
    values = [json.loads(record.value()) for record in read_committed(broker.servers, topic)]
    return (
        Counter(zip(*(column.to_pylist() for column in table.columns), strict=True)),
        Counter((value["user"], value["seq"], value["n"], value["total"]) for value in values),
    )


@pytest.mark.long  # in the gate: tests/adopt/test_queries_with_an_outbox.py
@pytest.mark.parametrize(
    "dies",
    [False, True],
    ids=["all batches committed", "the last batch published only"],
)
def test_each_record_is_once_in_both_sinks(
    spark: SparkSession, broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str], dies: bool
) -> None:
    source, topic = create_topic(broker.servers, "in"), create_topic(broker.servers, "out")
    every = records(0, BEFORE + AFTER)
    send(broker, source, every[:BEFORE])
    assert run_query(spark, broker, tmp_path, source, topic) is None
    if dies:
        commits = sorted((tmp_path / "checkpoint" / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        commits[-1].unlink()
    before = Store.open(str(tmp_path / "store"), "plain", kind="outbox")
    arguments = ["adopt", str(tmp_path / "checkpoint"), str(tmp_path / "store"), "--job", JOB, "--source", "clicks"]
    assert exit_code([*arguments, "--operator", "totals"]) == 0, capsys.readouterr().err
    after = Store.open(str(tmp_path / "store"), JOB)
    assert after.id == before.id
    assert shown(broker, tmp_path, topic) == (Counter(rows_of(every[:BEFORE])),) * 2

    send(broker, source, every[BEFORE:])
    run_job(spark, broker, tmp_path, source, topic)

    assert shown(broker, tmp_path, topic) == (Counter(rows_of(every)),) * 2
    with pytest.raises(StoreForeign):
        run_query(spark, broker, tmp_path, source, topic)
