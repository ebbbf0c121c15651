"""Run both forms of a program over the same files, and compare every table after every file.

Both forms start, read a new file of each input, and stop. So the plain query restarts after each file. At a drawn file the job
fails at a drawn failpoint, without cleanup, and starts again.

A run of the job has one epoch or several, as drawn. The tables are equal after each run in both cases. The batch that ends an epoch
comes after the batch with the rows: the interval waits for rows, and so does the end of the run. So the watermark of a file's rows
applies before the run ends, as after the last batch of the plain query, which has no rows.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from integration_tests.ported.program import File, Ported
from integration_tests.programs.histories import session_set
from spark_ckpt import failpoints
from spark_ckpt.errors import CkptError

POINTS = ("EPOCH_COMMITTING:raise", "EPOCH_COMMITTED:raise")
"""Before the commit of an epoch, and between the commit and the publish. The job retries an error of a publish itself."""
EPOCHS = {"50 ms": 2, "2 seconds": 1, "1 hour": 1}
"""Least number of epochs of a run, by the job's interval. A short interval ends one after the first rows, then the final one."""
FIRST_S = 1_700_000_000

Rows = Counter[str]


class PairDiffers(AssertionError):
    """The job's tables differ from those of the plain query."""


@dataclass(frozen=True)
class Outcome:
    """Counts of one run of a pair.

    - `rows`: rows of the tables at the end.
    - `point`: the failpoint of the job, and the number of the epoch within its run.
    - `interval`: time between two epochs of the job.
    """

    files: int
    rows: int
    point: str
    interval: str


def compare(
    spark: SparkSession, folder: Path, ported: Ported, seed: int, servers: str = "", interval: str | None = None
) -> Outcome:
    """Run both forms; return counts. `interval`: the job's, drawn if None.

    Raises `PairDiffers` at the first file after which a table differs.
    """
    for each in ported.shared:  # workers cannot import from the tests' folder
        cloudpickle.register_pickle_by_value(sys.modules[each.__module__])
    draw = random.Random(seed)
    files = ported.files(draw)
    # A failure at the first file would restart a job without state.
    fails, point = draw.randrange(1, len(files)), draw.choice(POINTS)
    interval = interval or draw.choice(tuple(EPOCHS))
    nth = draw.randint(1, EPOCHS[interval])
    inputs = servers or str(folder / "inputs")
    plain, job = folder / "plain", folder / "job"
    run_job = partial(ported.job, spark, inputs, str(job), str(folder / "store"))
    found: Rows = Counter()
    with session_set(spark, {"spark.ckpt.interval": interval} | ported.settings):
        for number, file in enumerate(files):
            put(folder / "inputs", ported, number, file, servers)
            ported.plain(spark, inputs, str(plain), str(folder / "checkpoint"))
            if number == fails:
                with failing(f"{point}:{nth}"):
                    run_job()
            run_job()
            found = Counter()
            for sink in ported.sinks:
                rows = rows_of(job / sink)
                place = f"{ported.name}: table {sink} after file {number + 1}, interval {interval}"
                judge(rows_of(plain / sink), rows, place, partial(_after, run_job, job / sink))
                found += rows
    if not found:
        raise PairDiffers(f"{ported.name}: no table has a row, so nothing was compared")
    return Outcome(len(files), found.total(), f"{point.partition(':')[0]} {nth}", interval)


def judge(wanted: Rows, found: Rows, place: str, later: Callable[[], Rows]) -> None:
    """Raise `PairDiffers` unless the job's rows equal those of the plain query, with their counts.

    `later`: runs the job once more, without new input, and returns its rows. Missing rows among them are late, others are lost.
    """
    missing, extra = wanted - found, found - wanted
    if missing or extra:
        late = missing & (later() - found)
        kinds = {"lost": missing - late, "late": late, "too many": extra}
        counts = ", ".join(f"{kind} {rows.total()}" for kind, rows in kinds.items())
        shown = "\n".join(f"{kind}: {sorted(rows.elements())[:6]}" for kind, rows in kinds.items())
        raise PairDiffers(f"{place}: {counts}\n{shown}")


def _after(run: Callable[[], None], table: Path) -> Rows:
    run()
    return rows_of(table)


def rows_of(table: Path) -> Rows:
    """Return the rows of a Delta table; none before it exists."""
    if not (table / "_delta_log").exists():
        return Counter()
    rows = DeltaTable(str(table)).to_pyarrow_table()
    return Counter(json.dumps(row, sort_keys=True, default=str) for row in rows.to_pylist())


@contextmanager
def failing(point: str) -> Iterator[None]:
    """Let the run inside fail at a failpoint. Raises `AssertionError` if it does not."""
    failpoints.arm(point)
    try:
        yield
    except (CkptError, failpoints.FailpointHit):
        return
    finally:
        failpoints.arm("")
    raise AssertionError(f"the job has not failed at {point}, so it was not restarted in the middle")


def put(inputs: Path, ported: Ported, number: int, file: File, servers: str) -> None:
    """Write one more file of each input for both forms, or its rows to a topic with the input's name."""
    for name, rows in file.items():
        if name in ported.tables:
            write_deltalake(str(inputs / name), pa.Table.from_pylist([dict(row) for row in rows]), mode="overwrite")
        elif ported.kafka:
            send(servers, name, rows)
        else:
            put_lines(inputs / name, number, rows)


def put_lines(folder: Path, number: int, rows: Sequence[Mapping[str, object]]) -> None:
    """Write one file of JSON lines, visible at once. Spark reads files in the order of their times."""
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder.parent / f"fresh-{folder.name}"
    fresh.write_text("".join(json.dumps(row) + "\n" for row in rows))
    os.utime(fresh, (FIRST_S + number,) * 2)
    fresh.rename(folder / f"{number:03}.json")


def send(servers: str, topic: str, rows: Sequence[Mapping[str, object]]) -> None:
    """Send the column `value` of rows as records."""
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": servers})
    for row in rows:
        producer.produce(topic, str(row["value"]))
    producer.flush()
