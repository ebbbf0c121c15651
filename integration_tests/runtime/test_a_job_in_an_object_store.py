"""A whole job on an S3 server: store, output table, state read back. Tasks get the options too, and no output shows them."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from deltalake import DeltaTable, QueryBuilder
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from runtime_kit import ENOUGH_S, Bench, drain, totals
from spark_ckpt_delta import DeltaSink

import spark_ckpt as ckpt
from integration_tests.s3 import SECRET, running_s3
from spark_ckpt.cli.app import exit_code

pytest.importorskip("moto.server", reason="needs moto[server], part of the test extra")

PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_STATE = "org.apache.spark.sql.execution.streaming.state"
HDFS_BACKED, ROCKSDB = f"{_STATE}.HDFSBackedStateStoreProvider", f"{_STATE}.RocksDBStateStoreProvider"


@pytest.fixture(scope="module")
def options() -> Iterator[dict[str, str]]:
    with running_s3() as options:
        yield options


def rows(uri: str, options: dict[str, str]) -> list[tuple[str, int]]:
    table = DeltaTable(uri, storage_options=options)
    found = QueryBuilder().register("t", table).execute("select k, total from t").read_all()
    return sorted(zip(found["k"].to_pylist(), found["total"].to_pylist(), strict=True))


@pytest.mark.long  # the store itself against such a server: tests/store/test_object_store.py
def test_a_job_with_store_and_table_in_s3_continues_where_it_was(
    bench: Bench, options: dict[str, str], caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    store, table = "s3://bucket/orders/store", "s3://bucket/orders/totals"
    caplog.set_level(logging.DEBUG, "spark_ckpt")

    def run() -> ckpt.Run:
        settings = {"interval": "1 hour", "trigger": "10 ms", "key_groups": 4}
        job = ckpt.Job(bench.spark, "orders", store, storage_options=options, **settings)
        totals(job.source("in", bench.source())).to(DeltaSink(table, storage_options=options))
        return drain(job)

    bench.put(("a", 1), ("b", 2))
    run()
    bench.put(("a", 10))
    epoch = run().epochs()[-1].epoch

    assert rows(table, options) == [("a", 1), ("a", 11), ("b", 2)]
    state = ckpt.read_state(store, "totals", storage_options=options).sort_by("k")
    assert state["total"].to_pylist() == [11, 2]
    words = [word for name, value in options.items() for word in ("--storage-option", f"{name}={value}")]
    assert exit_code(["doctor", "--store", store, *words]) == 0
    assert exit_code(["show", store, str(epoch), *words]) == 0
    output = "".join(capfd.readouterr()) + caplog.text
    assert "of two writers exactly one wins" in output
    assert SECRET not in output


def first_and_sums(frame: DataFrame) -> DataFrame:
    timed = frame.withColumn("at", F.timestamp_seconds("v")).withWatermark("at", "10 seconds")
    once = timed.dropDuplicatesWithinWatermark(["k", "v"])
    return once.groupBy("k", F.window("at", "10 seconds")).agg(F.sum("v").alias("total")).select("k", "total")


@pytest.mark.long  # the files of Spark's state against such a server: tests/store/test_object_store.py
@pytest.mark.parametrize("provider", [HDFS_BACKED, ROCKSDB], ids=["HDFS-backed", "RocksDB"])
def test_the_state_of_sparks_operators_in_s3_continues(
    bench: Bench,
    options: dict[str, str],
    provider: str,
    request: pytest.FixtureRequest,
    capfd: pytest.CaptureFixture[str],
) -> None:
    name = provider.rsplit(".", 1)[1]
    store, table = f"s3://bucket/{name}/store", f"s3://bucket/{name}/totals"
    bench.spark.conf.set(PROVIDER, provider)
    request.addfinalizer(lambda: bench.spark.conf.unset(PROVIDER))

    def run(restore: int | str = "latest") -> int:
        settings = {"interval": "1 hour", "trigger": "10 ms", "key_groups": 1}
        job = ckpt.Job(bench.spark, "windows", store, storage_options=options, **settings)
        job.source("in", bench.source()).transform(first_and_sums).to(DeltaSink(table, storage_options=options))
        run = job.start(restore=restore, availableNow=True)
        assert run.awaitTermination(ENOUGH_S)
        return run.epochs()[-1].epoch

    bench.put(("a", 1), ("a", 1), ("b", 2))
    first = run()
    bench.put(("a", 1), ("a", 3), ("z", 100))
    second = run()
    assert rows(table, options) == [("a", 4), ("b", 2)], "the state knows the duplicate of the first run"
    for epoch, keys in ((first, {"a", "b"}), (second, {"z"})):
        kept = ckpt.state_frame(bench.spark, store, "stateStoreSave", epoch, storage_options=options)
        assert {row[0] for row in kept.select("key.k").collect()} == keys
    words = [word for option, value in options.items() for word in ("--storage-option", f"{option}={value}")]
    assert exit_code(["verify", store, "--deep", *words]) == 0
    assert exit_code(["state", store, "stateStoreSave", "--epoch", str(second), *words]) == 0
    assert "z" in capfd.readouterr().out
    run(restore=first)
    assert rows(table, options) == [("a", 4), ("a", 4), ("b", 2), ("b", 2)]  # the second batch again
    rescaled = exit_code(["rescale", store, "--partitions", "3", *words])
    if provider == HDFS_BACKED:
        assert rescaled != 0
        return
    assert rescaled == 0
    bench.put(("a", 3), ("z", 200))
    run()
    assert rows(table, options) == [("a", 4), ("a", 4), ("b", 2), ("b", 2), ("z", 100)]
