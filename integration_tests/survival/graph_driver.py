"""A job of several operators as a separate program: JSON files, a graph, a Delta table."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pyspark.sql import SparkSession
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.survival.driver import QUIET, Events, with_events
from integration_tests.survival.graphs import SHAPES

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def run(options: argparse.Namespace, events: Events) -> int:
    conf = QUIET | ({"spark.sql.streaming.stateStore.providerClass": ROCKSDB} if options.rocksdb else {})
    spark = ckpt.session("graphs", master=options.master, conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        run_on(spark, options, events)
    finally:
        spark.stop()
    return 0


def run_on(spark: SparkSession, options: argparse.Namespace, events: Events) -> None:
    """Run the job from its start to its end."""
    job = ckpt.Job(
        spark,
        "graphs",
        store=options.store,
        interval="1 second",
        local_dir=options.local_dir,
        key_groups=4,
        trace_dir=options.trace_dir,
        max_unpublished=options.max_unpublished,
        lease=options.lease,
        takeover=options.takeover or None,
    )
    inputs = [
        job.source(
            path.name, FilesSource(str(path), "json", "k string, at long", maxFilesPerTrigger=options.batch_files)
        )
        for path in options.input
    ]
    last = SHAPES[options.shape](job, *inputs, sink=lambda name: DeltaSink(f"{options.table}-{name}"))
    last.to(DeltaSink(options.table), name="out")
    job.addListener(events)
    job.start(availableNow=options.available_now).awaitTermination()


def main() -> int:
    options = parsed()
    return with_events(options.events, lambda events: run(options, events))


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The program's options, from the command line unless `arguments` are given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", action="append", required=True, type=Path)
    for name in ("--table", "--store"):
        parser.add_argument(name, required=True)
    for name in ("--events", "--local-dir"):
        parser.add_argument(name, required=True, type=Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), required=True)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--trace-dir", type=Path, help="folder for the drivers' traces")
    parser.add_argument("--max-unpublished", type=int)
    parser.add_argument("--batch-files", type=int, default=2)
    parser.add_argument("--lease", default="30 seconds")
    parser.add_argument("--takeover", action="store_true")
    parser.add_argument("--available-now", action="store_true")
    parser.add_argument("--rocksdb", action="store_true", help="Spark's state store of this session")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
