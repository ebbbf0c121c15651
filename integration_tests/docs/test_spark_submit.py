"""The example program under spark-submit, with the jars of the command line."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from integration_tests.broker import running_broker

ROOT = Path(__file__).parents[2]

# test_examples runs the same program with the jars of a session.
pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.long]


def submitted(*arguments: str) -> subprocess.CompletedProcess[str]:
    home = Path(pyspark.__file__).parent
    jars = subprocess.run(
        [sys.executable, "-m", "spark_ckpt", "jars", "kafka"], capture_output=True, text=True, check=True
    )
    command = [str(home / "bin" / "spark-submit"), "--master", "local[2]", "--conf", "spark.ui.enabled=false"]
    command += ["--jars", jars.stdout.strip(), str(ROOT / "docs" / "examples" / "totals.py"), *arguments]
    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(ROOT / "connectors")])
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


def committed(servers: str, topic: str, count: int) -> list[tuple[str, dict[str, object]]]:
    settings = {"bootstrap.servers": servers, "group.id": "test", "isolation.level": "read_committed"}
    consumer = Consumer(settings | {"auto.offset.reset": "earliest"})
    consumer.subscribe([topic])
    found = []
    while len(found) < count and (message := consumer.poll(30)) is not None:
        if message.error() is None:
            found.append((message.key().decode(), json.loads(message.value())))
    consumer.close()
    return found


def test_the_example_runs_under_spark_submit_and_continues_where_it_stopped(tmp_path):
    with running_broker(tmp_path / "broker") as broker:
        topics = [NewTopic(name, 1, 1) for name in ("orders", "totals")]
        admin = AdminClient({"bootstrap.servers": broker.servers})
        for future in admin.create_topics(topics).values():
            future.result()
        producer = Producer({"bootstrap.servers": broker.servers})
        store = str(tmp_path / "store")

        outcomes = []
        for amount in (4.5, 6.0):
            producer.produce("orders", value=json.dumps({"customer": "ada", "amount": amount}))
            producer.produce("orders", value="not an order")
            producer.flush()
            outcomes.append(submitted(broker.servers, store, "drain"))

        assert [done.returncode for done in outcomes] == [0, 0], outcomes[-1].stderr[-3000:]
        assert committed(broker.servers, "totals", 2) == [
            ("ada", {"customer": "ada", "amount": 4.5, "total": 4.5, "orders": 1}),
            ("ada", {"customer": "ada", "amount": 6.0, "total": 10.5, "orders": 2}),
        ]
