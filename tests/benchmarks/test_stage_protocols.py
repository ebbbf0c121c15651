"""The comparison of the protocols between stages reads tables and the stages' events."""

from __future__ import annotations

import datetime
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import CommitProperties, write_deltalake

import spark_ckpt as ckpt
from benchmarks.inside import stage_protocols
from benchmarks.inside.stage_protocols import Figures, Heard, cells, charts, commits, line_of, row
from spark_ckpt.coordination.stage_process import Between

MOMENT_MS = 1_700_000_000_000


def append(table: Path, *created_ms: int) -> None:
    moments = [datetime.datetime.fromtimestamp(each / 1000, datetime.UTC) for each in created_ms]
    rows = pa.table({"at": pa.array(moments, pa.timestamp("us", "UTC")), "k": [0] * len(moments)})
    write_deltalake(str(table), rows, mode="append", commit_properties=CommitProperties())


def test_each_commit_of_the_table_has_the_creation_of_its_rows(tmp_path: Path) -> None:
    append(tmp_path / "table", MOMENT_MS, MOMENT_MS + 5)
    append(tmp_path / "table", MOMENT_MS + 9)

    first, second = commits(tmp_path / "table")

    assert (first[0], sorted(first[1].rows_ms)) == (0, [MOMENT_MS, MOMENT_MS + 5])
    assert (second[0], second[1].rows_ms) == (1, [MOMENT_MS + 9])
    assert second[1].at_ms >= first[1].at_ms > MOMENT_MS
    assert commits(tmp_path / "table", after=0) == [second]


def test_a_line_takes_from_the_first_stage_that_serves_it_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    listening, now_s = Heard(), [0.0]
    monkeypatch.setattr(stage_protocols.time, "monotonic", lambda: now_s[0])
    for now_s[0], main, last in ((1.0, 7, 0), (2.0, 8, 0), (2.5, 8, 7), (4.5, 8, 8)):
        listening.onLines(ckpt.LineEvent("protocols.main", {"main": main, "last": last}))

    assert listening.lines_s() == [1.5, 2.5]


def test_a_loop_is_not_measured_with_aligned_stages() -> None:
    measured = list(cells(["q1", "cycle"], ["even"]))

    assert {cell.protocol for cell in measured if cell.query == "q1"} == set(Between)
    assert {cell.protocol for cell in measured if cell.query == "cycle"} == set(Between) - {Between.ALIGNED}


def test_a_cell_becomes_a_row_of_the_table_and_a_bar_of_its_chart() -> None:
    cell = next(cells(["q3"], ["skewed"]))
    line = line_of(cell, Figures(1.04, 2.5, 480.4, 30, None, 7.0, 4_000, 0.25, 21_430))

    assert row(line) == "| q3 | independent | 1.0 | 2.5 | 480 | 30 | - | 7.0 | 4,000 | 25% | 21,430 |"
    [chart] = charts([line])
    assert chart.file == "skewed.svg"
    assert [(bar.label, bar.mark) for bar in chart.bars] == [("q3, independent", 1.04)]
