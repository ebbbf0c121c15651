"""A Declarative Pipeline writes to an outbox: Kafka and Delta have every row once after any kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from integration_tests.broker import Broker
from integration_tests.outbox.format_outboxes import write_module
from integration_tests.outbox.outbox_deaths import records
from integration_tests.outbox.outbox_query import FILES, Place, expected, write_files
from integration_tests.survival.ledger import create_topic
from integration_tests.survival.process import ROOT
from spark_ckpt.failpoints import ONCE_VARIABLE, VARIABLE
from spark_ckpt.store.store import Store

pytestmark = [pytest.mark.spark, pytest.mark.kafka, pytest.mark.kill]
SPEC = """
name: orders
storage: {folder}/storage
libraries:
  - glob:
      include: transformations/**
configuration:
  spark.sql.shuffle.partitions: "2"
  spark.sql.session.timeZone: UTC
"""
RUN_WITH = "--remote", "local[2]", "--conf", "spark.ui.enabled=false"
FLOW = """
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import SparkSession, functions as F

from integration_tests.outbox.outbox_query import windows

dp.create_sink(name="orders_out", format="outbox", options={{"outbox": "{module}:both"}})


@dp.append_flow(target="orders_out", name="orders_to_sinks")
def orders_to_sinks():
    rows = windows(SparkSession.active(), Path("{inbox}"))
    return rows.withColumn("json", F.to_json(F.struct("*")))
"""


def write_pipeline(place: Place, servers: str, topic: str) -> None:
    """Write the project, and the module with its outbox."""
    (place.folder / "modules").mkdir()
    module = write_module(place.folder / "modules", place.folder, servers, topic)
    flows = place.folder / "transformations"
    flows.mkdir()
    (place.folder / "spark-pipeline.yml").write_text(SPEC.format(folder=place.folder.as_uri()))
    (flows / "orders.py").write_text(FLOW.format(module=module, inbox=place.inbox))


def run(place: Place, environment: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run the pipeline once. Return its exit code and its output."""
    program = Path(sys.executable).with_name("spark-pipelines")
    python_path = os.pathsep.join([str(place.folder / "modules"), str(ROOT), os.environ.get("PYTHONPATH", "")])
    paths = {"PYTHONPATH": python_path, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    log = place.folder / "said"
    with log.open("w") as said:
        process = subprocess.Popen(
            [*map(str, (program, "run", "--spec", place.folder / "spark-pipeline.yml")), *RUN_WITH],
            env={**os.environ, **paths, **(environment or {})}, stdout=said, stderr=said, stdin=subprocess.DEVNULL,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(300)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    return code, log.read_text()


def batches(place: Place, folder: str) -> list[str]:
    (found,) = place.folder.glob(f"storage/_checkpoints/orders_out/orders_to_sinks/*/{folder}")
    return sorted(path.name for path in found.glob("[0-9]*"))


BETWEEN_COMMITS, BETWEEN_SINKS = "EPOCH_COMMITTED:kill:2", "ACKED:kill:5"


@pytest.mark.long  # in the gate: tests/outbox/test_rule.py
@pytest.mark.parametrize(
    "deaths",
    [(BETWEEN_SINKS,), (BETWEEN_COMMITS, BETWEEN_SINKS)],
    ids=["between sinks", "everywhere"],
)
def test_a_pipeline_whose_commits_die_writes_every_row_once(
    place: Place, broker: Broker, deaths: tuple[str, ...]
) -> None:
    """The gate has the kill between the commit of the log and Spark's for the format without a pipeline."""
    topic = create_topic(broker.servers, "pipeline")
    write_pipeline(place, broker.servers, topic)
    (place.folder / "killed").mkdir()
    armed = {VARIABLE: ",".join(deaths), ONCE_VARIABLE: str(place.folder / "killed")}
    for _ in range(len(deaths) + 1):
        code, said = run(place, armed)
        if code == 0:
            break
    assert code == 0, said[-3000:]
    assert len([*(place.folder / "killed").iterdir()]) == len(deaths)
    assert place.rows("gold") == expected(FILES)
    assert records(broker.servers, topic) == expected(FILES)
    assert batches(place, "commits") == batches(place, "offsets")
    # a later update with new input continues the same query
    write_files(place.inbox, range(4, 6))
    code, said = run(place)
    assert code == 0, said[-3000:]
    assert place.rows("gold") == expected(range(6))
    assert records(broker.servers, topic) == expected(range(6))
    epochs = Store.open(place.store, "orders", kind="outbox").log.state().epochs
    assert len({each.spark_batch.query for each in epochs if each.spark_batch}) == 1
