"""Rows of a stage without an operator are joined into tables for the staged files."""

import pyarrow as pa

from spark_ckpt.tasks.packing import large_tables
from spark_ckpt.tasks.rows import ROWS_PER_WRITE


def batch(values) -> pa.RecordBatch:
    return pa.record_batch({"v": pa.array(values, pa.int64())})


def test_small_batches_become_one_table_in_their_order():
    tables = list(large_tables(iter([batch([1, 2]), batch([]), batch([3])]), ROWS_PER_WRITE))
    assert [table["v"].to_pylist() for table in tables] == [[1, 2, 3]]


def test_a_table_is_passed_on_as_soon_as_it_fills_a_row_group():
    half = batch([0] * (ROWS_PER_WRITE // 2))
    assert [table.num_rows for table in large_tables(iter([half] * 3), ROWS_PER_WRITE)] == [
        ROWS_PER_WRITE,
        ROWS_PER_WRITE // 2,
    ]


def test_no_rows_are_no_table():
    assert list(large_tables(iter([batch([])]), ROWS_PER_WRITE)) == []
