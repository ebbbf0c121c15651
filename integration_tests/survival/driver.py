"""The job under test, a separate program as a user would submit it. Kafka topic, one keyed operator, Kafka topic.

python -m integration_tests.survival.driver --servers HOST:PORT --input TOPIC --output TOPIC --store DIR --events FILE

Events of the run are appended to the events file, one JSON object per line, so that the parent can wait for them.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd
from pyspark.sql import Column, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from spark_ckpt_kafka import KafkaSink, KafkaSource

import spark_ckpt as ckpt

RECORD = "k string, v long, n long"
WIDE = f"{RECORD}, size int, pad string"
OUTPUT = "k string, n long, count long, total long"
QUIET = {
    "spark.ui.enabled": "false",
    "spark.sql.streaming.stopTimeout": "20s",
}


class Events(ckpt.RunListener):
    """Writes a run's events to a file."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a", buffering=1)

    def close(self) -> None:
        self._file.close()

    def write(self, event: str, **fields: object) -> None:
        self._file.write(json.dumps({"event": event, **fields}) + "\n")

    def onIncarnationStarted(self, event: ckpt.IncarnationEvent) -> None:
        self.write("started", incarnation=event.incarnation, base=event.base, reason=event.reason)

    def onEpochCommitted(self, event: ckpt.EpochEvent) -> None:
        self.write("committed", incarnation=event.incarnation, epoch=event.epoch, **event.detail)

    def onEpochAborted(self, event: ckpt.EpochEvent) -> None:
        self.write("aborted", incarnation=event.incarnation, epoch=event.epoch, **event.detail)

    def onEpochPublished(self, event: ckpt.EpochEvent) -> None:
        self.write("published", incarnation=event.incarnation, epoch=event.epoch, **event.detail)

    def onStandby(self, event: ckpt.StandbyEvent) -> None:
        self.write("standby", what=event.what, lease_of=event.lease_of, epoch=event.epoch, why=event.why)

    def onMaintenance(self, event: ckpt.MaintenanceEvent) -> None:
        self.write(
            "maintenance", what=event.what, token=event.token, standby=event.standby, epoch=event.epoch, why=event.why
        )

    def onHandover(self, event: ckpt.IncarnationEvent) -> None:
        self.write("handover", incarnation=event.incarnation, base=event.base)

    def onIncarnationEnded(self, event: ckpt.IncarnationEvent) -> None:
        self.write("ended", incarnation=event.incarnation, base=event.base, reason=event.reason)


def main() -> int:
    options = parsed()
    return with_events(options.events, lambda events: _run(options, events))


def with_events(path: Path, run: Callable[[Events], int]) -> int:
    """Run a program and write its events to the file; return its exit code, or that of its error."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    logging.getLogger("kafka").setLevel(logging.ERROR)
    events = Events(path)
    try:
        return run(events)
    except ckpt.CkptError as error:
        events.write("failed", condition=error.condition, message=str(error))
        sys.stderr.write(f"{error}\n")
        return error.exit_code


def _run(options: argparse.Namespace, events: Events) -> int:
    spark = ckpt.session("survival", "kafka", master=options.master, conf=QUIET)
    spark.sparkContext.setLogLevel("ERROR")
    try:
        run_on(spark, options, events)
    finally:
        spark.stop()
    return 0


def run_on(spark: SparkSession, options: argparse.Namespace, events: Events) -> None:
    """Run the job from its start to its end."""
    job = described(spark, options)
    job.addListener(events)
    run = job.start(restore=options.restore, availableNow=options.available_now)
    try:
        run.awaitTermination()
    finally:
        events.write("done", progress=run.lastProgress)


def described(spark: SparkSession, options: argparse.Namespace) -> ckpt.Job:
    """The job, not started."""
    job = ckpt.Job(
        spark,
        "survival",
        store=options.store,
        interval=options.interval,
        standby_interval="200 milliseconds",
        lease=options.lease,
        takeover=options.takeover or None,
        standby=options.standby or None,
        send_early=options.send_early or None,
        shuffle_partitions=options.shuffle_partitions,
        local_dir=options.local_dir,
        key_groups=8,
    )
    limits = {"maxOffsetsPerTrigger": options.max_offsets}
    records = job.source("records", KafkaSource(options.servers, options.input, options=limits))
    parsed = records.parse("value", WIDE if options.wide else RECORD, alias="r", on_error=options.on_error).select(
        "r.*"
    )
    rows = _operate(parsed, options)
    record = rows.select(F.col("k").alias("key"), _json(rows.columns).alias("value"))
    record.to(KafkaSink(options.servers, options.output, lanes=options.lanes), name="out")
    return job


def _operate(parsed: ckpt.Stream, options: argparse.Namespace) -> ckpt.Stream:
    if options.operator == "none":
        return parsed
    grouped = parsed.groupBy("k")
    if options.operator == "agg":
        return grouped.agg("each row", "sums", count=ckpt.count(), total=ckpt.sum("v"))
    function = _noting_pids(options.pids) if options.pids else running
    no_timeout = GroupStateTimeout.NoTimeout
    return grouped.applyInPandasWithState(function, OUTPUT, "count long, total long", "append", no_timeout, "sums")


def running(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[tuple[str, int, int, int]]:
    """One output per input: the record's number, the count of the key's records, their sum."""
    count, total = state.get if state.exists else (0, 0)
    for frame in frames:
        for number, value in zip(frame["n"].tolist(), frame["v"].tolist(), strict=True):
            count, total = count + 1, total + value
            yield key[0], number, count, total
    state.update((count, total))


def _noting_pids(folder: Path) -> object:
    """`running`, which also records the id of its process."""

    def noting(
        key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState
    ) -> Iterator[tuple[str, int, int, int]]:
        (folder / str(os.getpid())).touch()
        yield from running(key, frames, state)

    return noting


def _json(columns: list[str]) -> Column:
    return F.to_json(F.struct(*columns))


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The program's options, from the command line unless `arguments` are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", required=True)
    parser.add_argument("--input", required=True, help="topic")
    parser.add_argument("--output", required=True, help="topic")
    parser.add_argument("--store", required=True)
    parser.add_argument("--events", required=True, type=Path)
    parser.add_argument("--operator", choices=("agg", "tuples", "none"), default="agg")
    parser.add_argument("--wide", action="store_true", help="records carry long texts")
    parser.add_argument("--on-error", choices=("fail", "drop"), default="fail")
    parser.add_argument("--interval", default="1 second")
    parser.add_argument("--lease", default="30 seconds")
    parser.add_argument("--takeover", action="store_true")
    parser.add_argument("--standby", action="store_true")
    parser.add_argument("--send-early", action="store_true")
    parser.add_argument("--max-offsets", type=int, default=4000)
    parser.add_argument("--shuffle-partitions", type=int)
    parser.add_argument("--lanes", type=int, default=1)
    parser.add_argument("--master", default="local[2]")
    parser.add_argument("--restore", default="latest", type=lambda text: int(text) if text.isdecimal() else text)
    parser.add_argument("--available-now", action="store_true")
    parser.add_argument("--pids", type=Path, help="folder in which the operator records the ids of its processes")
    parser.add_argument("--local-dir", type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
