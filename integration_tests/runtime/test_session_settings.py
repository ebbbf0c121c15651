"""A job emits the same rows with any settings of the session; the session's own settings stay unchanged."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
from pyspark import cloudpickle
from pyspark.sql import functions as F
from runtime_kit import Bench, drain

import spark_ckpt as ckpt
from spark_ckpt.errors import ConfigInvalid

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder
SQL = "spark.sql."
STATE = f"{SQL}streaming.stateStore."
ROCKS_DB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
SETTINGS = {
    "large types": {f"{SQL}execution.arrow.useLargeVarTypes": "true"},
    "RocksDB": {f"{STATE}providerClass": ROCKS_DB},
    "state files with ids": {f"{STATE}providerClass": ROCKS_DB, f"{STATE}checkpointFormatVersion": "2"},
    "old layout of states": {f"{SQL}streaming.flatMapGroupsWithState.stateFormatVersion": "1"},
    "new offset log": {f"{SQL}streaming.offsetLog.formatVersion": "2"},
    "no batch without rows": {f"{SQL}streaming.noDataMicroBatches.enabled": "false"},
    "times without a zone": {f"{SQL}timestampType": "TIMESTAMP_NTZ"},
    "upper and lower case": {f"{SQL}caseSensitive": "true"},
    "no ANSI": {f"{SQL}ansi.enabled": "false"},
    "strict ANSI": {f"{SQL}ansi.enforceReservedKeywords": "true", f"{SQL}ansi.doubleQuotedIdentifiers": "true"},
    "regular expressions for names": {f"{SQL}parser.quotedRegexColumnNames": "true"},
    "Java's new dates": {f"{SQL}datetime.java8API.enabled": "true"},
    "bytearrays": {f"{SQL}execution.pyspark.binaryAsBytes": "false"},
    "compressed Arrow": {f"{SQL}execution.arrow.compression.codec": "zstd"},
    "one record per Arrow batch": {
        f"{SQL}execution.arrow.maxRecordsPerBatch": "1",
        f"{SQL}execution.arrow.maxRecordsPerOutputBatch": "1",
    },
    "structs as dicts": {f"{SQL}execution.pandas.structHandlingMode": "dict"},
    "no adaptive plans": {f"{SQL}adaptive.enabled": "false"},
    "generated code": {f"{SQL}codegen.wholeStage": "true", f"{SQL}codegen.factoryMode": "CODEGEN_ONLY"},
    "another zone": {f"{SQL}session.timeZone": "Asia/Kathmandu"},
    "no progress kept": {f"{SQL}streaming.numRecentProgressUpdates": "1"},
}
TOGETHER = (
    "generated code", "large types", "state files with ids", "old layout of states", "new offset log",
    "no batch without rows", "times without a zone", "upper and lower case", "no ANSI", "regular expressions for names",
    "Java's new dates", "bytearrays", "compressed Arrow", "one record per Arrow batch", "structs as dicts",
    "another zone",
)  # fmt: skip
"""In the gate. If one fails, `-m long` finds the setting."""
CASES = [
    pytest.param({key: value for name in TOGETHER for key, value in SETTINGS[name].items()}, id="most settings"),
    *(pytest.param(each, id=name, marks=pytest.mark.long) for name, each in SETTINGS.items()),
]


@pytest.fixture
def set_to(bench: Bench, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    conf = bench.spark.conf
    before = {key: conf.get(key, None) for key in request.param}
    for key, value in request.param.items():
        conf.set(key, value)
    yield request.param
    for key, value in before.items():
        conf.unset(key) if value is None else conf.set(key, value)


def texts_so_far(key, frames, state):
    """The key's texts so far, as text and as bytes."""
    seen = state.get[0] if state.exists else ""
    seen += "".join(text for frame in frames for text in frame["text"])
    state.update((seen, seen.encode()))
    yield key[0], seen, state.get[1]


def rows_seen(key, frames, state):
    """Number of rows of both inputs that the key has had."""
    seen = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames.values())
    state.update((seen,))
    yield key[0], seen


@pytest.mark.parametrize("set_to", [{f"{SQL}streaming.queryEvolution.enableSourceEvolution": "true"}], indirect=True)
def test_a_job_refuses_sparks_source_evolution_and_names_the_setting(bench: Bench, set_to: dict[str, str]) -> None:
    (key,) = set_to
    with pytest.raises(ConfigInvalid) as refused:
        bench.job()
    assert refused.value.context == {"setting": key}
    bench.spark.conf.set(key, "false")  # the error's advice
    bench.put(("a", 1))
    job = bench.job()
    job.source("in", bench.source()).to(bench.sink())
    drain(job)
    assert bench.values() == [("a", 1)]


@pytest.mark.parametrize("set_to", CASES, indirect=True)
def test_a_job_emits_the_same_rows_under_a_setting_of_the_session(bench: Bench, set_to: dict[str, str]) -> None:
    bench.schema = "k string, text string, at timestamp_ltz"
    day_us = 86_400_000_000
    bench.put(("a", "x", day_us), ("b", "y", day_us))
    bench.put(("a", "z", 3 * day_us))
    job = bench.job()
    plain = job.source("in", bench.source())
    rows = plain.withWatermark("at", "1 minute")
    rows.groupBy("k").applyInPandasWithState(
        texts_so_far, "k string, text string, raw binary", "text string, raw binary", "append", "NoTimeout"
    ).to(bench.sink("texts"), name="texts")
    windows = rows.groupBy("k", F.window("at", "1 hour")).agg(outputMode="each row", last=ckpt.max("text"))
    windows.select("k", "last").to(bench.sink("windows"), name="windows")
    both = job.cogroup({"timed": rows.groupBy("k"), "others": plain.select("k", "text").groupBy("k")})
    both.applyInPandasWithState(rows_seen, "k string, n long", "n long", "append", "EventTimeTimeout").to(
        bench.sink("counts"), name="counts"
    )

    drain(job)

    assert bench.values("texts") == [("a", "x", b"x"), ("a", "xz", b"xz"), ("b", "y", b"y")]
    assert bench.values("windows") == [("a", "x"), ("a", "z"), ("b", "y")]
    assert bench.values("counts")[-1] == ("b", 2)
    assert {key: bench.spark.conf.get(key) for key in set_to} == set_to
