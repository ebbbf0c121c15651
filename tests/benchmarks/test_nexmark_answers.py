"""The judge of NEXMark's outputs finds planted faults: duplicate, missing and changed records, in every query."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from benchmarks.nexmark.answers import expected, judge
from benchmarks.nexmark.events import Events, events
from benchmarks.side_by_side.oracle import Outputs, Verdict
from benchmarks.systems import job_module

JOBS = [f"nexmark_q{query}" for query in (0, 1, 2, 3, 4, 5, 7, 8, 11, 12, 18, 19, 20)]
RUNNING = [job for job in JOBS if hasattr(job_module(job), "KEY")]


@pytest.fixture(scope="module")
def made() -> Events:
    return events(20_000, per_second=500)


def outputs(values: Sequence[str], partitions: int) -> list[Outputs]:
    parts = [[value.encode() for value in values[partition::partitions]] for partition in range(partitions)]
    return [Outputs(pa.chunked_array([pa.array(part, pa.binary())]), np.arange(len(part)) * 2) for part in parts]


def exact(job: str, made: Events) -> list[str]:
    """The exact output of a job, as a system writes it."""
    answer = expected(job, made)
    if job in RUNNING:
        answer = answer.drop_duplicates(list(job_module(job).KEY))
    if job == "nexmark_q12":
        answer = answer.assign(starttime=0, endtime=10_000)
    return [json.dumps(row) for row in as_written(job, answer)]


def as_written(job: str, answer: pd.DataFrame) -> list[dict[str, object]]:
    columns = {}
    for name, kind in job_module(job).COLUMNS.items():
        values = answer[name]
        if kind == "time":
            values = pd.to_datetime(values, unit="ms", utc=True).map(
                lambda each: each.isoformat(timespec="milliseconds")
            )
        columns[name] = values.astype(float) / 1000 if kind == "thousandths" else values
    return pd.DataFrame(columns).to_dict("records")


def judged(job: str, values: Sequence[str], made: Events) -> Verdict:
    partitions = 1 if job in RUNNING else 2  # a key has one partition
    return judge(job, outputs(values, partitions), expected(job, made))[0]


def faults(verdict: Verdict) -> tuple[int, int, int]:
    return verdict.duplicates, verdict.missing, verdict.wrong


@pytest.mark.parametrize("job", JOBS)
def test_an_exact_output_has_no_faults(job: str, made: Events) -> None:
    values = exact(job, made)
    assert len(values) > 2
    assert faults(judged(job, values, made)) == (0, 0, 0)


@pytest.mark.parametrize("job", JOBS)
def test_a_missing_record_is_found(job: str, made: Events) -> None:
    assert faults(judged(job, exact(job, made)[1:], made)) == (0, 1, 0)


@pytest.mark.parametrize("job", [job for job in JOBS if job not in (*RUNNING, "nexmark_q12")])
def test_a_record_twice_is_found(job: str, made: Events) -> None:
    values = exact(job, made)
    assert faults(judged(job, [*values, values[2]], made)) == (1, 0, 0)


@pytest.mark.parametrize("job", JOBS)
def test_a_changed_record_is_found(job: str, made: Events) -> None:
    first, *rest = exact(job, made)
    record = json.loads(first)
    key = getattr(job_module(job), "KEY", ())
    number = [name for name, value in record.items() if isinstance(value, int | float) and name not in key][-1]
    changed = record | {number: record[number] + 1}
    assert faults(judged(job, [json.dumps(changed), *rest], made)) == (0, 1, 1)


def test_a_running_answer_is_its_last_record_of_each_key(made: Events) -> None:
    values = exact("nexmark_q4", made)
    earlier = json.dumps({**json.loads(values[0]), "final": 1})

    assert faults(judged("nexmark_q4", [earlier, earlier, *values], made)) == (0, 0, 0)
    assert faults(judged("nexmark_q4", [*values, earlier], made)) == (0, 1, 1)


@pytest.fixture(scope="module")
def tied(made: Events) -> Events:
    """Events with two bids for the first auction by one person, at one time and price."""
    bids = made.bid.iloc[:2].assign(
        **{name: made.bid[name].iloc[0] for name in ("auction", "bidder", "price", "dateTime")}
    )
    return replace(made, bid=bids)


def test_any_of_the_bids_of_one_moment_is_the_last(tied: Events) -> None:
    first, second = [json.dumps(row) for row in as_written("nexmark_q18", expected("nexmark_q18", tied))]

    for values in ([first], [second], [first, second]):
        assert faults(judged("nexmark_q18", values, tied)) == (0, 0, 0)


def test_bids_of_one_price_have_either_order_and_each_one_rank(tied: Events) -> None:
    first, second = as_written("nexmark_q19", expected("nexmark_q19", tied))[:2]
    exchanged = [first | {"rank_number": 2}, second | {"rank_number": 1}]

    assert faults(judged("nexmark_q19", [json.dumps(row) for row in exchanged], tied)) == (0, 0, 0)
    twice = [first, first | {"rank_number": 2}]
    assert faults(judged("nexmark_q19", [json.dumps(row) for row in twice], tied)) == (0, 1, 0)


def test_a_bid_in_two_windows_of_the_machines_clock_is_found(made: Events) -> None:
    first, *rest = exact("nexmark_q12", made)
    later = {"starttime": "1970-01-01 00:00:10", "endtime": "1970-01-01 00:00:20"}
    again = json.dumps({**json.loads(first), **later})

    assert faults(judged("nexmark_q12", [first, again, *rest], made)) == (0, 1, 1)


def test_a_record_of_another_form_is_no_answer(made: Events) -> None:
    for damaged in ('{"auction":1}', '{"auction":1,"price":2,"more":3}', "{"):
        with pytest.raises(ValueError):
            judged("nexmark_q2", [*exact("nexmark_q2", made), damaged], made)
