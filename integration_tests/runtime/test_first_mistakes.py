"""What users of Spark type first: every one is told what it is called here."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from runtime_kit import Bench, drain, totals

import spark_ckpt as ckpt

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("foreachBatch", 'to(DeltaSink(path, engine="spark", keys=["id"])) merges'),
        ("createOrReplaceTempView", 'frame.sparkSession.sql("select ... from x")'),
        ("writeStream", "to(sink)"),
        ("readStream", "job.source"),
        ("count", "agg("),
        ("distinct", "dropDuplicates()"),
        ("drop_duplicates", "dropDuplicates()"),
        ("limit", "number the rows"),
        ("orderBy", "order of the source"),
        ("show", "run.lastProgress"),
        ("cache", "static DataFrame"),
        ("crossJoin", "transform(lambda frame: frame.crossJoin(...))"),
        ("repartition", "transform(lambda frame: frame.repartition(...))"),
        ("v", 'stream["v"]'),
    ],
)
def test_a_name_of_sparks_that_a_stream_lacks_says_what_to_use(bench: Bench, name: str, hint: str) -> None:
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


@pytest.mark.parametrize("name", ["count", "applyInPandas", "transformWithStateInPandas", "pivot", "to"])
def test_a_name_of_sparks_that_a_grouped_stream_lacks_says_what_to_use(bench: Bench, name: str) -> None:
    grouped = bench.job().source("in", bench.source()).groupBy("k")
    with pytest.raises(ckpt.CkptError, match=f"a grouped stream has no '{name}'") as missing:
        getattr(grouped, name)
    assert "agg" in missing.value.hint


@pytest.mark.parametrize(
    ("name", "hint"), [("readStream", "job.source"), ("writeStream", "to(sink)"), ("stop", "start()")]
)
def test_a_name_of_sparks_that_a_job_lacks_says_what_to_use(bench: Bench, name: str, hint: str) -> None:
    with pytest.raises(ckpt.CkptError) as missing:
        getattr(bench.job(), name)
    assert hint in missing.value.hint


def test_a_name_that_nobody_knows_is_a_plain_attribute_error(bench: Bench) -> None:
    job = bench.job()
    stream = job.source("in", bench.source())
    for thing in (job, stream, stream.groupBy("k")):
        with pytest.raises(AttributeError, match="no_such_name") as missing:
            getattr(thing, "no_such_name")  # noqa: B009
        assert not isinstance(missing.value, ckpt.CkptError)
    assert copy.copy(stream).columns == ["k", "v"]


@pytest.mark.parametrize("given", ["rate", None, ckpt.Source])
def test_what_is_no_source_is_refused_by_name(bench: Bench, given: object) -> None:
    with pytest.raises(ckpt.CkptError, match="is no source") as refused:
        bench.job().source("r", given)
    assert refused.value.condition == "CKPT_SOURCE_INVALID"
    assert "FilesSource" in refused.value.hint


def test_what_is_no_sink_is_refused_by_name(bench: Bench) -> None:
    job = bench.job()
    stream = job.source("in", bench.source())
    with pytest.raises(ckpt.CkptError, match="'delta' is no sink"):
        stream.to("delta")
    with pytest.raises(ckpt.CkptError, match="'delta' is no sink"):
        stream.to("delta", name="out")
    with pytest.raises(ckpt.CkptError, match=r"FilesSource is no sink: it has no stage, publisher"):
        job.rejectsTo(bench.source())


def test_a_store_at_an_unknown_kind_of_url_is_refused_at_construction(bench: Bench) -> None:
    with pytest.raises(ckpt.CkptError, match="no store can be kept at foo://") as refused:
        ckpt.Job(bench.spark, "job", "foo://bucket/store")
    assert "s3://" in refused.value.hint


def test_an_epoch_may_be_named_by_its_number_as_text(bench: Bench) -> None:
    """As a command line gives it."""

    def job() -> ckpt.Job:
        job = bench.job()
        totals(job.source("in", bench.source())).to(bench.sink(), name="out")
        return job

    bench.put(("a", 1))
    first = drain(job()).epochs()[-1].epoch
    bench.put(("a", 10))
    drain(job())
    drain(job(), restore=str(first))
    assert bench.values() == [("a", 1), ("a", 11), ("a", 11)]


@pytest.mark.parametrize("setting", ["name", "outputMode"])
def test_an_aggregate_that_is_called_like_a_setting_is_told(bench: Bench, setting: str) -> None:
    grouped = bench.job().source("in", bench.source()).groupBy("k")
    with pytest.raises(ckpt.CkptError, match="'name' and 'outputMode' are settings, no aggregates") as refused:
        grouped.agg(**{setting: ckpt.count()})  # type: ignore[arg-type]
    assert "rename its column" in refused.value.hint


@pytest.mark.parametrize(
    "mistake",
    [
        lambda grouped: grouped.agg(F.sum("v").alias("t")),
        lambda grouped: grouped.agg("update", F.sum("v").alias("t")),
        lambda grouped: grouped.agg(n=F.count("*")),
        lambda grouped: grouped.agg({"v": "sum"}),
        lambda grouped: grouped.agg("update", "totals", n="count"),
    ],
    ids=["a Column", "a Column after the mode", "a named Column", "a dict", "a text"],
)
def test_aggregates_of_sparks_lead_to_those_of_a_job(bench: Bench, mistake: Callable[[Any], object]) -> None:
    grouped = bench.job().source("in", bench.source()).groupBy("k")
    with pytest.raises(ckpt.CkptError) as refused:
        mistake(grouped)
    assert refused.value.condition == "CKPT_GRAPH_INVALID"
    assert 'agg(total=ckpt.sum("value")' in refused.value.hint


def test_the_view_that_the_hint_names_is_read_inside_of_transform(bench: Bench) -> None:
    def doubled(frame: DataFrame) -> DataFrame:
        frame.createOrReplaceTempView("x")
        return frame.sparkSession.sql("select k, 2 * v as v from x")

    job = bench.job()
    job.source("in", bench.source()).transform(doubled).to(bench.sink())
    bench.put(("a", 2))
    drain(job)
    assert bench.values() == [("a", 4)]
