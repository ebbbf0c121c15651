"""An edge of a job that other programs read as a Kafka topic: one log with each row once, for the job and for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kafka_kit import Cluster
from pyspark.sql import SparkSession
from spark_ckpt_files import FilesSource
from spark_ckpt_kafka import KafkaSink

import spark_ckpt as ckpt
from integration_tests.spark import connected_session
from spark_ckpt import failpoints

pytestmark = pytest.mark.spark
_ENOUGH_S = 120


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session()


def _job(spark: SparkSession, cluster: Cluster, folder: Path, end: str) -> ckpt.Job:
    """Rows are counted per key; rows of the edge are counted per count."""
    servers = cluster.broker.servers
    job = ckpt.Job(spark, "edges", store=str(folder / "store"), interval="50 ms", key_groups=2, max_failed_epochs=0)
    rows = job.source("in", FilesSource(str(folder / "in"), "parquet", "k string", maxFilesPerTrigger=1))
    counted = rows.groupBy("k").agg("each row", "first", n=ckpt.count())
    onward = counted.through("counted", topic=KafkaSink(servers, cluster.topic), key="k")
    again = onward.groupBy("n").agg("each row", "second", times=ckpt.count())
    again.selectExpr("CAST(n AS string) AS key", "CAST(times AS string) AS value").to(
        KafkaSink(servers, end), name="out"
    )
    return job


@pytest.mark.long  # in the gate: tests/simulator/test_spark_edges.py
def test_every_reader_of_the_topic_and_the_job_get_each_row_of_the_edge_once(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    """Incarnations end after a commit and before one."""
    end = cluster.new_topic()
    (tmp_path / "in").mkdir()
    for file in range(4):
        pq.write_table(pa.table({"k": ["a", "b", "a"]}), tmp_path / "in" / f"{file}.parquet")
    for point in ("EPOCH_COMMITTED:raise:2", "EPOCH_COMMITTING:raise:2", ""):
        failpoints.arm(point)
        try:
            run = _job(spark, cluster, tmp_path, end).start(availableNow=True)
            if point:
                with pytest.raises(ckpt.CkptError, match="failpoint"):
                    run.awaitTermination(_ENOUGH_S)
            else:
                assert run.awaitTermination(_ENOUGH_S)
        finally:
            failpoints.arm("")

    read = [(record.key.decode(), json.loads(record.value)) for record in cluster.read()]
    assert all(value["k"] == key for key, value in read)
    counts = [(key, n) for key, times in (("a", 8), ("b", 4)) for n in range(1, times + 1)]
    assert sorted((key, value["n"]) for key, value in read) == counts
    onward = sorted((int(record.key), int(record.value)) for record in cluster.read(end))
    assert onward == sorted([(n, 1) for n in range(1, 9)] + [(n, 2) for n in range(1, 5)])
