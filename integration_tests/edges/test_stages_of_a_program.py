"""Stages of one program: rows pass exactly once, a stage that is killed restarts alone, and the others continue."""

from __future__ import annotations

import json
import logging
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupStateTimeout
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt
from integration_tests.edges.three_stages import described, parsed
from integration_tests.edges.two_programs import numbered
from integration_tests.spark import connected_session
from integration_tests.survival.kills import at_point
from integration_tests.survival.process import ROOT, Lives
from spark_ckpt.api.stream import Stream
from spark_ckpt.epochs.lines import lines
from spark_ckpt.errors import GraphInvalid, IdentityChanged, StoreInUse
from spark_ckpt.events.listener import IncarnationEvent, RunListener
from spark_ckpt.program_edges.line_stores import read_stores
from spark_ckpt.store.existing import existing_store
from spark_ckpt.store.store import Store

pytestmark = [pytest.mark.spark, pytest.mark.kill]
KEYS, ROWS, OTHERS = 5, 20, "other"
STAGES = ("main", "second", "third")
ENOUGH_S = 240.0


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    yield from connected_session()


@dataclass
class Three:
    """The program, its input, and the expected output."""

    root: Path
    protocol: str = "independent"
    written: int = 0
    others: int = 0

    def __post_init__(self) -> None:
        for folder in ("in", OTHERS):
            (self.root / folder).mkdir()
        given = ["--root", str(self.root), "--protocol", self.protocol]
        self.lives = Lives(self.root / "lives", given, program="integration_tests.edges.three_stages")

    def write(self, files: int) -> None:
        for _ in range(files):
            numbers = range(self.written * ROWS, (self.written + 1) * ROWS)
            self._put("in", self.written, [{"k": f"k{number % KEYS}", "v": number} for number in numbers])
            self.written += 1

    def write_other(self, files: int) -> None:
        for _ in range(files):
            self.others += 1
            self._put(OTHERS, self.others, [{"k": "o", "last": self.others, "total": 0, "wrong": 0}])

    def _put(self, folder: str, number: int, rows: list[dict[str, object]]) -> None:
        hidden = self.root / folder / f".{number:03}.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(self.root / folder / f"{number:03}.json")

    def job(self, spark: SparkSession) -> ckpt.Job:
        options = ["--root", str(self.root), "--events", str(self.root / "events"), "--protocol", self.protocol]
        return described(spark, parsed(options))

    def store(self, stage: str) -> Store:
        return existing_store(str(self.root / "three" / stage))

    def incarnations(self) -> dict[str, int]:
        return {stage: self.store(stage).log.state().incarnation for stage in STAGES}

    def rows_read(self, stage: str) -> int:
        """Input rows of all epochs of a stage, by its log."""
        return sum(brief.rows_in for brief in self.store(stage).log.state().lineage())

    def table(self, name: str) -> Counter[tuple[object, ...]]:
        uris = DeltaTable(str(self.root / name)).file_uris()
        rows = [row for uri in uris for row in pq.read_table(uri, partitioning=None).to_pylist()]
        return Counter((row["k"], row["last"], row["total"], row["wrong"]) for row in rows)

    def expected(self) -> Counter[tuple[object, ...]]:
        found, last, total = Counter[tuple[object, ...]](), Counter[str](), Counter[str]()
        for value in range(self.written * ROWS):
            key = f"k{value % KEYS}"
            last[key], total[key] = last[key] + 1, total[key] + value
            found[key, last[key], total[key], 0] += 1
        return found

    def expected_of_third(self) -> Counter[tuple[object, ...]]:
        return self.expected() + Counter({("o", number + 1, 0, 0): 1 for number in range(self.others)})


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + ENOUGH_S
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.1)


@pytest.mark.long  # in the gate: test_the_page_about_stages_runs_as_written
def test_one_process_drains_all_stages_of_a_program(spark: SparkSession, tmp_path: Path) -> None:
    three = Three(tmp_path)
    three.write(2)
    three.write_other(1)
    three.job(spark).start_stages(availableNow=True).awaitTermination()
    assert three.table("seconds") == three.expected()
    assert three.table("thirds") == three.expected_of_third()


@pytest.mark.long  # in the gate: unaligned stages, below
def test_a_killed_stage_restarts_alone_and_the_others_continue(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    three = Three(tmp_path)
    three.write(3)
    three.write_other(1)
    around = three.job(spark).start_stages(["main", "third"])
    with pytest.raises(StoreInUse):
        three.job(spark).start_stages("third")
    kill = at_point("EPOCH_COMMITTED", tmp_path, 2)
    with three.lives.start("second", environment=kill.environment) as driver:
        kill.strike(driver)

    dead = three.store("second").log.state()
    three.write(3)
    three.write_other(3)
    wait_until(lambda: three.rows_read("main") == three.written * ROWS, "main went on")
    wait_until(lambda: three.rows_read("third") >= three.others, "third went on")
    now = three.store("second").log.state()
    assert (now.incarnation, now.latest) == (dead.incarnation, dead.latest)
    assert three.rows_read("second") < three.written * ROWS

    with caplog.at_level(logging.WARNING, "spark_ckpt"):
        again = three.job(spark).start_stages("second")
    assert "job=three restarted: second; went on: main, third" in caplog.text
    everything = three.written * ROWS
    wait_until(lambda: three.rows_read("third") == everything + three.others, "third has read everything")
    for run in (again, around):
        run.stop()

    assert three.table("seconds") == three.expected()
    assert three.table("thirds") == three.expected_of_third()
    assert three.incarnations() == {"main": 1, "second": 2, "third": 1}


class Lines(ckpt.RunListener):
    """The newest event about lines, by stage."""

    def __init__(self) -> None:
        self.newest: dict[str, ckpt.LineEvent] = {}

    def onLines(self, event: ckpt.LineEvent) -> None:
        self.newest[event.job] = event


def line_epoch(three: Three, stage: str, number: int) -> int:
    return next(each.epoch for each in list(three.store(stage).log.state().lineage())[::-1] if each.index >= number)


# in the gate: aligned in tests/coordination/test_stage_process.py
@pytest.mark.parametrize("protocol", ["unaligned", pytest.param("aligned", marks=pytest.mark.long)])
def test_sinks_of_all_stages_publish_decided_lines_although_a_stage_is_killed_and_restarts_alone(
    spark: SparkSession, tmp_path: Path, protocol: str, caplog: pytest.LogCaptureFixture
) -> None:
    three = Three(tmp_path, protocol)
    three.write(3)
    three.write_other(1)
    lines_seen, job = Lines(), three.job(spark)
    job.addListener(lines_seen)
    around = job.start_stages(["main", "third"])
    with pytest.raises(StoreInUse):
        three.job(spark).start_stages("third")
    # The first epoch only has the start. All rows may be in the second one: those of the third are written below.
    kill = at_point("EPOCH_COMMITTED", tmp_path, 3)
    with three.lives.start("second", environment=kill.environment) as driver:
        wait_until(lambda: driver.exit_code is not None or bool(published(three, "seconds")), "second has published")
        three.write(1)
        kill.strike(driver)
    third = three.store("third").log
    dead = third.state().acked
    before = three.rows_read("third")
    three.write(1)
    three.write_other(2)
    wait_until(lambda: three.rows_read("third") >= before + 1, "third went on")
    index = three.store("second").log.state().index
    wait_until(
        lambda: min(three.store(stage).log.state().index for stage in STAGES) == index, "the others serve it, too"
    )
    assert third.state().acked.get("thirds", 0) <= max(line_epoch(three, "third", index), *dead.values(), 0)

    wait_until(lambda: lines_seen.newest["three.main"].served["three.main"] > index, "main serves a later line")
    by_main = lines_seen.newest["three.main"]
    assert (by_main.common, by_main.served["three.second"]) == (index, index), "the killed stage holds up the line"

    with caplog.at_level(logging.WARNING, "spark_ckpt"):
        again = three.job(spark).start_stages("second")
    assert "job=three restarted: second; went on: main, third" in caplog.text
    wait_until(lambda: published(three, "thirds") == three.expected_of_third(), "third has published everything")
    wait_until(lambda: published(three, "seconds") == three.expected(), "second has published everything")
    wait_until(lambda: lines_seen.newest["three.main"].common > index, "the next line is formed")
    for run in (again, around):
        run.stop()
    assert three.table("thirds") == three.expected_of_third()
    assert three.table("seconds") == three.expected()
    assert judged(three, aligned=protocol == "aligned") >= 2
    assert three.incarnations() == {"main": 1, "second": 2, "third": 1}


def published(three: Three, table: str) -> Counter[tuple[object, ...]]:
    return three.table(table) if (three.root / table / "_delta_log").exists() else Counter()


def judged(three: Three, aligned: bool) -> int:
    """Return the number of lines; each is a cut by the numbers in the states, without rows in transit if aligned."""
    stores = {stage: three.store(stage) for stage in STAGES}
    found = [line for line in lines(read_stores(list(stores.values())).programs, 10_000) if line.number]
    for line in found:
        rows = {
            stage: {row["k"]: row[column] for row in state_rows(stores[stage], name, line.epochs[f"three.{stage}"])}
            for stage, name, column in (
                ("main", "number", "count"),
                ("second", "check", "last"),
                ("third", "again", "last"),
            )
        }
        third = {key: last for key, last in rows["third"].items() if key != "o"}
        for sent, read in ((rows["main"], rows["second"]), (rows["second"], third)):
            assert all(last <= sent.get(key, 0) for key, last in read.items()), f"{line.name} has orphans: {rows}"
            assert not aligned or sent == read, f"{line.name} has rows in transit: {rows}"
    return len({tuple(line.epochs.values()) for line in found})


def state_rows(store: Store, operator: str, epoch: int) -> list[dict[str, int]]:
    snapshot = store.log.manifest(epoch).operators.get(operator)
    rows: list[dict[str, int]] = store.state(operator).read(epoch).to_pylist() if snapshot and snapshot.files else []
    return rows


def test_a_start_names_the_stages_of_the_program(spark: SparkSession, tmp_path: Path) -> None:
    job = Three(tmp_path).job(spark)
    with pytest.raises(GraphInvalid, match="no stage 'fourth'"):
        job.start_stages("fourth")
    with pytest.raises(GraphInvalid, match="has stages: main, second, third") as refused:
        job.start(restore=4)
    assert "job.start_stages('NAME', restore=4)" in refused.value.hint


def with_operator_in(stage: str, spark: SparkSession, root: Path) -> ckpt.Job:
    job = ckpt.Job(spark, "moving", store=str(root / "moving"), key_groups=2, shuffle_partitions=2, local_dir=root)
    rows: Stream = job.source("in", FilesSource(str(root / "in"), "json", "k string, v long"))
    for here in ("main", "second"):
        if here == stage:
            never = GroupStateTimeout.NoTimeout
            rows = rows.groupBy("k").applyInPandasWithState(
                numbered, "k string, number long, v long", "count long", "append", never, "number"
            )
        if here == "main":
            rows = rows.through("passed", stage="second")
    rows.to(DeltaSink(str(root / f"out-{stage}")), name=f"out-{stage}")  # other columns
    return job


def test_no_stage_runs_if_a_later_one_lacks_an_operator_that_moved(spark: SparkSession, tmp_path: Path) -> None:
    three = Three(tmp_path)
    three.write(1)
    with_operator_in("second", spark, tmp_path).start_stages(availableNow=True).awaitTermination()
    main = Store.open(str(tmp_path / "moving" / "main"), "moving.main")
    before = main.log.state().incarnation
    with pytest.raises(GraphInvalid, match="operator 'number'") as refused:
        with_operator_in("main", spark, tmp_path).start_stages(availableNow=True)
    assert (refused.value.context["stage"], main.reopened().log.state().incarnation) == ("second", before)
    job = with_operator_in("main", spark, tmp_path)
    job.start_stages(availableNow=True, accept_dropped_operator="number").awaitTermination()
    assert main.reopened().log.state().incarnation > before


class ReplacesTable(RunListener):
    """Replaces a table by another one as soon as the first stage of a drain runs."""

    def __init__(self, table: Path) -> None:
        self.table = table

    def onIncarnationStarted(self, event: IncarnationEvent) -> None:
        if event.job.endswith(".main"):
            schema = DeltaTable(str(self.table)).schema()
            shutil.rmtree(self.table)
            DeltaTable.create(str(self.table), schema)


@pytest.mark.long  # in the gate: tests/runtime/test_stages_run.py
def test_a_later_stage_of_a_drain_finds_the_table_that_was_replaced_while_the_first_ran(
    spark: SparkSession, tmp_path: Path
) -> None:
    three = Three(tmp_path)
    three.write(1)
    with_operator_in("second", spark, tmp_path).start_stages(availableNow=True).awaitTermination()
    three.write(1)
    job = with_operator_in("second", spark, tmp_path)
    job.addListener(ReplacesTable(tmp_path / "out-second"))
    second = Store.open(str(tmp_path / "moving" / "second"), "moving.second")
    before = second.log.state().incarnation
    with pytest.raises(IdentityChanged) as refused:
        job.start_stages(availableNow=True).awaitTermination()
    assert (refused.value.context["stage"], second.reopened().log.state().incarnation) == ("second", before)


def test_a_stage_of_another_process_keeps_an_operator_until_it_has_dropped_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    three = Three(tmp_path)
    three.write(1)
    with_operator_in("second", spark, tmp_path).start_stages(availableNow=True).awaitTermination()
    job = with_operator_in("main", spark, tmp_path)
    with pytest.raises(GraphInvalid, match="'second' has it") as refused:
        job.start_stages("main", availableNow=True)

    advised = "job.start_stages('second', accept_dropped_operator='number')"
    assert advised in refused.value.hint
    run = eval(advised, {"job": job})
    run.stop()
    with_operator_in("main", spark, tmp_path).start_stages("main", availableNow=True).awaitTermination()


def test_the_page_about_stages_runs_as_written(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "inbox").mkdir()
    orders = [{"customer": "ada", "amount": 9.0}, {"customer": "bob", "amount": 4.0}]
    (tmp_path / "inbox" / "1.json").write_text("".join(json.dumps(order) + "\n" for order in orders))
    page = (ROOT / "docs" / "stages.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    exec(compile(code, "stages.md", "exec"), {"spark": spark, "root": str(tmp_path)})
    scores = DeltaTable(str(tmp_path / "scores")).to_pyarrow_table().to_pylist()
    assert sorted((row["customer"], row["score"]) for row in scores) == [("ada", 0.9), ("bob", 0.4)]
