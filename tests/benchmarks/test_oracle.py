"""Every fault planted in an output is found and counted as its kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.side_by_side.oracle import Outputs, Progress, Verdict, judge
from benchmarks.side_by_side.workloads import Inputs, Workload, expected

RECORDS = 2000
INPUTS = Workload("few", keys=20).inputs(RECORDS)
EXPECTED = expected("running_sum", INPUTS)
CLEAN = Verdict(records=RECORDS, duplicates=0, missing=0, wrong=0, reordered=0)


def outputs(inputs: Inputs = INPUTS) -> list[list[bytes]]:
    """Exact outputs, in two partitions by key."""
    texts = EXPECTED.to_pylist()
    partitions: list[list[bytes]] = [[], []]
    for key, slot in zip(inputs.keys, inputs.slots, strict=True):
        partitions[key % 2].append(texts[slot].encode())
    return partitions


def judged(partitions: Sequence[Sequence[bytes | None]], *, every_input: bool = True) -> tuple[Verdict, Progress]:
    """Judge in chunks, with a gap in the offsets after each record, as markers of transactions leave it."""
    read = [
        Outputs(
            pa.chunked_array([pa.array(part[i : i + 300], pa.binary()) for i in range(0, len(part), 300)], pa.binary()),
            np.arange(len(part)) * 2,
        )
        for part in partitions
    ]
    return judge(read, INPUTS, EXPECTED, every_input=every_input)


def verdict(partitions: Sequence[Sequence[bytes | None]]) -> dict[str, int]:
    """Counts of faults that are not zero."""
    found, _ = judged(partitions)
    return {name: value for name, value in vars(found).items() if value != getattr(CLEAN, name)}


def position_of(part: list[bytes], key: int, n: int) -> int:
    return next(i for i, value in enumerate(part) if value.startswith(f"k{key},{n},".encode()))


def test_an_exact_output_is_clean() -> None:
    assert judged(outputs())[0] == CLEAN


def test_an_empty_output_is_clean() -> None:
    assert verdict([[], []]) == {"records": 0}


def test_output_that_may_still_come_is_not_missing() -> None:
    parts = outputs()

    assert verdict([parts[0][:100], parts[1][:50]]) == {"records": 150}


def test_duplicates_are_counted_within_and_across_partitions() -> None:
    parts = outputs()
    parts[0].append(parts[0][7])
    parts[1].append(parts[0][7])

    assert verdict(parts) == {"records": RECORDS + 2, "duplicates": 2}


def test_a_hole_is_missing() -> None:
    parts = outputs()
    del parts[1][position_of(parts[1], key=3, n=5)]

    assert verdict(parts) == {"records": RECORDS - 1, "missing": 1}


def test_the_first_record_of_a_key_can_be_missing() -> None:
    parts = outputs()
    del parts[0][position_of(parts[0], key=4, n=1)]

    assert verdict(parts) == {"records": RECORDS - 1, "missing": 1}


def test_a_record_counted_twice_into_a_sum_is_wrong() -> None:
    parts = outputs()
    place = position_of(parts[0], key=4, n=9)
    key, n, total = parts[0][place].decode().split(",")
    parts[0][place] = f"{key},{n},{int(total) + 1}".encode()

    assert verdict(parts) == {"wrong": 1}


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"k1",
        b"k1,1",
        b"nonsense",
        b"k99,1,5",
        b"k1,0,5",
        b"k1,999999,5",
        b"k1,1e0,5",
        b"k-1,1,5",
        b"\xff,1,1",
        None,
    ],
    ids=repr,
)
def test_a_record_that_answers_no_input_is_wrong_and_hides_no_other(value: bytes | None) -> None:
    parts: list[list[bytes | None]] = [list(part) for part in outputs()]
    parts[0].insert(10, value)

    assert verdict(parts) == {"records": RECORDS + 1, "wrong": 1}


def test_another_spelling_of_a_right_answer_is_wrong() -> None:
    parts = outputs()
    parts[1][0] = parts[1][0].replace(b",", b",0", 1)

    assert verdict(parts) == {"wrong": 1}


def test_a_keys_records_out_of_order_are_found() -> None:
    parts = outputs()
    a, b = position_of(parts[0], key=4, n=9), position_of(parts[0], key=4, n=10)
    parts[0][a], parts[0][b] = parts[0][b], parts[0][a]

    assert verdict(parts) == {"reordered": 1}


def test_different_keys_may_overtake_one_another() -> None:
    parts = outputs()
    parts[0].sort(key=lambda value: value.split(b",")[0])

    assert verdict(parts) == {}


def test_a_replay_counts_as_duplicates_and_not_as_disorder() -> None:
    parts = outputs()
    parts[0][100:100] = parts[0][50:100]

    assert verdict(parts) == {"records": RECORDS + 50, "duplicates": 50}


def test_progress_counts_an_input_once_and_by_offsets() -> None:
    parts = outputs()
    parts[0][100:100] = parts[0][50:100]
    _, progress = judged(parts)

    covered = progress.at(np.array([[0, 0], [1, 0], [200, 0], [300, 0], [302, 11], [10_000, 10_000]]))

    assert covered.tolist() == [[0, 0], [1, 0], [100, 0], [100, 0], [101, 6], [len(parts[0]) - 50, len(parts[1])]]


def test_running_values_may_skip_inputs_and_cover_earlier_ones() -> None:
    parts = outputs()
    few = [
        [part[position_of(part, key, 30)] for key in keys] for part, keys in zip(parts, ([0, 2], [1, 3]), strict=True)
    ]
    repeated = [[*few[0], few[0][0]], few[1]]

    found, progress = judged(repeated, every_input=False)

    assert found == Verdict(records=5, duplicates=1, missing=0, wrong=0, reordered=0)
    assert progress.at(np.array([[2, 0], [100, 100]])).tolist() == [[30, 0], [60, 60]]
