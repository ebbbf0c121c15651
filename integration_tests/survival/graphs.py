"""Graphs whose output does not depend on the ends of batches, and their output, computed without Spark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.streaming.state import GroupState

import spark_ckpt as ckpt
from spark_ckpt.connector import Sink

WINDOW_S = 2
BEGAN_S = 1_700_000_000
Sinks = Callable[[str], Sink]
"""Makes the sink with a name."""


def counting(stream: ckpt.Stream, key: str, name: str) -> ckpt.Stream:
    """Every row of the stream with its number `n` among the rows of its `key`, an SQL expression."""
    return stream.groupBy(F.expr(key).alias("key")).agg("each row", name, n=ckpt.count())


def chain(job: ckpt.Job, rows: ckpt.Stream, sink: Sinks | None = None) -> ckpt.Stream:
    """Three operators: rows per `k`, then per number modulo 3, then per number modulo 2. A sink after the first operator; the
    stream splits after the third."""
    third = counting(_twice_counted(rows, sink), "b % 2", "third")
    if sink is not None:
        third.filter("n > 3").to(sink("parted"), name="parted")
    return third.select("key", "b", "n")


def tree(job: ckpt.Job, rows: ckpt.Stream, others: ckpt.Stream, sink: Sinks | None = None) -> ckpt.Stream:
    """Four operators: the chain's second, and one that reads both sources, meet in a third. A branch of `rows` has its own end."""
    right = counting(others.union(rows), "k", "others").select(F.col("n").alias("b"))
    if sink is not None:
        rows.filter("k != 'k0'").to(sink("aside"), name="aside")
    return counting(_twice_counted(rows, sink).union(right), "b % 2", "third").select("key", "b", "n")


def diamond(job: ckpt.Job, rows: ckpt.Stream, others: ckpt.Stream, sink: Sinks | None = None) -> ckpt.Stream:
    """Three operators: two that number the rows of each key, of one source and of both, meet in a join on key and number.
    A fourth one reads both sources and has its own end."""
    way = counting(rows, "k", "first").select("key", "n")
    if sink is not None:
        way.to(sink("way"), name="way")
        both_counted(job, rows, others).to(sink("met"), name="met")
    right = counting(others.union(rows.filter("k = 'k0'")), "k", "others").selectExpr("key", "n", "n * n AS squared")
    return way.join(right, on=["key", "n"], name="third")


def both_counted(job: ckpt.Job, rows: ckpt.Stream, others: ckpt.Stream) -> ckpt.Stream:
    """An operator with two inputs: every row of each with its number `n` among those of its key there."""

    def count(key: tuple[str], frames: Mapping[str, pd.DataFrame], state: GroupState) -> Iterator[tuple[str, str, int]]:
        before = dict(zip(frames, state.get if state.exists else (0, 0), strict=True))
        after = {name: before[name] + len(frame) for name, frame in frames.items()}
        state.update(tuple(after.values()))
        for name in frames:
            yield from ((key[0], name, n) for n in range(before[name] + 1, after[name] + 1))

    inputs = {"rows": rows.groupBy("k"), "others": others.withColumnRenamed("k", "other").groupBy("other")}
    output, counts = "key string, input string, n int", "rows int, others int"
    return job.cogroup(inputs).applyInPandasWithState(count, output, counts, "append", "NoTimeout", name="met")


def merge(job: ckpt.Job, rows: ckpt.Stream, others: ckpt.Stream, sink: Sinks | None = None) -> ckpt.Stream:
    """One operator that reads both sources."""
    return counting(rows.union(others), "k", "merged").select("key", "n")


def clocks(job: ckpt.Job, rows: ckpt.Stream, others: ckpt.Stream, sink: Sinks | None = None) -> ckpt.Stream:
    """Every row's number in its window, over two sources with a watermark each: the second watermark keeps every window open."""
    timed = [
        each.withColumn("time", F.timestamp_seconds("at")).withWatermark("time", delay)
        for each, delay in ((rows, "1 second"), (others, "3 seconds"))
    ]
    counted = timed[0].union(timed[1]).groupBy("k", F.window("time", f"{WINDOW_S} seconds"))
    windows = counted.agg("each row", "windows", n=ckpt.count())
    return windows.selectExpr("concat(k, '/', unix_seconds(window.start)) AS key", "n")


def sparks(job: ckpt.Job, rows: ckpt.Stream, sink: Sinks | None = None) -> ckpt.Stream:
    """Spark's own operators: the first row of every key and second, by window. A second branch has one before our operator."""
    if sink is not None:
        numbered = counting(rows.transform(lambda frame: frame.dropDuplicates(["k", "at"])), "k", "first")
        numbered.select("key", "n").to(sink("way"), name="way")
    return rows.transform(_windows)


def _windows(frame: DataFrame) -> DataFrame:
    # a row of 1970 is as old as the first watermark: late for Spark
    timed = frame.withColumn("time", F.timestamp_seconds(F.col("at") + BEGAN_S)).withWatermark("time", "2 seconds")
    windows = timed.dropDuplicatesWithinWatermark(["k", "time"]).groupBy("k", F.window("time", f"{WINDOW_S} seconds"))
    return windows.agg(F.count("*").alias("n")).selectExpr(
        f"concat(k, '/', unix_seconds(window.start) - {BEGAN_S}) AS key", "n"
    )


def ring(job: ckpt.Job, rows: ckpt.Stream, sink: Sinks | None = None) -> ckpt.Stream:
    """A loop: every row is numbered among those of its key and iteration. It iterates twice, with its number modulo 3 as key."""
    loop = job.feedback("ring", "k string, round int")
    together = rows.select("k", F.lit(0).alias("round")).union(loop)
    numbered = counting(together, "concat(round, '/', k)", "ring")
    loop.close(numbered.filter("round < 2").selectExpr("CAST(n % 3 AS string) AS k", "round + 1 AS round"))
    return numbered.select("key", "n")


def _twice_counted(rows: ckpt.Stream, sink: Sinks | None) -> ckpt.Stream:
    first = counting(rows, "k", "first").select("key", "n")
    if sink is not None:
        first.to(sink("way"), name="way")
    return counting(first.select(F.col("n").alias("a")), "a % 3", "second").select(F.col("n").alias("b"))


def chains_output(keys: Iterable[object]) -> Counter[tuple[int, int]]:
    """(key, n) of the output of `chain` for rows with these keys."""
    return _numbered(_second(keys))


def trees_output(keys: Iterable[object], others: Iterable[object]) -> Counter[tuple[int, int]]:
    """(key, n) of the output of `tree`."""
    rows = list(keys)
    return _numbered([*_second(rows), *_numbers([*others, *rows])])


def diamonds_output(keys: Iterable[object], others: Iterable[object]) -> Counter[tuple[object, int]]:
    """(key, n) of the output of `diamond`."""
    rows = list(keys)
    left, right = Counter(rows), Counter([*others, *(key for key in rows if key == "k0")])
    return Counter((key, n) for key in left for n in range(1, min(left[key], right[key]) + 1))


def mets_output(keys: Iterable[object], others: Iterable[object]) -> Counter[tuple[object, str, int]]:
    """(key, input, n) of the output of `both_counted`."""
    times = {"rows": Counter(keys), "others": Counter(others)}
    return Counter((key, name, n) for name, each in times.items() for key in each for n in range(1, each[key] + 1))


def merges_output(keys: Iterable[object], others: Iterable[object]) -> Counter[tuple[object, int]]:
    """(key, n) of the output of `merge`."""
    return Counter((key, n) for key, times in Counter([*keys, *others]).items() for n in range(1, times + 1))


def clocks_output(*moments: Iterable[tuple[object, int]]) -> Counter[str]:
    """Rows per window of `clocks`, for rows with these keys and seconds."""
    return Counter(f"{key}/{second - second % WINDOW_S}" for each in moments for key, second in each)


def sparks_output(moments: Iterable[tuple[object, int]], watermark_s: int) -> Counter[tuple[str, int]]:
    """(key, n) of the windows of `sparks` that the watermark has closed."""
    windows = Counter(f"{key}/{second - second % WINDOW_S}" for key, second in set(moments))
    return Counter((key, n) for key, n in windows.items() if int(key.rpartition("/")[2]) + WINDOW_S <= watermark_s)


def rings_output(keys: Iterable[object]) -> Counter[tuple[object, int]]:
    """(key, n) of the output of `ring`."""
    output: Counter[tuple[object, int]] = Counter()
    for number in range(3):
        times = Counter(keys)
        output += Counter((f"{number}/{key}", n) for key in times for n in range(1, times[key] + 1))
        keys = [n % 3 for n in _numbers(times.elements())]
    return output


def _second(keys: Iterable[object]) -> Sequence[int]:
    return _numbers(n % 3 for n in _numbers(keys))


def _numbered(values: Iterable[int]) -> Counter[tuple[int, int]]:
    return Counter((key, n) for key, times in Counter(b % 2 for b in values).items() for n in range(1, times + 1))


def _numbers(keys: Iterable[object]) -> list[int]:
    """Every element's number among equal elements."""
    return [number for times in Counter(keys).values() for number in range(1, times + 1)]


SHAPES: dict[str, Callable[..., ckpt.Stream]] = {
    "chain": chain,
    "tree": tree,
    "diamond": diamond,
    "merge": merge,
    "clocks": clocks,
    "ring": ring,
    "sparks": sparks,
}
