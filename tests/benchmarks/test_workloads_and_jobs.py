"""Inputs are reproducible, and the jobs' expected outputs equal a slow computation, record by record."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator

import numpy as np
import pytest

from benchmarks.side_by_side.campaign import Campaign, Cell
from benchmarks.side_by_side.plan import QUICK
from benchmarks.side_by_side.workloads import WORKLOADS, Inputs, Workload, expected
from benchmarks.systems import job_module, systems

RECORDS = 2000


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    """Few keys, with pauses between a key's records around the session gap."""
    return Workload("few", keys=7).inputs(RECORDS)


def lines(inputs: Inputs) -> list[tuple[str, int, int, int]]:
    """Key, n, amount, event time, read from the Kafka values."""
    fields = [value.split(",") for _, value in inputs.records()]
    return [(key, int(n), int(amount), int(event)) for key, n, amount, event in fields]


def pass_through(inputs: Inputs) -> Iterator[str]:
    for key, n, amount, event in lines(inputs):
        yield f"{key},{n},{amount},{event}"


def running_sum(inputs: Inputs) -> Iterator[str]:
    sums: Counter[str] = Counter()
    for key, n, amount, _ in lines(inputs):
        sums[key] += amount
        yield f"{key},{n},{sums[key]}"


def sessions(inputs: Inputs) -> Iterator[str]:
    pause = job_module("sessions").PAUSE_MS
    last: dict[str, int] = {}
    session, rows, total = Counter[str](), Counter[str](), Counter[str]()
    for key, n, amount, event in lines(inputs):
        if key not in last or event - last[key] > pause:
            session[key] += 1
            rows[key] = total[key] = 0
        last[key] = event
        rows[key] += 1
        total[key] += amount
        yield f"{key},{n},{session[key]},{rows[key]},{total[key]}"


@pytest.mark.parametrize("slow", [pass_through, running_sum, sessions], ids=lambda each: each.__name__)
def test_a_jobs_expected_output_equals_a_loop_over_the_records(
    slow, inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    if slow is sessions:
        monkeypatch.setattr(job_module("sessions"), "PAUSE_MS", 9)

    found = expected(slow.__name__, inputs).to_pylist()

    assert [found[slot] for slot in inputs.slots] == list(slow(inputs))


def test_n_counts_the_records_of_a_key_from_one(inputs: Inputs) -> None:
    seen: dict[str, list[int]] = defaultdict(list)
    for key, n, _, _ in lines(inputs):
        seen[key].append(n)

    assert all(numbers == list(range(1, len(numbers) + 1)) for numbers in seen.values())


def test_the_kafka_key_is_the_records_key(inputs: Inputs) -> None:
    assert all(value.startswith(f"{key},") for key, value in inputs.records())


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_workload_is_the_same_every_time(name: str) -> None:
    first, second = (list(WORKLOADS[name].inputs(500).records()) for _ in range(2))

    assert first == second


def test_the_skewed_workload_follows_its_exponent() -> None:
    counts = np.sort(WORKLOADS["skewed-10k"].inputs(200_000).counts)[::-1]
    uniform = WORKLOADS["uniform-10k"].inputs(200_000).counts

    assert counts[0] / counts[9] == pytest.approx(10**1.2, rel=0.1)
    assert uniform.max() < 60


def test_a_system_that_is_for_one_measurement_is_left_out_of_the_others():
    chosen = {
        name: each for name, each in systems().items() if name in ("spark_ckpt-builtin", "spark_ckpt-standby-far")
    }
    cells = [Cell(measure, "running_sum", "uniform-10k") for measure in ("throughput", "recovery")]
    turns = Campaign(cells, chosen, QUICK, repeats=1).turns()
    assert [(cell.measure, system.name) for _, cell, system in turns] == [
        ("throughput", "spark_ckpt-builtin"),
        ("recovery", "spark_ckpt-builtin"),
        ("recovery", "spark_ckpt-standby-far"),
    ]


def test_a_standby_is_warm_when_it_says_so(tmp_path):
    (warm,) = {each.has_warm_standby for each in systems().values() if each.has_warm_standby is not None}
    notes = tmp_path / "store" / "standbys"
    assert not warm(str(tmp_path))
    notes.mkdir(parents=True)
    (notes / "a.json").write_text('{"warm": false}')
    assert not warm(str(tmp_path))
    (notes / "b.json").write_text('{"warm": true}')
    assert warm(str(tmp_path))
