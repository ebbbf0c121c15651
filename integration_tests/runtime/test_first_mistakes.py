"""First mistakes of Spark users: each error names the counterpart in this library."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from runtime_kit import Bench, drain

import spark_ckpt as ckpt
from spark_ckpt.connector import Source
from spark_ckpt.tasks.operators import aggregations

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("createOrReplaceTempView", 'frame.sparkSession.sql("select ... from x")'),
        ("writeStream", "to(sink)"),
        ("readStream", "job.source"),
        ("count", "agg("),
        ("distinct", "dropDuplicates()"),
        ("rollup", "stream.transform("),
        ("na", "fillna"),
        ("drop_duplicates", "dropDuplicates()"),
        ("limit", "number the rows"),
        ("orderBy", "order of the source"),
        ("show", "run.lastProgress"),
        ("cache", "static DataFrame"),
        ("crossJoin", "transform(lambda frame: frame.crossJoin(...))"),
        ("repartition", "transform(lambda frame: frame.repartition(...))"),
        ("v", 'stream["v"]'),
        ("applyInPandasWithState", 'groupBy("key").applyInPandasWithState'),
        ("applyVectorized", "group first"),
        ("withColum", "'withColumn'"),
    ],
)
def test_the_error_for_a_name_of_sparks_that_a_stream_lacks_names_the_counterpart(
    bench: Bench, name: str, hint: str
) -> None:
    stream = bench.job().source("in", bench.source())
    assert not hasattr(stream, name)
    with pytest.raises(ckpt.CkptError) as missing:
        getattr(stream, name)
    assert missing.value.condition == "CKPT_NOT_HERE"
    assert hint in missing.value.hint


def test_every_public_name_of_a_dataframe_is_there_or_explained(bench: Bench) -> None:
    from pyspark.sql import DataFrame

    stream = bench.job().source("in", bench.source())
    for name in (each for each in dir(DataFrame) if not each.startswith("_")):
        try:
            getattr(stream, name)
        except AttributeError as error:
            assert isinstance(error, ckpt.CkptError) and error.hint, name


@pytest.mark.parametrize(
    ("name", "advice"),
    [
        ("count", "agg"),
        ("applyInPandas", "agg"),
        ("transformWithStateInPandas", "stream.transform("),
        ("pivot", "stream.transform("),
        ("to", "agg"),
    ],
)
def test_the_error_for_a_name_of_sparks_that_a_grouped_stream_lacks_names_the_counterpart(
    bench: Bench, name: str, advice: str
) -> None:
    grouped = bench.job().source("in", bench.source()).groupBy("k")
    with pytest.raises(ckpt.CkptError, match=f"a grouped stream has no '{name}'") as missing:
        getattr(grouped, name)
    assert advice in missing.value.hint


@pytest.mark.parametrize(
    ("name", "hint"), [("readStream", "job.source"), ("writeStream", "to(sink)"), ("stop", "start()")]
)
def test_the_error_for_a_name_of_sparks_that_a_job_lacks_names_the_counterpart(
    bench: Bench, name: str, hint: str
) -> None:
    with pytest.raises(ckpt.CkptError) as missing:
        getattr(bench.job(), name)
    assert hint in missing.value.hint


def test_an_unknown_name_is_a_plain_attribute_error(bench: Bench) -> None:
    job = bench.job()
    stream = job.source("in", bench.source())
    for thing in (job, stream, stream.groupBy("k")):
        with pytest.raises(AttributeError, match="no_such_name") as missing:
            getattr(thing, "no_such_name")  # noqa: B009
        assert not isinstance(missing.value, ckpt.CkptError)
    assert copy.copy(stream).columns == ["k", "v"]


@pytest.mark.parametrize("given", ["rate", None, Source])
def test_a_source_of_a_wrong_type_is_refused_by_name(bench: Bench, given: object) -> None:
    with pytest.raises(ckpt.CkptError, match="is no source") as refused:
        bench.job().source("r", given)
    assert refused.value.condition == "CKPT_SOURCE_INVALID"
    assert "FilesSource" in refused.value.hint


def test_a_sink_of_a_wrong_type_is_refused_by_name(bench: Bench) -> None:
    job = bench.job()
    stream = job.source("in", bench.source())
    with pytest.raises(ckpt.CkptError, match="'delta' is no sink"):
        stream.to("delta")
    with pytest.raises(ckpt.CkptError, match="'delta' is no sink"):
        stream.to("delta", name="out")
    with pytest.raises(ckpt.CkptError, match=r"FilesSource is no sink: it has no stage, publisher"):
        job.rejectsTo(bench.files_source())


def test_a_store_at_an_unknown_kind_of_url_is_refused_at_construction(bench: Bench) -> None:
    with pytest.raises(ckpt.CkptError, match="no store can be kept at foo://") as refused:
        ckpt.Job(bench.spark, "job", "foo://bucket/store")
    assert "s3://" in refused.value.hint


@pytest.mark.parametrize("setting", ["name", "outputMode"])
def test_an_aggregate_with_the_name_of_a_setting_is_reported(bench: Bench, setting: str) -> None:
    grouped = bench.job().source("in", bench.source()).groupBy("k")
    with pytest.raises(ckpt.CkptError, match="'name' and 'outputMode' are settings, no aggregates") as refused:
        grouped.agg(**{setting: ckpt.count()})  # type: ignore[arg-type]
    assert "rename its column" in refused.value.hint


def wrong_mode(grouped: Any) -> object:
    return grouped.applyInPandasWithState(list, "k string", "n long", "complete", "NoTimeout")


@pytest.mark.parametrize(
    ("mistake", "advice"),
    [
        (lambda grouped: grouped.agg(F.sum("v")), "F.sum(...).alias("),
        (lambda grouped: grouped.agg(n=F.countDistinct("v")), "dropDuplicates first"),
        (lambda grouped: grouped.agg(n=F.collect_list("v")), "there are avg, count"),
        (lambda grouped: grouped.agg(n=F.collect_list("v")), "stream.transform("),
        (lambda grouped: grouped.agg(n=F.count(F.lit(None))), 'F.count("*")'),
        (lambda grouped: grouped.agg(t=F.sum(F.col("v") * 2)), "withColumn"),
        (lambda grouped: grouped.agg(t=F.sum("v") + 1), "after agg"),
        (lambda grouped: grouped.agg(t=F.col("v")), "agg(total=F.sum("),
        (lambda grouped: grouped.agg({"v": "sum"}), "agg(total=F.sum("),
        (lambda grouped: grouped.agg("update", "totals", n="count"), "agg(total=F.sum("),
        (lambda grouped: grouped.agg(), "agg(total=F.sum("),
        (lambda grouped: grouped.agg(n=F.sum("amount")), "k, v"),
        (lambda grouped: grouped.agg("complete", n=F.count("*")), "'update'"),
        (lambda grouped: grouped.agg("complete", n=F.count("*")), "outputMode='complete'"),
        (wrong_mode, "'update'"),
    ],
)
def test_the_error_for_a_wrong_aggregate_names_the_correction(
    bench: Bench, mistake: Callable[[Any], object], advice: str
) -> None:
    grouped = bench.job().source("in", bench.source()).groupBy("k")
    with pytest.raises(ckpt.CkptError) as refused:
        mistake(grouped)
    assert refused.value.condition == "CKPT_GRAPH_INVALID"
    assert advice in refused.value.hint


def two_sinks(bench: Bench) -> object:
    rows = bench.job().source("in", bench.source())
    return rows.to(bench.sink("first")).to(bench.sink("gold"))


def two_operators(bench: Bench) -> object:
    grouped = bench.job().source("in", bench.source()).groupBy("k")
    return grouped.agg(n=F.count("*")).groupBy("k").agg(n=F.count("*"))


def two_sources(bench: Bench) -> object:
    job = bench.job()
    job.source("in", bench.source())
    return job.source("in", bench.source())


def another_time(bench: Bench) -> object:
    """A column takes the name of the watermark's, which has been dropped."""
    timed = bench.job().source("in", bench.source()).withColumn("at", F.current_timestamp()).withWatermark("at", "5m")
    return timed.drop("at").withColumn("at", F.lit("now"))


@pytest.mark.parametrize(
    ("mistake", "condition", "advice"),
    [
        (two_sinks, "GRAPH_INVALID", 'name="gold"'),
        (two_operators, "GRAPH_INVALID", 'name="aggregate-by-k"'),
        (two_sources, "GRAPH_INVALID", "a name of its own"),
        (lambda bench: bench.job().source("in", bench.source()).filter("w > 1"), "GRAPH_INVALID", "struct<k:string"),
        (lambda bench: bench.job().source("in", bench.source())["w"], "GRAPH_INVALID", "columns: k, v"),
        (lambda bench: bench.job().source("in", bench.source()).groupBy(), "GRAPH_INVALID", "at least one key"),
        (
            lambda bench: bench.job().source("in", bench.source()).groupBy(F.col("v").cast("string")),
            "GRAPH_INVALID",
            "'v'",
        ),
        (lambda bench: bench.job().source("in", bench.source()).groupBy("cast(v as string)"), "GRAPH_INVALID", "alias"),
        (
            lambda bench: bench.job().source("in", bench.source()).groupBy("k", F.upper("k").alias("k")),
            "GRAPH_INVALID",
            "alias",
        ),
        (
            lambda bench: bench.job().source("in", bench.source()).groupBy(F.upper("k").alias("K")),
            "GRAPH_INVALID",
            "alias",
        ),
        (lambda bench: bench.job().source("in", bench.source()).groupBy("k", "K"), "GRAPH_INVALID", "key once"),
        (another_time, "GRAPH_INVALID", "call withWatermark after it"),
        (
            lambda bench: bench.job().source("in", bench.source()).withColumn("s", F.struct()).through("edge"),
            "GRAPH_INVALID",
            "leave it out",
        ),
        (
            lambda bench: bench.job().source("in", bench.source()).select("k", "v", "v").through("edge"),
            "GRAPH_INVALID",
            "rename",
        ),
        (
            lambda bench: bench.job().source("in", bench.source()).withWatermark("k", "5m"),
            "GRAPH_INVALID",
            "timestamp column",
        ),
        (lambda bench: bench.job(intervall="5s"), "CONFIG_INVALID", "'interval'"),
        (lambda bench: bench.job().start(), "GRAPH_INVALID", "to("),
    ],
)
def test_the_error_for_a_wrong_graph_names_the_correction(
    bench: Bench, mistake: Callable[[Bench], object], condition: str, advice: str
) -> None:
    with pytest.raises(ckpt.CkptError) as refused:
        mistake(bench)
    assert refused.value.condition == f"CKPT_{condition}"
    assert advice in f"{refused.value.what} {refused.value.hint}"


def test_a_key_in_another_case_is_the_column_that_it_names(bench: Bench) -> None:
    for key in ("K", F.col("K")):
        stream = bench.job().source("in", bench.source()).groupBy(key).agg("each row", n=F.count("*"))
        assert stream.columns == ["k", "v", "n"]


def test_a_key_may_be_given_twice_to_deduplication(bench: Bench) -> None:
    assert bench.job().source("in", bench.source()).dropDuplicates(["k", "K"]).columns == ["k", "v"]


def test_a_job_in_a_second_session_takes_the_source_of_a_first_job_that_spark_holds_active(bench: Bench) -> None:
    bench.job().source("in", bench.files_source())
    bench.spark.createDataFrame([(1,)], "n long")  # makes its session the active one
    second = ckpt.Job(bench.spark.newSession(), "second", str(bench.folder / "second"))
    assert second.source("in", bench.files_source()).columns == ["k", "v"]
    bench.spark.createDataFrame([(1,)], "n long")


def test_functions_of_spark_have_sparks_results(bench: Bench) -> None:
    names = [name for name in ckpt.__all__ if hasattr(aggregations, name) and hasattr(F, name)]
    of_spark = {name: getattr(F, name)("v") for name in names} | {
        "rows": F.count("*"), "newest": F.last("v", ignorenulls=True), "oldest": F.first("v", ignorenulls=True),
        "of_column": F.avg(F.col("v")),
    }  # fmt: skip
    of_ours = {name: getattr(ckpt, name)("v") for name in names} | {
        "rows": ckpt.count(), "newest": ckpt.last("v", ignore_nulls=True), "oldest": ckpt.first("v", ignore_nulls=True),
        "of_column": ckpt.avg("v"),
    }  # fmt: skip
    bench.put(("a", None), ("a", 1), ("a", 5), ("a", None), ("b", 5), ("c", None))

    job = bench.job()
    grouped = job.source("in", bench.source()).groupBy("k")
    grouped.agg(*(each.alias(name) for name, each in of_spark.items())).to(bench.sink())
    drain(job)

    sparks = bench.spark.read.parquet(str(bench.input())).groupBy("k")
    expected = sparks.agg(*(each.alias(name) for name, each in of_spark.items()))
    assert bench.values() == sorted(map(tuple, expected.collect()), key=repr)
    assert grouped.agg(name="ours", **of_ours).schema.simpleString() == expected.schema.simpleString()


def test_the_view_that_the_hint_names_is_read_inside_of_transform(bench: Bench) -> None:
    def doubled(frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView("x")
        return frame.sparkSession.sql("select k, 2 * v as v from x")

    job = bench.job()
    job.source("in", bench.source()).transform(doubled).to(bench.sink())
    bench.put(("a", 2))
    drain(job)
    assert bench.values() == [("a", 4)]
