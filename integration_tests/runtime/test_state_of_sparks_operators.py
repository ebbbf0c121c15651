"""The state of Spark's own operators is a full part of an epoch: verified, kept, dropped, refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from runtime_kit import ENOUGH_S, Bench, drain, manifest_of, totals
from typer.testing import CliRunner, Result

import spark_ckpt as ckpt
from spark_ckpt.cli.app import application

pytestmark = pytest.mark.spark
PROVIDER = "spark.sql.streaming.stateStore.providerClass"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def first_values(frame: DataFrame) -> DataFrame:
    return frame.dropDuplicates(["k", "v"])


def counts(frame: DataFrame) -> DataFrame:
    return frame.groupBy("k").agg(F.sum("v").alias("v"))


def job_of(bench: Bench, program=first_values, mode: str = "append", **settings: object) -> ckpt.Job:
    job = bench.job(**settings)
    job.source("in", bench.source()).transform(program, outputMode=mode).to(bench.sink())
    return job


def newest(bench: Bench) -> dict[str, object]:
    return manifest_of(bench, bench.store().log.state().latest)


def refused(job: ckpt.Job, **asked: object) -> ckpt.CkptError:
    with pytest.raises(ckpt.CkptError) as found:
        run = job.start(availableNow=True, **asked)
        run.awaitTermination(ENOUGH_S)
    return found.value


def state_files(bench: Bench) -> set[Path]:
    return {path for path in (bench.folder / "store" / "spark").iterdir() if not path.name.endswith("index.json")}


@pytest.fixture
def drained(bench: Bench) -> Iterator[Bench]:
    bench.put(("a", 1), ("a", 1), ("b", 2))
    drain(job_of(bench))
    yield bench


@dataclass(frozen=True)
class Twice:
    """A job after two runs, and its newest epoch and state files between them."""

    bench: Bench
    first: int
    files: set[Path]


@pytest.fixture(scope="module")
def twice(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Twice:
    """A job for several tests; only the last one of them changes it."""
    bench = Bench(spark, tmp_path_factory.mktemp("twice"))
    bench.put(("a", 1), ("a", 1), ("b", 2))
    drain(job_of(bench))
    between = Twice(bench, bench.store().log.state().latest, state_files(bench))
    bench.put(("a", 1), ("c", 3))
    drain(job_of(bench))
    return between


def test_an_operator_of_the_job_reads_rows_of_sparks_operators(bench: Bench) -> None:
    def job() -> ckpt.Job:
        job = bench.job()
        totals(job.source("in", bench.source()).transform(first_values)).to(bench.sink())
        return job

    for rows in ([("a", 1), ("a", 1), ("b", 2)], [("a", 1), ("a", 4), ("b", 2), ("b", 3), ("a", 5)]):
        bench.put(*rows)
        drain(job())
    assert bench.values() == [("a", 1), ("a", 10), ("b", 2), ("b", 5)]


def test_an_epoch_names_only_files_that_are_new(twice: Twice) -> None:
    after, files = newest(twice.bench)["spark_state"], state_files(twice.bench)
    assert twice.files < files
    assert after["files"] > len(files - twice.files) > 0
    assert after["partitions"] == 2
    assert after["operators"] == ["dedupe"]
    shown = CliRunner().invoke(application(), ["show", str(twice.bench.folder / "store")])
    assert "0:dedupe" in shown.output
    assert "HDFSBacked" in shown.output


def test_other_operators_are_refused_and_the_advice_works(drained: Bench) -> None:
    drained.put(("a", 1), ("c", 3))
    error = refused(job_of(drained, counts, "update"))
    assert error.condition == "CKPT_SPARK_STATE_CHANGED"
    assert "accept_dropped_operator='spark operators'" in error.hint
    plain = drained.job()
    plain.source("in", drained.source()).to(drained.sink())
    plain.start(availableNow=True, accept_dropped_operator="spark operators").awaitTermination(ENOUGH_S)
    assert newest(drained)["spark_state"] is None
    drained.put(("a", 1))
    drain(job_of(drained))
    assert drained.values() == [("a", 1), ("a", 1), ("a", 1), ("b", 2), ("c", 3)]


def test_a_job_without_sparks_operators_names_the_state_that_it_would_lose(counted_twice: Bench) -> None:
    plain = counted_twice.job()
    plain.source("in", counted_twice.source()).to(counted_twice.sink())
    error = refused(plain)
    assert error.condition == "CKPT_GRAPH_INVALID"
    assert "stateStoreSave" in error.what
    assert "accept_dropped_operator" in error.hint


def test_another_number_of_partitions_is_refused(counted_twice: Bench) -> None:
    error = refused(job_of(counted_twice, counts, "update", shuffle_partitions=3))
    assert error.condition == "CKPT_CONFIG_INVALID"
    assert "spark-ckpt rescale STORE --partitions 3" in error.hint


def test_a_checkpoint_of_sparks_in_an_object_store_is_refused(bench: Bench) -> None:
    error = refused(job_of(bench, run_dir="s3://bucket/runs"))
    assert error.condition == "CKPT_CONFIG_INVALID"
    assert "set run_dir to a local or mounted path" in error.hint


def test_sql_reads_the_state_of_any_kept_epoch(twice: Twice) -> None:
    store = str(twice.bench.folder / "store")

    def keys(epoch: str | int) -> list[tuple[object, ...]]:
        frame = ckpt.state_frame(twice.bench.spark, store, "dedupe", epoch)
        return sorted(tuple(row) for row in frame.select("key.k", "key.v").collect())

    assert keys("latest") == [("a", 1), ("b", 2), ("c", 3)]
    assert keys(twice.first) == [("a", 1), ("b", 2)]
    with pytest.raises(ckpt.CkptError) as unknown:
        ckpt.state_frame(twice.bench.spark, store, "windows")
    assert unknown.value.context["operators"] == "0:dedupe"


def test_a_damaged_state_file_is_found_and_an_older_epoch_begins(twice: Twice) -> None:
    bench = twice.bench
    damaged = max(state_files(bench) - twice.files, key=lambda path: path.stat().st_size)
    content = bytearray(damaged.read_bytes())
    content[len(content) // 2] ^= 4
    damaged.unlink()
    damaged.write_bytes(content)
    checked = CliRunner().invoke(application(), ["verify", str(bench.folder / "store"), "--deep"])
    assert damaged.name in checked.output
    error = refused(job_of(bench))
    assert error.condition == "CKPT_EPOCH_DAMAGED"
    assert error.context["file"] == damaged.name
    drain(job_of(bench), restore=twice.first)
    assert bench.values() == [("a", 1), ("b", 2), ("c", 3), ("c", 3)]


def test_files_that_no_epoch_names_are_deleted(bench: Bench) -> None:
    for number in range(3):
        bench.put(("a", number))
        drain(job_of(bench, keep_epochs=1))
    kept, states = bench.store().log.manifests(), bench.store().spark_states
    named = {file.path for each in kept if each.spark_state for file in states.index(each.spark_state).files}
    assert {path.name for path in state_files(bench)} == named


def test_streams_that_split_after_sparks_operators_are_refused(bench: Bench) -> None:
    bench.put(("a", 1))
    job = bench.job()
    once = job.source("in", bench.source()).transform(first_values)
    once.filter("v > 1").to(bench.sink("many"), "many")
    once.filter("v < 1").to(bench.sink("few"), "few")
    error = refused(job)
    assert error.condition == "CKPT_GRAPH_INVALID"
    assert "through" in error.hint


REFUSED = {
    "limit": (lambda frame: frame.limit(2), "append", "CKPT_OPERATION_REFUSED"),
    "a sort": (lambda frame: frame.orderBy("v"), "append", "CKPT_OPERATION_REFUSED"),
    "final rows without a watermark": (counts, "append", "CKPT_GRAPH_INVALID"),
    "the whole result of no aggregation": (first_values, "complete", "CKPT_GRAPH_INVALID"),
    "two watermarks": (
        lambda frame: frame.withWatermark("at", "1 second").dropDuplicates(["at"]).withWatermark("at", "2 seconds"),
        "append",
        "CKPT_OPERATION_REFUSED",
    ),
    "only a watermark": (lambda frame: frame.withWatermark("at", "1 second"), "append", "CKPT_OPERATION_REFUSED"),
    "the stream with itself": (lambda frame: frame.join(frame.select("k"), "k"), "append", "CKPT_OPERATION_REFUSED"),
}


@pytest.mark.parametrize("operation", REFUSED)
def test_an_operation_is_refused_on_its_line(bench: Bench, operation: str) -> None:
    program, mode, condition = REFUSED[operation]
    bench.schema = "k string, v long, at timestamp"
    with pytest.raises(ckpt.CkptError) as found:
        bench.job().source("in", bench.source()).transform(program, outputMode=mode)
    assert found.value.condition == condition
    assert found.value.hint


def test_a_watermark_of_the_stream_is_sparks(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.schema = "k string, v long, at timestamp"
    job = bench.job()
    timed = job.source("in", bench.source()).withWatermark("at", "1 second")
    windows = timed.transform(lambda frame: frame.groupBy(F.window("at", "1 minute")).count())
    with pytest.raises(ckpt.CkptError, match="withWatermark follows an aggregation"):
        windows.select(F.col("window.end").alias("at"), "count").withWatermark("at", "1 second")
    windows.select(F.col("window.end").alias("at"), "count").to(bench.sink())
    job.explain()
    assert "an aggregation with Spark's state (append)" in capsys.readouterr().out


def command(*arguments: object) -> str:
    result = CliRunner().invoke(application(), list(map(str, arguments)), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture(scope="module")
def counted_twice(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A job for tests that only read it."""
    bench = Bench(spark, tmp_path_factory.mktemp("counted"))
    for rows in ([("a", 1), ("b", 2)], [("a", 4), ("c", 3)]):
        bench.put(*rows)
        drain(job_of(bench, counts, "update"))
    return bench


def with_state(bench: Bench) -> list[int]:
    """First and last epoch with state."""
    epochs = [each.epoch for each in bench.store().log.manifests() if each.spark_state]
    return [epochs[0], epochs[-1]]


def test_the_command_prints_the_state_of_an_epoch(counted_twice: Bench) -> None:
    store, newest_epoch = counted_twice.folder / "store", counted_twice.store().log.state().latest
    shown = json.loads(command("state", store, "stateStoreSave", "--epoch", newest_epoch, "--json"))
    assert (shown["state_rows"], shown["matching"]) == (3, 3)
    assert shown["rows"] == [{"k": "a", "sum": 5}, {"k": "b", "sum": 2}, {"k": "c", "sum": 3}]
    one = json.loads(command("state", store, "stateStoreSave", "--key", "k=c", "--json"))
    assert (one["matching"], one["rows"]) == (1, [{"k": "c", "sum": 3}])


def test_the_state_is_one_arrow_table(counted_twice: Bench) -> None:
    rows = ckpt.read_state(str(counted_twice.folder / "store"), "stateStoreSave", spark=counted_twice.spark)
    assert sorted((row["key"]["k"], row["value"]["sum"]) for row in rows.to_pylist()) == [("a", 5), ("b", 2), ("c", 3)]


def test_the_command_compares_two_epochs(counted_twice: Bench) -> None:
    first, last = with_state(counted_twice)
    found = json.loads(command("diff", counted_twice.folder / "store", "stateStoreSave", first, last, "--json"))
    changes = {each["kind"]: (each["key"], each["before"], each["after"]) for each in found["changes"]}
    assert changes == {
        "changed": ({"k": "a"}, {"sum": 1}, {"sum": 5}),
        "added": ({"k": "c"}, None, {"sum": 3}),
    }


def test_the_command_copies_the_state_into_a_table(counted_twice: Bench) -> None:
    store, table = counted_twice.folder / "store", counted_twice.folder / "copy"
    first, last = with_state(counted_twice)
    for epoch, rows in ((first, [("a", 1), ("b", 2)]), (last, [("a", 5), ("b", 2), ("c", 3)])):
        command("state", store, "stateStoreSave", "--epoch", epoch, "--to", table)
        assert counted_twice.values("copy") == rows
        assert DeltaTable(table).history(1)[0]["ckpt_epoch"] == str(epoch)
    other = CliRunner().invoke(
        application(), ["state", str(store), "stateStoreSave", "--to", str(counted_twice.folder / "out")]
    )
    assert "has other rows" in str(other.exception)


def test_the_command_needs_the_side_of_a_join(bench: Bench) -> None:
    bench.schema = "k string, v long"
    for side in ("left", "right"):
        bench.put(("a", 1), ("a", 2), into=side)
    job = bench.job()
    left, right = (job.source(side, bench.source(side)) for side in ("left", "right"))
    left.transform(lambda one, two: one.join(two.selectExpr("k", "v as w"), "k"), right).to(bench.sink())
    drain(job)
    store = bench.folder / "store"
    with pytest.raises(ckpt.CkptError, match="two sides"):
        ckpt.read_state(str(store), "symmetricHashJoin", spark=bench.spark)
    last = bench.store().log.state().latest
    shown = json.loads(command("state", store, "symmetricHashJoin", "--option", "joinSide=left", "--json"))
    assert shown["state_rows"] == 2
    same = json.loads(command("diff", store, "symmetricHashJoin", last, last, "--option", "joinSide=right", "--json"))
    assert same["changes"] == []


@pytest.fixture
def rocksdb(bench: Bench) -> Iterator[Bench]:
    bench.spark.conf.set(PROVIDER, ROCKSDB)
    yield bench
    bench.spark.conf.unset(PROVIDER)


def rescale(bench: Bench, partitions: int) -> Result:
    return CliRunner().invoke(application(), ["rescale", str(bench.folder / "store"), "--partitions", str(partitions)])


def test_the_state_continues_in_another_number_of_partitions(rocksdb: Bench) -> None:
    bench = rocksdb
    known = [(f"k{number}", number) for number in range(20)]
    bench.put(*known)
    drain(job_of(bench))
    back = bench.store().log.state().latest
    done = rescale(bench, 5)
    assert "Spark's operators (dedupe): 2 partitions, now 5" in done.output
    assert newest(bench)["reason"] == "rescaled"

    bench.put(*known, ("new", 1))
    drain(job_of(bench, shuffle_partitions=5))
    assert newest(bench)["spark_state"]["partitions"] == 5
    assert bench.values() == sorted([*known, ("new", 1)], key=repr)

    drain(job_of(bench, shuffle_partitions=2), restore=back)
    assert bench.values() == sorted([*known, ("new", 1), ("new", 1)], key=repr), "the earlier epoch has its own number"


def test_a_state_that_spark_cannot_repartition_stays_as_it_is(drained: Bench) -> None:
    newest_epoch = drained.store().log.state().latest
    error = rescale(drained, 3).exception
    assert isinstance(error, ckpt.CkptError)
    assert (error.condition, error.context["epoch"]) == ("CKPT_CONFIG_INVALID", newest_epoch)
    assert "HDFSBackedStateStoreProvider is not supported" in error.what
    drained.put(("a", 1), ("d", 4))
    drain(job_of(drained))
    assert drained.values() == [("a", 1), ("b", 2), ("d", 4)]
    assert newest(drained)["spark_state"]["partitions"] == 2


def test_a_damaged_state_is_not_repartitioned(rocksdb: Bench) -> None:
    rocksdb.put(("a", 1))
    drain(job_of(rocksdb))
    state_files(rocksdb).pop().write_bytes(b"damage")
    error = rescale(rocksdb, 3).exception
    assert isinstance(error, ckpt.CkptError)
    assert error.condition == "CKPT_EPOCH_DAMAGED"
    assert newest(rocksdb)["reason"] == "drained"
