"""Two jobs, a program each: `orders` numbers the rows of each key, `totals` checks the numbers and keeps them in a table.

python -m integration_tests.edges.two_programs orders|totals --root DIR --events FILE [--protocol index | --servers S --topic T]

An edge joins them, or a topic of Kafka.

The numbers are the oracle: a row that the edge loses or duplicates breaks a key's sequence.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource
from spark_ckpt_kafka import KafkaSink, KafkaSource

import spark_ckpt as ckpt
from integration_tests.survival.driver import QUIET, Events, with_events
from spark_ckpt.api.stream import Stream


def numbered(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[tuple[str, int, int]]:
    """Number the rows of a key 1, 2, 3, ..."""
    [count] = state.get if state.exists else (0,)
    for frame in frames:
        for value in frame["v"].tolist():
            count += 1
            yield key[0], count, value
    state.update((count,))


def checked(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[tuple[str, int, int, int]]:
    """The newest number of a key, the sum of its values, and the count of numbers out of sequence."""
    last, total, wrong = state.get if state.exists else (0, 0, 0)
    for frame in frames:
        for number, value in zip(frame["number"].tolist(), frame["v"].tolist(), strict=True):
            wrong += number != last + 1
            last, total = number, total + value
            yield key[0], last, total, wrong
    state.update((last, total, wrong))


def described(spark: SparkSession, options: argparse.Namespace) -> ckpt.Job:
    """The program's job, not started."""
    root = options.root
    settings = {"interval": options.interval, "key_groups": 4, "shuffle_partitions": 2, "local_dir": root}
    settings["trigger"] = "300 ms"  # each poll of an edge makes a request to another process
    if options.protocol == "index":
        settings["line_interval"] = "1 second"
    job = ckpt.Job(spark, options.role, store=str(root / options.role), protocol=options.protocol, **settings)
    if options.role == "orders":
        rows = job.source("in", FilesSource(str(root / "in"), "json", "k string, v long", maxFilesPerTrigger=1))
        columns, state = "k string, number long, v long", "count long"
        edge = rows.groupBy("k").applyInPandasWithState(
            numbered, columns, state, "append", GroupStateTimeout.NoTimeout, "number"
        )
        if options.topic:
            record = edge.select(F.col("k").alias("key"), F.to_json(F.struct("k", "number", "v")).alias("value"))
            record.to(KafkaSink(options.servers, options.topic), name="totals")
        else:
            edge.to(ckpt.Edge("totals"))
    else:
        rows = _received(job, options)
        columns, state = "k string, last long, total long, wrong long", "last long, total long, wrong long"
        totals = rows.groupBy("k").applyInPandasWithState(
            checked, columns, state, "append", GroupStateTimeout.NoTimeout, "check"
        )
        totals.to(DeltaSink(str(root / "table")), name="table")
    return job


def _received(job: ckpt.Job, options: argparse.Namespace) -> Stream:
    if options.topic:
        records = job.source("totals", KafkaSource(options.servers, options.topic))
        return records.parse("value", "k string, number long, v long", alias="r").select("r.*")
    return job.source("totals", ckpt.Edge("totals", str(options.root / "orders"), job="orders", maxFilesPerTrigger=3))


def run_on(spark: SparkSession, options: argparse.Namespace, events: Events) -> None:
    """Run the job from its start to its end."""
    job = described(spark, options)
    job.addListener(events)
    run = job.start(restore=options.restore, availableNow=options.available_now)
    run.awaitTermination()


def main() -> int:
    options = parsed()

    def run(events: Events) -> int:
        spark = ckpt.session(options.role, *(["kafka"] if options.topic else []), master="local[2]", conf=QUIET)
        spark.sparkContext.setLogLevel("ERROR")
        run_on(spark, options, events)
        return 0

    return with_events(options.events, run)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The program's options, from the command line unless `arguments` are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("role", choices=("orders", "totals"))
    parser.add_argument("--root", required=True, type=Path)
    parser.add_argument("--events", required=True, type=Path)
    parser.add_argument("--interval", default="1 second")
    parser.add_argument("--protocol", default="independent")
    parser.add_argument("--servers", default="")
    parser.add_argument("--topic", default="")
    parser.add_argument("--restore", default="latest", type=lambda text: int(text) if text.isdecimal() else text)
    parser.add_argument("--available-now", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
