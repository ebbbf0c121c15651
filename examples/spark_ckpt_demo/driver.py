"""The demo's job: an ordinary program, started as a process of its own.

python -m spark_ckpt_demo.driver --store DIR --input DIR --table DIR
python -m spark_ckpt_demo.driver --store DIR --kafka HOST:PORT --input TOPIC --table TOPIC
"""

from __future__ import annotations

import argparse
import logging
import math
import sys
from collections.abc import Hashable, Iterable, Iterator

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

import spark_ckpt as ckpt
from spark_ckpt_demo.flights import SCHEMA

LATE_MINUTES = 15
"""Delay in minutes from which a departure counts as late, as in the statistics of the FAA."""

STATE = "flights long, departures long, delay_minutes long, late_chain long, longest_late_chain long"
OUTPUT = (
    "departure string, carrier string, flight int, origin string, tailnum string, "
    "flights long, mean_delay double, late_chain long, longest_late_chain long"
)


def running_figures(
    key: tuple[Hashable, ...], frames: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[tuple[object, ...]]:
    """Yield one row for each flight of one aircraft: its figures as of this flight.

    Requires every flight once and in order.
    """
    flights, departures, delay, chain, longest = state.getOption or (0, 0, 0, 0, 0)
    for frame in frames:
        columns = (frame[name] for name in ("departure", "carrier", "flight", "origin", "dep_delay"))
        for departure, carrier, flight, origin, minutes in zip(*columns, strict=True):
            flights += 1
            if not math.isnan(minutes):  # a cancelled flight neither ends a chain nor makes it longer
                departures += 1
                delay += int(minutes)
                chain = chain + 1 if minutes >= LATE_MINUTES else 0
                longest = max(longest, chain)
            mean = delay / departures if departures else None
            yield departure, carrier, flight, origin, key[0], flights, mean, chain, longest
    state.update((flights, departures, delay, chain, longest))


JOB, OPERATOR = "flights", "aircraft"
FILES_PER_BATCH = 15
RECORDS_PER_BATCH = 15_000


def main() -> int:
    """Run the job until all input is processed and published. Return the exit code."""
    options = _options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    # py4j reports each call from the JVM at level INFO
    logging.getLogger("py4j").setLevel(logging.WARNING)
    quiet = {"spark.ui.enabled": "false"}
    spark = ckpt.session("spark-ckpt-demo", *(("kafka",) if options.kafka else ()), conf=quiet)
    spark.sparkContext.setLogLevel("WARN")
    try:
        run = _job(spark, options).start(restore=options.restore, availableNow=True)
        if options.progress:
            run.show()
        run.awaitTermination()
    except ckpt.CkptError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    finally:
        spark.stop()
    return 0


def _job(spark: SparkSession, options: argparse.Namespace) -> ckpt.Job:
    # many epochs stay, so that the demo can restore one from the middle of the year
    job = ckpt.Job(spark, JOB, store=options.store, interval="2 seconds", keep_epochs=200)
    figures = (
        _flights(job, options)
        .groupBy("tailnum")
        .applyInPandasWithState(running_figures, OUTPUT, STATE, "append", GroupStateTimeout.NoTimeout, name=OPERATOR)
    )
    _output(figures, options)
    return job


def _flights(job: ckpt.Job, options: argparse.Namespace) -> ckpt.Stream:
    if options.kafka:
        # in the branch, so that a demo with files needs no Kafka connector
        from spark_ckpt_kafka import KafkaSource

        limits = {"maxOffsetsPerTrigger": RECORDS_PER_BATCH}
        records = job.source("flights", KafkaSource(options.kafka, options.input, options=limits))
        text = records.select(F.col("value").cast("string").alias("value"))
        return text.parse("value", SCHEMA, alias="flight").select("flight.*")
    from spark_ckpt_files import FilesSource

    return job.source("flights", FilesSource(options.input, "parquet", SCHEMA, maxFilesPerTrigger=FILES_PER_BATCH))


def _output(figures: ckpt.Stream, options: argparse.Namespace) -> None:
    if options.kafka:
        from spark_ckpt_kafka import KafkaSink

        records = figures.select(F.col("tailnum").alias("key"), F.to_json(F.struct("*")).alias("value"))
        records.to(KafkaSink(options.kafka, options.table), name=options.sink)
    else:
        from spark_ckpt_delta import DeltaSink

        figures.to(DeltaSink(options.table), name=options.sink)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", required=True, help="where the job keeps its epochs")
    parser.add_argument("--input", required=True, help="folder of Parquet files, or topic")
    parser.add_argument("--table", required=True, help="Delta table, or topic")
    parser.add_argument("--sink", default="figures", help="the sink's name in the store")
    parser.add_argument("--kafka", help="Kafka servers; without it files and Delta")
    parser.add_argument("--restore", default="latest", type=_target, help="an epoch's number or a savepoint's name")
    parser.add_argument("--progress", action="store_true", help="show rows/s, lag, epoch and alignment on stdout")
    return parser.parse_args()


def _target(text: str) -> str | int:
    return int(text) if text.isdecimal() else text


if __name__ == "__main__":
    sys.exit(main())
