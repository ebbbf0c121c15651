"""Rates, CPU and waiting times from scripted samples; result lines on disk."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.report.lines import Line, read
from benchmarks.side_by_side.latency import covered_from, waits_ms
from benchmarks.side_by_side.results import Results, inside_lines
from benchmarks.side_by_side.throughput import rate_after_warm_up
from benchmarks.side_by_side.timeline import Timeline, rate
from benchmarks.side_by_side.trial import Failed
from benchmarks.side_by_side.usage import Cpu, Process, parsed
from benchmarks.side_by_side.workloads import Workload

MANY = 10**9
MOMENTS = np.arange(0, 40, 0.1)


def timeline(*partitions: np.ndarray) -> Timeline:
    return Timeline(MOMENTS, np.stack(partitions, axis=1).astype(int))


def commits(per_s: float, every_s: float, phase_s: float = 0.0) -> np.ndarray:
    """Records that become visible in steps."""
    return np.floor((MOMENTS + 1e-6 - phase_s) / every_s).clip(0) * every_s * per_s


def test_the_rate_of_a_steady_stream() -> None:
    found = rate(timeline(MOMENTS * 100, MOMENTS * 50), 10, 30, MANY)

    assert found is not None
    assert found.per_s == pytest.approx(150, rel=0.01)
    assert (found.start, found.stop) == (pytest.approx(10, abs=0.2), pytest.approx(30, abs=0.2))


@pytest.mark.parametrize("phase_s", [0.0, 0.5, 2.5, 4.9])
def test_steps_are_counted_completely_and_per_partition(phase_s: float) -> None:
    found = rate(timeline(commits(100, 5), commits(50, 5, phase_s)), 10, 31, MANY)

    assert found is not None
    assert found.per_s == pytest.approx(150, rel=0.01)


def test_the_warm_up_does_not_count() -> None:
    slow_then_fast = np.where(MOMENTS < 10, MOMENTS, 10 + (MOMENTS - 10) * 100)

    found = rate(timeline(slow_then_fast), 10, 30, MANY)

    assert found is not None
    assert found.per_s == pytest.approx(100, rel=0.02)


def test_a_topic_that_runs_dry_ends_the_window() -> None:
    found = rate(timeline(np.minimum(MOMENTS * 100, 2000)), 10, 39, 2000)

    assert found is not None
    assert found.per_s == pytest.approx(100, rel=0.01)
    assert found.stop == pytest.approx(20, abs=0.2)


def test_a_system_that_stalls_before_the_end_is_slow() -> None:
    found = rate(timeline(np.minimum(MOMENTS * 100, 2000)), 10, 30, MANY)

    assert found is not None
    assert found.per_s == pytest.approx(50, rel=0.02)


def test_one_commit_is_no_rate() -> None:
    assert rate(timeline(commits(100, 15)), 10, 20, MANY) is None


def test_a_topic_exhausted_early_shortens_the_warm_up_and_nothing_else_does() -> None:
    steps = np.minimum(commits(100, 4), 1200)

    found, warm_up_s = rate_after_warm_up(timeline(steps), 0.0, 39.0, 1200, warm_up_s=10.0)

    assert (found.per_s, warm_up_s) == (pytest.approx(100, rel=0.01), 5.0)
    with pytest.raises(Failed, match="two commits"):
        rate_after_warm_up(timeline(steps), 0.0, 39.0, MANY, warm_up_s=10.0)


def test_cpu_of_ended_processes_stays_counted() -> None:
    cpu = Cpu()
    cpu.add(0.0, [Process(7, 100, 1, 1.0), Process(8, 100, 1, 4.0)])
    cpu.add(1.0, [Process(7, 100, 1, 1.5)])
    cpu.add(2.0, [Process(7, 100, 1, 2.0), Process(8, 900, 1, 0.25)])

    assert cpu.used_s == [5.0, 5.5, 6.25]
    assert cpu.between(0.0, 2.0) == pytest.approx(1.25)
    assert cpu.between(0.5, 1.0) == pytest.approx(0.25)


def test_a_line_of_proc_is_read_after_any_process_name() -> None:
    rest = "S 1 70 71 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 1 0 12345 1000 10"

    assert parsed(72, f"72 (a) b (c) {rest}") == Process(72, 12345, 71, pytest.approx(3.0))
    assert parsed(72, f"72 (a) {rest.replace('S', 'Z', 1)}") is None


def test_waits_are_of_inputs_in_the_window_and_last_at_least_until_the_end() -> None:
    created = np.array([0.9, 1.0, 1.5, 2.0, np.inf])
    came = np.array([1.0, 1.25, np.inf, 2.1, np.inf])

    assert waits_ms(created, came, 1.0, 2.0, seen_until=3.0).tolist() == [250.0, 1500.0]


def test_a_later_output_of_the_key_answers_earlier_inputs() -> None:
    inputs = Workload("few", keys=3).inputs(12)
    came = np.full(12, np.inf)
    of_key_1 = inputs.starts[1]
    came[of_key_1 + 1] = 50.0
    came[of_key_1 + 2] = 40.0
    came[inputs.starts[2]] = 7.0

    found = covered_from(came, inputs)

    assert found[of_key_1 : of_key_1 + 3].tolist() == [40.0, 40.0, 40.0]
    assert found[inputs.starts[2]] == 7.0
    assert np.isinf(found[: inputs.counts[0]]).all()
    assert np.isinf(found[of_key_1 + 3 : inputs.starts[2]]).all()


def line(system: str, repeat: int, text: str = "") -> Line:
    return Line(measure="table", system=system, repeat=repeat, values={"markdown": text})


def machine(load: float) -> Line:
    values = {"cores": 2, "memory_gib": 8.0, "system": "Linux", "versions": {}, "load": load, "date": "2000-01-01"}
    return Line(measure="machine", values=values)


def test_lines_survive_a_file(tmp_path: Path) -> None:
    results = Results(tmp_path / "new" / "results.jsonl")
    written = [machine(0.5), line("a", 0, "x"), line("b", 0), line("a", 1)]
    for each in written:
        results.add(each)

    assert read(results.path) == written


def test_a_repeated_measurement_replaces_its_lines_only(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    first = Results(path)
    for each in (machine(1), line("a", 0), line("b", 0), machine(2), line("a", 1)):
        first.add(each)
    again = Results(path)
    for each in (machine(3), line("a", 0, "new"), line("a", 1, "new")):
        again.add(each)

    assert read(path) == [machine(1), line("b", 0), machine(3), line("a", 0, "new"), line("a", 1, "new")]


def test_a_measurement_at_one_rate_keeps_those_at_another(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    slow, fast = (
        Line(measure="latency", system="a", values={"failed": "it broke", "rate": rate}) for rate in (1000, 10_000)
    )
    Results(path).add(slow)
    Results(path).add(fast)
    Results(path).add(fast)

    assert read(path) == [slow, fast]


def test_tables_and_lines_of_inside_measurements_are_kept_separately() -> None:
    own = Line(measure="interval", interval_ms=5, values={"records_per_s": 1.5, "lost": 0.1})
    printed = f"| a | b |\nsome noise\n{own.model_dump_json()}\n| 1 | 2 |\n"

    assert inside_lines("epochs", printed, 0) == [
        own,
        Line(measure="table", system="epochs", values={"markdown": "| a | b |\n| 1 | 2 |"}),
    ]


def test_an_inside_measurement_that_failed_keeps_its_lines_and_its_error() -> None:
    own = Line(measure="interval", interval_ms=5, values={"records_per_s": 1.5, "lost": 0.1})
    printed = f"{own.model_dump_json()}\n| half | a table |\n"

    assert inside_lines("epochs", printed, 137) == [
        own,
        Line(measure="table", system="epochs", values={"failed": "ended with code 137"}),
    ]
