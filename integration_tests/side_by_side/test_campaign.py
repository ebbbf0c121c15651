"""The measuring side on a known system: exact, repeating records, or dying."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from confluent_kafka.admin import AdminClient

from benchmarks.report.lines import Line
from benchmarks.side_by_side import campaign, drain
from benchmarks.side_by_side.campaign import Bench, Campaign, Cell, bench, measure_all
from benchmarks.side_by_side.environments import prepare
from benchmarks.side_by_side.plan import Plan, Window
from benchmarks.systems import Environment, System

pytestmark = [pytest.mark.kafka, pytest.mark.kill]
HERE = Environment("here")
PLAN = Plan(
    records=300_000, events=20_000, interval_ms=500, throughput=Window(1, 3), latency_interval_ms=200, latency=Window(1, 2),
    rate=200,
)  # fmt: skip


def system(hook: str) -> System:
    return System(hook, hook, hook, "exactly-once", HERE, "integration_tests.side_by_side.copier")


@pytest.fixture(scope="module")
def on() -> Iterator[Bench]:
    with bench(PLAN, {HERE.name: prepare(HERE)}, print) as one:
        yield one


def measured(on: Bench, measure: str, hook: str, monkeypatch: pytest.MonkeyPatch) -> Line:
    monkeypatch.setattr(campaign.job_module("pass_through"), hook, None, raising=False)
    plan = Campaign([Cell(measure, "pass_through", "uniform-10k")], {hook: system(hook)}, PLAN, repeats=1)
    (line,) = measure_all(plan, on)
    return line


def faults(line: Line) -> dict[str, float]:
    return {name: line.values[name] for name in ("duplicates", "missing", "wrong", "reordered")}


NO_FAULTS = {"duplicates": 0, "missing": 0, "wrong": 0, "reordered": 0}


@pytest.mark.parametrize(
    "measure", [pytest.param(each, marks=pytest.mark.long) for each in ("throughput", "latency", "recovery")]
)
def test_an_exact_system_is_measured_and_found_exact(measure: str, on: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    line = measured(on, measure, "copying", monkeypatch)

    assert faults(line) == NO_FAULTS
    assert line.values["records"] > 0
    times = {"throughput": "records_per_s", "latency": "p50_ms", "recovery": "first_record_s"}
    assert line.values[times[measure]] > 0


@pytest.mark.long  # in the gate: tests/benchmarks/test_report.py
def test_a_system_that_repeats_records_is_found_out(on: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    found = faults(measured(on, "throughput", "repeating", monkeypatch))
    assert 1 <= found["duplicates"] <= 4, "one in each partition that the system has read so far"
    assert found == NO_FAULTS | {"duplicates": found["duplicates"]}


class Bids:
    """Bids that are q2's answer, unchanged in the topic."""

    def __init__(self, count: int) -> None:
        self.bid = pd.DataFrame({"auction": np.arange(count) % 40 * 123, "price": np.arange(count)})

    def __len__(self) -> int:
        return len(self.bid)

    def values(self) -> Iterator[str]:
        return (json.dumps(row) for row in self.bid.to_dict("records"))


@pytest.mark.long  # in the gate: tests/benchmarks
@pytest.mark.parametrize(("hook", "duplicates"), [("copying", 0), ("repeating", 4)])
def test_a_query_is_measured_to_the_end_of_its_topic_and_its_answer_judged(
    hook: str, duplicates: int, on: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "events", lambda count: Bids(count))
    monkeypatch.setattr(on, "filled_events", None)
    monkeypatch.setattr(drain, "QUIET_S", 4.0)
    monkeypatch.setattr(campaign.job_module("nexmark_q2"), hook, None, raising=False)
    plan = Campaign([Cell("drain", "nexmark_q2", "nexmark")], {hook: system(hook)}, PLAN, repeats=1)

    (line,) = measure_all(plan, on)

    assert faults(line) == NO_FAULTS | {"duplicates": duplicates}
    assert line.values["records"] == PLAN.events + duplicates
    assert line.values["first_output_s"] < line.values["drained_s"] < 60
    assert line.values["records_per_s"] == pytest.approx(PLAN.events / line.values["drained_s"])


@pytest.mark.long  # in the gate: tests/benchmarks/test_report.py
def test_a_system_that_dies_is_a_failed_line_and_its_log_is_shown(
    on: Bench, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = measured(on, "throughput", "dying", monkeypatch)

    assert line.failed == "a process ended"
    assert "there is no such thing" in capsys.readouterr().err


@pytest.mark.long  # in the gate: tests/benchmarks
def test_topics_and_processes_are_removed_at_the_end(on: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(on, "latency", "copying", monkeypatch)

    topics = AdminClient({"bootstrap.servers": on.topics.servers}).list_topics(timeout=10).topics
    assert not [name for name in topics if name.startswith(("target", "paced"))]
    assert not [path for path in on.folder.iterdir() if path.name.startswith("copying")]
    assert not [line for line in command_lines() if "copier" in line and str(on.folder) in line]


def command_lines() -> Iterator[str]:
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            yield (entry / "cmdline").read_text(errors="replace")
