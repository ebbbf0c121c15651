"""Modules that a Python worker has loaded when it runs a job's functions: none of the driver's."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

import pandas as pd
import pytest
from pyspark import cloudpickle
from runtime_kit import Bench, drain

pytestmark = pytest.mark.spark
cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder

DRIVERS = (
    "spark_ckpt.api.job", "spark_ckpt.api.stream", "spark_ckpt.driver.run", "spark_ckpt.driver.supervisor",
    "spark_ckpt.driver.incarnation", "spark_ckpt.driver.coordinator", "spark_ckpt.driver.publishing",
    "spark_ckpt.driver.query.stage_query", "spark_ckpt.driver.query.control_source", "spark_ckpt.driver.query.warm_up",
    "spark_ckpt.store.epoch_log", "spark_ckpt.store.store", "spark_ckpt.spark_internals.jvm",
    "spark_ckpt_files.source", "spark_ckpt_delta.sink", "typer", "rich",
)  # fmt: skip


def loaded(key: tuple[object, ...], frames: object, state: object) -> Iterator[tuple[object, object]]:
    """Modules of the operator's worker, and those that Spark imports for the first update of a state."""
    before = set(sys.modules)
    state.update((1,))
    yield (key[0], json.dumps(sorted(sys.modules)), json.dumps(sorted(sys.modules.keys() - before)))


def loaded_behind(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """The same of a worker after the operator, with the report of the operator's worker."""
    for frame in batches:
        yield frame.assign(behind=json.dumps(sorted(sys.modules)))


def loads_a_store(batches: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """As the source of an edge does, which another test of the session may have read."""
    import spark_ckpt.store.store  # noqa: F401

    yield from batches


def test_the_workers_of_a_job_load_nothing_of_the_driver(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.spark.range(1).mapInPandas(loads_a_store, "id long").collect()
    # Spark keeps workers for the next functions of the same environment, with all modules that they have loaded.
    monkeypatch.setitem(bench.spark.sparkContext.environment, "WORKERS_OF", "this test")
    bench.put(("a", 1))
    job = bench.job()
    keyed = job.source("in", bench.source()).groupBy("k")
    rows = keyed.applyInPandasWithState(loaded, "k string, inside string, more string", "n int", "append", "NoTimeout")
    rows.mapInPandas(loaded_behind, "k string, inside string, more string, behind string").to(bench.sink())
    drain(job)
    [row] = bench.rows()
    inside, behind = set(json.loads(row["inside"])), set(json.loads(row["behind"]))
    assert "spark_ckpt.tasks.group_host" in inside
    assert json.loads(row["more"]) == [], "each worker would have to import them"
    assert sorted((inside | behind) & set(DRIVERS)) == []
