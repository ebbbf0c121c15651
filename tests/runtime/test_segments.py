import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_ckpt.tasks.operators.segments import Segments

NUMBERS = st.floats(allow_nan=False, width=64)
KEYED = st.integers(1, 6).flatmap(
    lambda keys: st.tuples(
        st.just(keys),
        st.lists(st.tuples(st.integers(0, keys - 1), NUMBERS), max_size=60),
        st.lists(NUMBERS, min_size=keys, max_size=keys),
    )
)


def naive(fold, row_key, values, initial):
    latest, results = list(initial), []
    with np.errstate(all="ignore"):
        for key, value in zip(row_key, values, strict=True):
            latest[key] = fold(latest[key], value)
            results.append(latest[key])
    return results


@pytest.mark.parametrize("fold", [np.add, np.minimum, np.maximum, np.fmin])
@given(KEYED)
def test_accumulate_is_bit_for_bit_a_loop_over_the_rows(fold, keyed):
    keys, rows, initial = keyed
    rows = [(key, 0.0) for key in range(keys)] + rows  # every key has a row
    row_key, values = np.array([key for key, _ in rows]), np.array([value for _, value in rows])
    with np.errstate(all="ignore"):
        result = Segments(row_key, keys).accumulate(fold, values, np.array(initial))
    expected = np.array(naive(fold, row_key, values, initial))
    if fold is not np.add:  # which of 0.0 and -0.0 is the lesser is numpy's choice
        result, expected = result + 0.0, expected + 0.0
    assert result.tobytes() == expected.tobytes()


def test_one_keys_huge_values_do_not_touch_anothers_small_ones():
    row_key, values = np.array([0, 1, 0, 1]), np.array([1e300, 0.1, np.inf, 0.2])
    assert Segments(row_key, 2).accumulate(np.add, values, np.zeros(2))[[1, 3]].tolist() == [0.1, 0.1 + 0.2]


@given(st.lists(st.integers(0, 3), max_size=30))
def test_numbering_counts_each_keys_rows_in_order(rows):
    row_key = np.array([0, 1, 2, 3, *rows])
    seen = [0] * 4
    expected = []
    for key in row_key:
        seen[key] += 1
        expected.append(seen[key])
    segments = Segments(row_key, 4)
    assert segments.numbering.tolist() == expected
    assert segments.counts.tolist() == seen
    assert [int(row_key[i]) for i in segments.last_rows] == [0, 1, 2, 3]
    assert segments.first_rows.tolist() == [0, 1, 2, 3]


def test_a_long_and_many_short_segments_in_one_batch():
    rng = np.random.default_rng(1)
    row_key = np.concatenate([np.arange(1000), np.zeros(5000, np.int64), rng.integers(0, 1000, 2000)])
    rng.shuffle(row_key)
    values = rng.integers(-9, 9, len(row_key))
    result = Segments(row_key, 1000).accumulate(np.add, values, np.zeros(1000, np.int64))
    assert result.tolist() == naive(lambda a, b: a + b, row_key, values, np.zeros(1000, np.int64))


def test_python_integers_fold_beyond_64_bits():
    result = Segments(np.array([0, 0]), 1).accumulate(
        np.add, np.array([2**63, 2**63], object), np.array([2**70], object)
    )
    assert result.tolist() == [2**70 + 2**63, 2**70 + 2**64]
