"""Graphs of operators that are killed repeatedly: their output is that of one undisturbed run."""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import spark_ckpt as ckpt
from integration_tests.survival.graph_feed import feeding
from integration_tests.survival.graphs import (
    WINDOW_S,
    chains_output,
    clocks_output,
    diamonds_output,
    mets_output,
    rings_output,
    sparks_output,
    trees_output,
)
from integration_tests.survival.kills import at_point, at_random, frozen
from integration_tests.survival.process import ancestors, is_executor
from spark_ckpt.store.existing import existing_store

pytestmark = [pytest.mark.spark, pytest.mark.kill]

POINTS = ("STAGED", "EPOCH_COMMITTED")
EVERY_POINT = (*POINTS, "EPOCH_COMMITTING", "MARKER_READ", "PRE_COMMIT", "PUBLISH_COMMITTED", "ACKED")
"""Options of a driver and of its Delta sinks."""
CLUSTER = ("--master", "local-cluster[2,1,1024]")


@pytest.mark.long  # in the gate: the test below, and tests/simulator/test_spark_world.py
def test_three_operators_in_a_row_agree_after_any_kill(tmp_path: Path, spark: SparkSession) -> None:
    with feeding(tmp_path, "chain", "rows") as feed:
        for number, point in enumerate(POINTS):
            (tmp_path / f"death-{number}").mkdir()
            feed.killed(at_point(point, tmp_path / f"death-{number}"))
        feed.lives.drain_on(spark)

        output = chains_output(feed.keys["rows"])
        assert feed.shown() == output
        assert feed.shown("table-parted") == Counter({row: times for row, times in output.items() if row[1] > 3})
        feed.check_way()
        log = existing_store(str(tmp_path / "store")).log
        assert set(log.manifest(log.state().latest).operators) == {"first", "second", "third"}


@pytest.mark.long
@pytest.mark.parametrize("shape", ["chain", "diamond", "ring"])
def test_a_graph_agrees_with_itself_after_a_kill_at_any_failpoint_and_continues_on_a_cluster(
    tmp_path: Path, shape: str
) -> None:
    """Three operators, two branches that meet in a join, a loop: a kill at each failpoint, then separate executors."""
    names = ("rows", "others") if shape == "diamond" else ("rows",)
    outputs = {"chain": chains_output, "diamond": diamonds_output, "ring": rings_output}
    with feeding(tmp_path, shape, *names) as feed:
        for point in EVERY_POINT:
            (tmp_path / f"death-{point}").mkdir()
            feed.killed(at_point(point, tmp_path / f"death-{point}"))
        feed.lives.drain(*CLUSTER)

        assert feed.shown() == outputs[shape](*(feed.keys[name] for name in names))
        if shape != "ring":
            feed.check_way()


@pytest.mark.long
def test_branches_of_one_source_agree_after_any_kill(tmp_path: Path) -> None:
    draw = random.Random(8)
    with feeding(tmp_path, "tree", "rows", "others") as feed:
        (tmp_path / "death").mkdir()
        feed.killed(at_point("STAGED", tmp_path / "death"))
        feed.killed(at_random(draw))
        feed.lives.drain(*CLUSTER)

        assert feed.shown() == trees_output(feed.keys["rows"], feed.keys["others"])
        feed.check_way()
        feed.check_aside()


@pytest.mark.long
def test_a_join_of_two_branches_agrees_with_them_after_any_kill(tmp_path: Path, spark: SparkSession) -> None:
    draw = random.Random(9)
    with feeding(tmp_path, "diamond", "rows", "others") as feed:
        (tmp_path / "death").mkdir()
        feed.killed(at_point("EPOCH_COMMITTING", tmp_path / "death"))
        feed.killed(at_random(draw))
        feed.lives.drain_on(spark)

        assert feed.shown() == diamonds_output(feed.keys["rows"], feed.keys["others"])
        feed.check_way()
        met = Counter(tuple(row.values()) for row in feed.rows("table-met", "key", "input", "n"))
        assert met == mets_output(feed.keys["rows"], feed.keys["others"]), "an operator with two inputs, in a branch"


@pytest.mark.long
def test_windows_of_two_event_times_agree_after_any_kill(tmp_path: Path, spark: SparkSession) -> None:
    """No row is late, for any source that the killed driver had read further: every new driver restores both watermarks."""
    draw = random.Random(11)
    with feeding(tmp_path, "clocks", "rows", "others") as feed:
        for number, point in enumerate(("EPOCH_COMMITTED", "STAGED")):
            (tmp_path / f"death-{number}").mkdir()
            feed.killed(at_point(point, tmp_path / f"death-{number}"))
        feed.killed(at_random(draw))
        feed.lives.drain_on(spark)

        rows = clocks_output(feed.moments("rows"), feed.moments("others"))
        assert feed.shown() == Counter((window, n) for window in rows for n in range(1, rows[window] + 1))
        store, newest = str(tmp_path / "store"), feed.files - 1
        kept = {
            f"{row['k']}/{int(row['window_start'].timestamp())}": row["n"]
            for row in ckpt.read_state(store, "windows").to_pylist()
        }
        assert kept.items() < rows.items(), "closed windows have left the state, and the others are complete"
        assert {each for each in rows if int(each.rpartition("/")[2]) + WINDOW_S > newest - 3} <= kept.keys()
        log = existing_store(store).log
        windows = log.manifest(log.state().latest).operators["windows"]
        assert windows.watermarks == {"rows": (newest - 1) * 1000, "others": (newest - 3) * 1000}


@pytest.mark.parametrize(
    ("points", "moments"),
    [(("EPOCH_COMMITTED",), 0), pytest.param(EVERY_POINT, 6, marks=pytest.mark.long)],
    ids=["decision", "every point"],
)
def test_sparks_own_operators_agree_after_any_kill(
    tmp_path: Path, spark: SparkSession, points: tuple[str, ...], moments: int
) -> None:
    draw = random.Random(12)
    with feeding(tmp_path, "sparks", "rows") as feed:
        for number, point in enumerate(points):
            (tmp_path / f"death-{number}").mkdir()
            # the very first epoch only pins the start of the source
            feed.killed(
                at_point(point, tmp_path / f"death-{number}", nth=2 if points[0] == point == "EPOCH_COMMITTED" else 1)
            )
        for _ in range(moments):
            feed.killed(at_random(draw))
        feed.put()
        feed.lives.drain_on(spark)

        assert feed.shown() == sparks_output(feed.moments("rows"), feed.files - 1 - 2)
        seconds = Counter(key for key, _ in set(feed.moments("rows")))
        numbered = Counter((key, n) for key in seconds for n in range(1, seconds[key] + 1))
        assert feed.shown("table-way") == numbered


@pytest.mark.long
def test_an_executor_lost_in_the_middle_of_a_chain_costs_a_retry(tmp_path: Path) -> None:
    """Files after the first operator are durable and unknown to the driver, and two operators are still to come."""
    once = tmp_path / "once"
    once.mkdir()
    environment = {"SPARK_CKPT_FAILPOINT": "STAGED:stop", "SPARK_CKPT_FAILPOINT_ONCE": str(once)}
    with feeding(tmp_path, "chain", "rows") as feed:
        feed.put()
        with feed.lives.start("--available-now", *CLUSTER, environment=environment) as driver:
            driver.wait_for(lambda: bool(frozen(driver)), "a task is frozen")
            [executor] = {each for pid in frozen(driver) for each in ancestors(pid) if is_executor(each)}
            os.kill(executor, signal.SIGKILL)
            driver.check_ended_well()

        assert [event["incarnation"] for event in driver.events("started")] == [1]
        assert feed.shown() == chains_output(feed.keys["rows"])
        feed.check_way()


@pytest.mark.long
def test_a_loop_agrees_with_itself_after_any_kill(tmp_path: Path) -> None:
    """Every driver ends with rows in the loop, and the last one continues with them on a cluster."""
    draw = random.Random(10)
    with feeding(tmp_path, "ring", "rows") as feed:
        for number, point in enumerate(("EPOCH_COMMITTED", "STAGED")):
            (tmp_path / f"death-{number}").mkdir()
            feed.killed(at_point(point, tmp_path / f"death-{number}"))
        feed.killed(at_random(draw))
        feed.lives.drain(*CLUSTER)

        assert feed.shown() == rings_output(feed.keys["rows"])
        log = existing_store(str(tmp_path / "store")).log
        cuts = [log.manifest(brief.epoch).edges["ring"] for brief in log.state().epochs]
        rows = len(feed.keys["rows"])
        assert (cuts[-1].consumed, cuts[-1].produced, cuts[-1].files) == (2 * rows, 2 * rows, ())
        assert any(cut.files for cut in cuts), "no barrier found a row in the loop: the test shows nothing"
