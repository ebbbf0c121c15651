"""Programs drawn from the vocabulary of Spark's stateful operators: functions of DataFrames, each with a description.

Inputs have the columns k string, v long, at timestamp. Every program returns one column: its rows as JSON after its name.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from integration_tests.programs import keyed_functions as keyed

AGGREGATES = (
    "count(*)",
    "sum(v)",
    "min(v)",
    "max(at)",
    "avg(v / 4D)",
    "array_sort(collect_set(v))",
    "array_sort(collect_list(v))",
    "approx_count_distinct(v)",
    "bit_xor(v)",
    "bool_or(v > 4)",
    "count_if(v % 2 = 0)",
    "sum(cast(v AS decimal(10, 2)))",
    "max_by(v, struct(at, v))",
    "percentile(v, 0.5)",
)
APPLY = "applyInPandasWithState"
JOINS = ("inner", "leftOuter", "rightOuter", "fullOuter", "leftSemi")


@dataclass(frozen=True)
class Program:
    """One function of a stream, or of two (`joins`).

    - `delay_s`: delay of the watermark of its inputs, in seconds; None without a watermark.
    - `text`: description of the operators.
    """

    name: str
    text: str
    function: Callable[..., DataFrame]
    joins: bool = False

    def __call__(self, *frames: DataFrame) -> DataFrame:
        """Return the rows as one column `row`."""
        result = self.function(*frames)
        text = F.to_json(F.struct(*(F.col(f"`{name}`") for name in result.columns)), {"ignoreNullFields": "false"})
        return result.select(F.concat(F.lit(f"{self.name} "), text).alias("row"))


Step = tuple[str, Callable[[DataFrame], DataFrame]]
Function = tuple[str, Callable[..., DataFrame]]


def program(draw: random.Random, name: str, mode: str, rocksdb: bool, delay_s: int, clocked: bool = False) -> Program:
    """Draw one program.

    - `mode`: "append" or "update". `rocksdb`: the provider can do `transformWithState`.
    - `delay_s`: delay of all watermarks, in seconds. `clocked`: processing time may be used.
    """
    if mode == "append" and draw.random() < 0.25:
        text, function = _join(draw, delay_s)
        return Program(name, text, function, joins=True)
    steps = [_prepared(draw)]
    if mode == "append" and draw.random() < 0.4:
        steps += [_deduplicated(draw, delay_s, chained=True), _windows(draw, _no_watermark)]
    else:
        steps.append(_last(draw, mode, rocksdb, delay_s, clocked))
    return Program(name, " -> ".join(text for text, _ in steps if text), _in_turn([each for _, each in steps]))


def _in_turn(steps: list[Callable[[DataFrame], DataFrame]]) -> Callable[[DataFrame], DataFrame]:
    def function(frame: DataFrame) -> DataFrame:
        for step in steps:
            frame = step(frame)
        return frame

    return function


def _prepared(draw: random.Random) -> Step:
    match draw.randrange(4):
        case 0:
            return "filter", lambda frame: frame.filter("v % 5 != 0")
        case 1:
            return "select", lambda frame: frame.selectExpr("k", "v % 3 AS v", "at")
        case _:
            return "", lambda frame: frame


def _last(draw: random.Random, mode: str, rocksdb: bool, delay_s: int, clocked: bool) -> Step:
    kinds: list[Callable[[], Step]] = [
        lambda: _deduplicated(draw, delay_s),
        lambda: _windows(draw, _watermark(delay_s)),
        lambda: _windows(draw, _watermark(delay_s)),
        lambda: _by_function(draw, mode, delay_s),
    ]
    if mode == "update":
        kinds.append(lambda: _groups(draw))
    if mode == "append":
        kinds += [lambda: _sessions(draw, delay_s), lambda: _windows_of_windows(draw, delay_s)]
    if rocksdb:
        kinds += [lambda: _by_processor(draw, mode, delay_s, clocked)] * (6 if clocked else 2)
    return draw.choice(kinds)()


def _no_watermark(frame: DataFrame) -> DataFrame:
    return frame


def _watermark(delay_s: int) -> Callable[[DataFrame], DataFrame]:
    return lambda frame: frame.withWatermark("at", f"{delay_s} seconds")


def _deduplicated(draw: random.Random, delay_s: int, chained: bool = False) -> Step:
    timed = _watermark(delay_s)
    columns = draw.choice((["k"], ["k", "v"], ["v"]))
    match draw.randrange(3 if chained else 5):
        case 0:
            return f"dropDuplicatesWithinWatermark({columns})", lambda frame: timed(
                frame
            ).dropDuplicatesWithinWatermark(columns)
        case 1 | 2:
            return f"dropDuplicates({[*columns, 'at']})", lambda frame: timed(frame).dropDuplicates([*columns, "at"])
        case 3:
            return f"dropDuplicates({columns})", lambda frame: frame.select(*columns).dropDuplicates(columns)
        case _:
            return f"distinct of {columns}", lambda frame: frame.select(*columns).distinct()


def _aggregates(draw: random.Random) -> list[str]:
    return draw.sample(AGGREGATES, draw.randint(1, 4))


def _windows(draw: random.Random, timed: Callable[[DataFrame], DataFrame]) -> Step:
    length, slide = draw.choice(((10, 10), (5, 5), (20, 20), (10, 5), (9, 3)))
    keys, found = draw.choice(([], ["k"], ["v % 2"])), _aggregates(draw)

    def function(frame: DataFrame) -> DataFrame:
        window = F.window("at", f"{length} seconds", f"{slide} seconds")
        grouped = timed(frame).groupBy(*map(F.expr, keys), window)
        return grouped.agg(*(F.expr(text).alias(f"a{number}") for number, text in enumerate(found)))

    return f"window {length}/{slide} by {keys}: {', '.join(found)}", function


def _windows_of_windows(draw: random.Random, delay_s: int) -> Step:
    timed = _watermark(delay_s)

    def function(frame: DataFrame) -> DataFrame:
        small = timed(frame).groupBy("k", F.window("at", "5 seconds")).agg(F.sum("v").alias("v"))
        return small.groupBy(F.window("window", "20 seconds")).agg(F.max("v").alias("most"), F.count("*").alias("n"))

    return "window 5 by k -> window of windows 20", function


def _sessions(draw: random.Random, delay_s: int) -> Step:
    timed, found = _watermark(delay_s), _aggregates(draw)
    gap = draw.choice(("5 seconds", "case when v > 4 then '9 seconds' else '3 seconds' end"))

    def function(frame: DataFrame) -> DataFrame:
        session = F.session_window("at", F.expr(gap) if gap.startswith("case") else gap)
        grouped = timed(frame).groupBy("k", session)
        return grouped.agg(*(F.expr(text).alias(f"a{number}") for number, text in enumerate(found)))

    return f"session_window({gap}) by k: {', '.join(found)}", function


def _groups(draw: random.Random) -> Step:
    keys, found = draw.choice((["k"], ["v % 3"], ["k", "v"])), _aggregates(draw)

    def function(frame: DataFrame) -> DataFrame:
        grouped = frame.groupBy(*map(F.expr, keys))
        return grouped.agg(*(F.expr(text).alias(f"a{number}") for number, text in enumerate(found)))

    return f"groupBy {keys}: {', '.join(found)}", function


def _join(draw: random.Random, delay_s: int) -> Function:
    how, before, after = draw.choice(JOINS), draw.choice((0, 3, 8)), draw.choice((2, 5))
    timed, windows = _watermark(delay_s), draw.random() < 0.3 and how == "inner"

    def function(left: DataFrame, right: DataFrame) -> DataFrame:
        ours = timed(left)
        theirs = right.selectExpr("k AS rk", "v AS rv", "at AS rat").withWatermark("rat", f"{delay_s} seconds")
        near = f"k = rk AND rat BETWEEN at - interval {before} seconds AND at + interval {after} seconds"
        joined = ours.join(theirs, F.expr(near), how)
        if not windows:
            return joined
        return joined.groupBy(F.window("at", "10 seconds"), "k").agg(F.count("*").alias("n"), F.sum("rv").alias("t"))

    return f"{how} join, -{before} to +{after} s{' -> window 10 by k' if windows else ''}", function


def _by_function(draw: random.Random, mode: str, delay_s: int) -> Step:
    if mode == "append" and draw.random() < 0.5:
        timed = _watermark(delay_s)
        return (
            "applyInPandasWithState, event time",
            lambda frame: (
                timed(frame)
                .groupBy("k")
                .applyInPandasWithState(
                    keyed.sum_until_idle, keyed.ROWS, "total long, newest long", mode, "EventTimeTimeout"
                )
            ),
        )
    return APPLY, lambda frame: frame.groupBy("k").applyInPandasWithState(
        keyed.sum_up, keyed.ROWS, "total long", mode, "NoTimeout"
    )


def _by_processor(draw: random.Random, mode: str, delay_s: int, clocked: bool) -> Step:
    kinds = [(keyed.InAValue, "none"), (keyed.InAList, "none"), (keyed.InAMap, "none")]
    kinds += [(keyed.UntilIdle, "EventTime")] * 2
    kinds += [(keyed.NextBatch, "ProcessingTime"), (keyed.ForAnHour, "ProcessingTime")] * 3 if clocked else []
    processor, time_mode = draw.choice(kinds)
    timed = _watermark(delay_s) if time_mode == "EventTime" else _no_watermark
    return (
        f"transformWithStateInPandas({processor.__name__}, {time_mode})",
        lambda frame: timed(frame).groupBy("k").transformWithStateInPandas(processor(), keyed.ROWS, mode, time_mode),
    )
