"""One program of three stages: `main` numbers the rows of each key, `second` checks the numbers, `third` checks them again.

python -m integration_tests.edges.three_stages STAGE... --root DIR --events FILE

`third` also has its own input, so that it has work while `second` is down.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.edges.two_programs import checked, numbered
from integration_tests.survival.driver import QUIET, Events, with_events

LAST = "k string, last long, total long, wrong long"


def checked_again(
    key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState
) -> Iterator[tuple[str, int, int, int]]:
    """Like `checked`, for the rows that it returns."""
    last, wrong = state.get if state.exists else (0, 0)
    for frame in frames:
        for number, total, before in zip(
            frame["last"].tolist(), frame["total"].tolist(), frame["wrong"].tolist(), strict=True
        ):
            wrong += number != last + 1 or before > 0
            last = number
            yield key[0], last, total, wrong
    state.update((last, wrong))


def described(spark: SparkSession, options: argparse.Namespace) -> ckpt.Job:
    """The program, not started."""
    root, never = options.root, GroupStateTimeout.NoTimeout
    settings = {"interval": options.interval, "key_groups": 4, "shuffle_partitions": 2, "local_dir": root}
    settings |= {"protocol": options.protocol, "line_interval": "1 second", "trigger": "300 ms"}
    job = ckpt.Job(spark, "three", store=str(root / "three"), **settings)
    rows = job.source("in", FilesSource(str(root / "in"), "json", "k string, v long", maxFilesPerTrigger=1))
    columns = "k string, number long, v long"
    edge = rows.groupBy("k").applyInPandasWithState(numbered, columns, "count long", "append", never, "number")
    edge = edge.through("numbered", stage="second")
    state = "last long, total long, wrong long"
    totals = edge.groupBy("k").applyInPandasWithState(checked, LAST, state, "append", never, "check")
    totals.to(DeltaSink(str(root / "seconds")), name="seconds")
    others = job.source("other", FilesSource(str(root / "other"), "json", LAST, maxFilesPerTrigger=1))
    joined = totals.through("checked", stage="third").union(others)
    ends = joined.groupBy("k").applyInPandasWithState(
        checked_again, LAST, "last long, wrong long", "append", never, "again"
    )
    ends.to(DeltaSink(str(root / "thirds")), name="thirds")
    return job


def main() -> int:
    options = parsed()

    def run(events: Events) -> int:
        spark = ckpt.session("three", master="local[2]", conf=QUIET)
        spark.sparkContext.setLogLevel("ERROR")
        job = described(spark, options)
        job.addListener(events)
        job.start_stages(options.stages, availableNow=options.available_now).awaitTermination()
        return 0

    return with_events(options.events, run)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The program's options, from the command line unless `arguments` are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*")
    parser.add_argument("--root", required=True, type=Path)
    parser.add_argument("--events", required=True, type=Path)
    parser.add_argument("--interval", default="1 second")
    parser.add_argument("--protocol", default="independent")
    parser.add_argument("--available-now", action="store_true")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
