"""Triggered runs of declarative pipelines in one application, whose catalog knows their tables from one run to the next.

Reads lines `SPEC`, a specification, and answers each with the line `done` after a run like that of `spark-pipelines run`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from pyspark.pipelines.cli import load_pipeline_spec, register_definitions
from pyspark.pipelines.spark_connect_graph_element_registry import SparkConnectGraphElementRegistry
from pyspark.pipelines.spark_connect_pipeline import create_dataflow_graph, handle_pipeline_events, start_run
from pyspark.sql import SparkSession


def run(spark: SparkSession, path: Path) -> None:
    """Like `pyspark.pipelines.cli.run`, which stops the session at its end."""
    spec = load_pipeline_spec(path)
    graph = create_dataflow_graph(spark, spec.catalog, spec.database, spec.configuration)
    register_definitions(path, SparkConnectGraphElementRegistry(spark, graph), spec, spark, graph)
    events = start_run(
        spark, graph, full_refresh=[], full_refresh_all=False, refresh=[], dry=False, storage=spec.storage
    )
    handle_pipeline_events(events)


def rest() -> None:
    """Unload the state, as an application that ends does."""
    server = SparkSession._instantiatedSession
    server._jvm.org.apache.spark.sql.execution.streaming.state.StateStore.stop()


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr
    session = SparkSession.builder.remote("local[2]").getOrCreate()
    for line in sys.stdin:
        run(session, Path(line.strip()))
        rest()
        print("done", file=answers, flush=True)
