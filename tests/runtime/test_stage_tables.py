"""How the rows of a stage without an operator reach the staged files."""

import pyarrow as pa

from spark_ckpt.runtime.stage_query import _MARKER, _data_rows, _tables
from spark_ckpt.runtime.staging import ROWS_PER_WRITE


def batch(values, markers=None) -> pa.RecordBatch:
    marker = pa.array(markers or [None] * len(values), pa.int32())
    return pa.record_batch({"v": pa.array(values, pa.int64()), _MARKER: marker})


def test_control_rows_do_not_reach_the_sink():
    assert _data_rows(batch([1, None, 2], [None, 2, None])).to_pydict() == {"v": [1, 2]}


def test_a_batch_of_control_rows_only_is_empty():
    assert _data_rows(batch([None], [1])).num_rows == 0


def test_rows_without_control_rows_are_not_copied():
    rows = batch([1, 2])
    assert _data_rows(rows).column("v").buffers()[1].address == rows.column("v").buffers()[1].address


def test_small_batches_become_one_table_in_their_order():
    tables = list(_tables(iter([batch([1, 2]), batch([]), batch([3])])))
    assert [table["v"].to_pylist() for table in tables] == [[1, 2, 3]]


def test_a_table_is_handed_on_as_soon_as_it_fills_a_row_group():
    half = batch([0] * (ROWS_PER_WRITE // 2))
    assert [table.num_rows for table in _tables(iter([half] * 3))] == [ROWS_PER_WRITE, ROWS_PER_WRITE // 2]


def test_no_rows_are_no_table():
    assert list(_tables(iter([batch([])]))) == []
