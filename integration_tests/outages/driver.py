"""A job as a separate program: JSON files, one keyed operator, a Delta table.

python -m integration_tests.outages.driver --input DIR --table DIR --store DIR --events FILE

The table gets one row per input row: its number, its key, and its number within the key.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import pandas as pd
from pyspark import cloudpickle
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupState
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.survival.driver import QUIET, Events
from spark_ckpt.errors import StopTimedOut

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers cannot import from the tests' folder

HANGS = "hangs"
"""Rows of this key make the operator hang, with the option for it."""


class OutageEvents(Events):
    """Writes outages, too."""

    def onOutage(self, event: ckpt.OutageEvent) -> None:
        self.write("outage", **asdict(event))


def main() -> int:
    options = parsed()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("py4j").setLevel(logging.WARNING)
    events = OutageEvents(options.events)
    try:
        return _run(options, events)
    except StopTimedOut:
        raise  # as a program without error handling does
    except ckpt.CkptError as error:
        events.write("failed", condition=error.condition, message=str(error))
        return error.exit_code


def _run(options: argparse.Namespace, events: Events) -> int:
    spark = _session(options)
    spark.sparkContext.setLogLevel("OFF")
    run_on(spark, options, events)
    return 0


def run_on(spark: SparkSession, options: argparse.Namespace, events: Events) -> None:
    """Run the job from its start to its end."""
    job = ckpt.Job(
        spark,
        "outages",
        store=options.store,
        interval="500 ms",
        key_groups=2,
        max_failed_epochs=1,
        stop_timeout=options.stop_timeout,
        store_patience="5 minutes",
        local_dir=options.local_dir,
    )
    rows = job.source("in", FilesSource(options.input, "json", "n long, k string", maxFilesPerTrigger=1))
    function = hanging_after(options.hangs) if options.hangs else counting
    counted = rows.groupBy("k").applyInPandasWithState(
        function, "n long, k string, nth long", "count long", "append", "NoTimeout", "counts"
    )
    counted.to(DeltaSink(options.table), name="out")
    job.addListener(events)
    run = job.start(availableNow=options.available_now)
    run.awaitTermination()
    events.write("done", progress=run.lastProgress)


def _session(options: argparse.Namespace) -> SparkSession:
    conf = QUIET | {"spark.sql.shuffle.partitions": "2"}
    if not options.plain_session:
        return ckpt.session("outages", master="local[2]", conf=conf)
    builder = SparkSession.builder.appName("outages").master("local[2]")
    for key, value in conf.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def counting(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[tuple[int, str, int]]:
    (count,) = state.get if state.exists else (0,)
    for frame in frames:
        for number in frame["n"].tolist():
            count += 1
            yield number, key[0], count
    state.update((count,))


def hanging_after(reached: Path) -> object:
    """`counting`, except for one key: it writes a file and never returns."""

    def hanging(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[tuple[int, str, int]]:
        if key[0] == HANGS:
            reached.touch()
            time.sleep(3600)
        yield from counting(key, frames, state)

    return hanging


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The program's options, from the command line unless `arguments` are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("--input", "--table", "--store"):
        parser.add_argument(name, required=True)
    parser.add_argument("--events", required=True, type=Path)
    parser.add_argument("--local-dir", type=Path)
    parser.add_argument("--stop-timeout", default="60 seconds")
    parser.add_argument("--hangs", type=Path, help="file that the operator writes before it hangs")
    parser.add_argument("--plain-session", action="store_true", help="the user's own, not spark_ckpt.session")
    parser.add_argument("--available-now", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
