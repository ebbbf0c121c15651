"""The view of a run in a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from spark_ckpt.epochs.records import EpochBrief
from spark_ckpt.observability.live_view import epoch_rate, follow, picture, rate, sparkline


def record(batch, rows=1000, **more):
    return {
        "job": "orders", "incarnation": 3, "epoch": 7, "batchId": batch, "numInputRows": rows, "processedRowsPerSecond": rows * 2.0,
        "durationMs": {"batch": 500}, "totals": {"numInputRows": 12_345, "numOutputRows": 99, "late": 0, "rejected": 0},
        "outage": None,
    } | more  # fmt: skip


def text_of(shown):
    console = Console(width=120, file=io.StringIO(), color_system=None)
    console.print(shown)
    return console.file.getvalue()


def test_rows_epoch_and_lag_are_there():
    shown = text_of(picture([record(1), record(2)], {"in": 1234}))
    for expected in ("job orders, incarnation 3", "12,345 in, 99 out", "7 committed", "in 1,234", "2, 0.50 s", "2,000"):
        assert expected in shown


def test_the_view_names_the_cause_of_a_wait():
    outage = {"condition": "CKPT_STORE_FULL", "waited_ms": 5000}
    assert "waits: CKPT_STORE_FULL, 5 s" in text_of(picture([record(1, outage=outage)], {}))


def test_the_view_has_the_times_of_the_newest_epochs_parts():
    parts = {"barrier": 120, "snapshot": 1480, "decision": 20}
    assert "barrier 0.12 s, snapshot 1.48 s, decision 0.02 s" in text_of(picture([record(1, epochPartsMs=parts)], {}))
    assert "alignment" not in text_of(picture([record(1)], {}))


def test_in_a_file_the_view_ends_with_a_line_break():
    console = Console(width=120, file=io.StringIO(), color_system=None)
    follow(lambda: [record(1)], dict, lambda _: True, console)
    printed = console.file.getvalue()
    assert printed.count("job orders") == 1
    assert printed.endswith("\n")


def test_omitted_rows_are_counted_only_if_there_are_any():
    totals = {"numInputRows": 1, "numOutputRows": 1, "late": 4, "rejected": 0}
    shown = text_of(picture([record(1, totals=totals)], {}))
    assert "4 rows" in shown
    assert "rejected" not in shown


def test_names_are_text_and_not_markup():
    assert "[red]orders[/red]" in text_of(picture([record(1, job="[red]orders[/red]")], {}))


@pytest.mark.parametrize(("over", "expected"), [(False, "starting"), (True, "ended before")])
def test_the_view_says_that_no_batch_has_run_yet(over, expected):
    assert expected in text_of(picture([], {}, over))


def test_the_rate_is_over_the_newest_batches_by_their_time():
    assert rate([record(1, rows=1000), record(2, rows=3000)]) == 4000
    assert rate([]) == 0


def test_the_line_of_bars_ends_as_high_as_the_newest_value():
    assert sparkline([0, 50, 100]) == "▁▅█"
    assert sparkline([0, 0]) == "▁▁"


def test_a_run_is_shown_until_it_is_over():
    console = Console(width=120, file=io.StringIO(), color_system=None)
    polls = iter([False, False, True])
    follow(lambda: [record(2)], dict, lambda wait_s: next(polls), console)
    assert "ended" in console.file.getvalue()
    assert next(polls, "all asked") == "all asked"


def test_watching_ends_after_the_given_time():
    console = Console(width=120, file=io.StringIO(), color_system=None)
    follow(lambda: [record(2)], dict, lambda wait_s: False, console, seconds=0)


def test_the_rate_of_epochs_is_over_the_time_between_them():
    briefs = [
        EpochBrief(
            epoch=number, incarnation=1, attempt="a", base=number - 1, previous=number - 1, created_ms=number * 2000,
            duration_ms=5, reason="interval", rows_in=number * 100, rows_out=0, sinks=(), acks=(),
        )
        for number in (1, 2, 3)
    ]  # fmt: skip
    assert epoch_rate(briefs) == (200 + 300) / 4
    assert epoch_rate(briefs[:1]) == epoch_rate([]) == 0
