"""The Delta job under test: JSON files in a folder, running figures per key, a Delta table (append, or MERGE by key)."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.survival.driver import QUIET, RECORD, Events, with_events


def run(options: argparse.Namespace, events: Events) -> int:
    merging = options.mode == "merge"
    jars = ("delta",) if merging else ()
    spark = ckpt.session("delta-campaign", *jars, master="local[2]", conf=QUIET)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        job = ckpt.Job(
            spark, "delta", store=options.store, interval="1 second", local_dir=options.local_dir, key_groups=4
        )
        at_once = 100 if options.available_now else 2  # drivers that are killed leave many files to the last one
        rows = job.source("rows", FilesSource(options.input, "json", RECORD, maxFilesPerTrigger=at_once))
        mode = "update" if merging else "each row"
        sums = rows.groupBy("k").agg(mode, "sums", count=ckpt.count(), total=ckpt.sum("v"))
        sink = DeltaSink(options.table, engine="spark", keys=["k"]) if merging else DeltaSink(options.table)
        sums.to(sink, name="out")
        job.addListener(events)
        job.start(availableNow=options.available_now).awaitTermination()
    finally:
        spark.stop()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("--input", "--table", "--store"):
        parser.add_argument(name, required=True)
    parser.add_argument("--events", required=True, type=Path)
    parser.add_argument("--local-dir", required=True, type=Path)
    parser.add_argument("--mode", choices=("append", "merge"), default="append")
    parser.add_argument("--available-now", action="store_true")
    options = parser.parse_args()
    return with_events(options.events, lambda events: run(options, events))


if __name__ == "__main__":
    sys.exit(main())
