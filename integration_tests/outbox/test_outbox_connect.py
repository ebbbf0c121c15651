"""An outbox through Spark Connect: its function runs in a process of the server, which the long test kills once."""

from __future__ import annotations

from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from integration_tests.outbox.outbox_query import write_files
from integration_tests.outbox.outbox_verdicts import of_windows, rows, run_until_done, wrong

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.timeout(900)]
FILES, CASE = range(4), "windows/RocksDB"


@pytest.mark.long  # in the gate: the classic session, test_outbox.py; tests/outbox/test_rule.py
def test_every_row_is_once_in_both_tables_through_connect(tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES)
    assert run_until_done(tmp_path, ["whole/windows"], remote=True, timeout_s=400) == 1
    assert rows(tmp_path / "whole" / "windows") == of_windows(FILES)


@pytest.mark.long  # in the gate: the test above, and integration_tests/outbox/test_outbox_killed.py
def test_every_row_is_once_in_both_tables_after_a_kill_through_connect(tmp_path: Path) -> None:
    write_files(tmp_path / "in", FILES)
    assert run_until_done(tmp_path, [CASE], remote=True, timeout_s=400) == 2
    assert wrong(tmp_path, CASE, FILES) == ""
    table = str(tmp_path / CASE / "some")
    some = DeltaTable(table).to_pyarrow_table()
    write_deltalake(table, some.slice(0, 1), mode="append")
    assert wrong(tmp_path, CASE, FILES) == "some has 1 rows more"
    write_deltalake(table, some.slice(1), mode="overwrite")
    assert wrong(tmp_path, CASE, FILES) == "some lacks 1 rows"
