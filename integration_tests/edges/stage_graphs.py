"""Programs of several stages, as a pipeline, a diamond with a join, or a loop; each stage keeps a Delta table of its own.

python -m integration_tests.edges.stage_graphs STAGE... --graph diamond --protocol unaligned --root DIR --events FILE

`main` numbers the rows of each key 1, 2, 3, ...; every other stage counts too, and compares. A row that an edge loses or duplicates
breaks a sequence, in the tables and in the states.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.survival.driver import QUIET, Events, with_events
from spark_ckpt.api.stream import Stream

ROW = "k string, v long, hop int, number long, wrong long"
STATE = "count long, first long, wrong long"
Row = tuple[str, int, int, int, int]


def follow(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[Row]:
    """Number the rows of a key that have no number, and compare the others. `first`: rows that have not been in a loop yet."""
    count, first, wrong = state.get if state.exists else (0, 0, 0)
    for frame in frames:
        for value, hop, number in zip(
            frame["v"].tolist(), frame["hop"].tolist(), frame["number"].tolist(), strict=True
        ):
            count, first = count + 1, first + (hop == 0)
            wrong += number not in (0, count)
            yield key[0], value, hop, count, wrong
    state.update((count, first, wrong))


def match(key: tuple[str], frames: Iterable[pd.DataFrame], state: GroupState) -> Iterator[Row]:
    """Join two streams by key and number. `count`: rows of the left one (`hop` 0), `first`: of the right one (`hop` 1)."""
    left, right, wrong = state.get if state.exists else (0, 0, 0)
    for frame in frames:
        for value, side, number in zip(
            frame["v"].tolist(), frame["hop"].tolist(), frame["number"].tolist(), strict=True
        ):
            matched = min(left, right)
            left, right = left + (side == 0), right + (side == 1)
            wrong += number != (right if side else left)
            if min(left, right) > matched:
                yield key[0], value, 0, number, wrong
    state.update((left, right, wrong))


def _operator(stream: Stream, stage: str, function: Callable[..., Iterator[Row]] = follow) -> Stream:
    never = GroupStateTimeout.NoTimeout
    return stream.groupBy("k").applyInPandasWithState(function, ROW, STATE, "append", never, stage)


def pipeline(job: ckpt.Job, rows: Stream) -> dict[str, Stream]:
    """`main`, then `second`, then `third`."""
    main = _operator(rows, "main")
    second = _operator(main.through("numbered", stage="second"), "second")
    return {"main": main, "second": second, "third": _operator(second.through("checked", stage="third"), "third")}


def diamond(job: ckpt.Job, rows: Stream) -> dict[str, Stream]:
    """`main` to `left` and `right`, which `join` joins."""
    main = _operator(rows, "main")
    left = _operator(main.through("to-left", stage="left"), "left")
    right = _operator(main.through("to-right", stage="right"), "right")
    sides = [
        side.through(f"from-{name}", stage="join").withColumn("hop", F.lit(number).cast("int"))
        for number, (name, side) in enumerate([("left", left), ("right", right)])
    ]
    return {"main": main, "left": left, "right": right, "join": _operator(sides[0].union(sides[1]), "join", match)}


def loop(job: ckpt.Job, rows: Stream) -> dict[str, Stream]:
    """Rows pass `main` and `second`, and then both once more."""
    back = job.feedback("again", ROW)
    main = _operator(rows.union(back), "main")
    second = _operator(main.through("numbered", stage="second"), "second")
    onward = second.where("hop = 0").through("back", stage="main")
    again = {"hop": F.lit(1).cast("int"), "number": F.lit(0).cast("long"), "wrong": F.lit(0).cast("long")}
    back.close(onward.withColumns(again))
    return {"main": main, "second": second}


@dataclass(frozen=True)
class Hop:
    """An edge: a number in the state of its sender, and the same number in that of its reader, per key.

    The parameters of the functions are `count` and `first` of a key's state.
    """

    sender: str
    reader: str
    sent: Callable[[int, int], int]
    read: Callable[[int, int], int]


def _count(count: int, first: int) -> int:
    return count


def _first(count: int, first: int) -> int:
    return first


@dataclass(frozen=True)
class StageGraph:
    """A program. `rounds`: number of times that a row passes each stage."""

    build: Callable[[ckpt.Job, Stream], dict[str, Stream]]
    stages: tuple[str, ...]
    hops: tuple[Hop, ...]
    rounds: int = 1


GRAPHS: Mapping[str, StageGraph] = {
    "pipeline": StageGraph(
        pipeline,
        ("main", "second", "third"),
        (Hop("main", "second", _count, _count), Hop("second", "third", _count, _count)),
    ),
    "diamond": StageGraph(
        diamond,
        ("main", "left", "right", "join"),
        (
            Hop("main", "left", _count, _count),
            Hop("main", "right", _count, _count),
            Hop("left", "join", _count, _count),
            Hop("right", "join", _count, _first),
        ),
    ),
    "loop": StageGraph(
        loop,
        ("main", "second"),
        (
            Hop("main", "second", _count, _count),
            Hop("second", "main", _first, lambda count, first: count - first),
        ),
        rounds=2,
    ),
}


def described(spark: SparkSession, options: argparse.Namespace) -> ckpt.Job:
    """The program, not started."""
    root = options.root
    settings = {"interval": "1 second", "line_interval": "1 second", "key_groups": 4, "shuffle_partitions": 2}
    # Each poll of an edge makes a request to another process.
    settings |= {"trace_dir": str(root / "trace"), "trigger": "300 ms"}
    job = ckpt.Job(
        spark, "staged", store=str(root / "staged"), protocol=options.protocol, local_dir=str(root), **settings
    )
    rows = job.source("in", FilesSource(str(root / "in"), "json", ROW, maxFilesPerTrigger=1))
    for stage, stream in GRAPHS[options.graph].build(job, rows).items():
        stream.to(DeltaSink(str(root / f"of-{stage}")), name=f"of-{stage}")
    return job


def main() -> int:
    options = parsed()

    def run(events: Events) -> int:
        spark = ckpt.session("staged", master="local[2]", conf=QUIET)
        spark.sparkContext.setLogLevel("ERROR")
        job = described(spark, options)
        job.addListener(events)
        job.start_stages(options.stages).awaitTermination()
        return 0

    return with_events(options.events, run)


def parsed(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The program's options, from the command line unless `arguments` are given."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stages", nargs="*")
    parser.add_argument("--graph", choices=GRAPHS, required=True)
    parser.add_argument("--protocol", default="independent")
    parser.add_argument("--root", required=True, type=Path)
    parser.add_argument("--events", required=True, type=Path)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
