"""The console has a line for each incarnation and for an epoch, at most one a second."""

from __future__ import annotations

import logging

import pytest

from spark_ckpt.epochs.records import Manifest
from spark_ckpt.events import announcer as announcing
from spark_ckpt.events.announcer import CONSOLE, Announcer
from spark_ckpt.spark_session import console


@pytest.fixture
def lines(caplog, monkeypatch):
    monkeypatch.setattr(announcing.time, "monotonic", lambda: clock[0])
    clock = [100.0]
    caplog.set_level(logging.INFO, CONSOLE)
    announcer = Announcer("console test", 3, ())

    def committed(epoch, at_s, by=announcer):
        clock[0] = at_s
        manifest = Manifest(job="j", epoch=epoch, incarnation=3, attempt="a", created_ms=1, rows_in=1234, rows_out=5)
        by.committed(epoch, {}, manifest)

    return announcer, committed, lambda: [each.getMessage() for each in caplog.records if each.name == CONSOLE]


def test_an_incarnation_and_an_epoch_have_a_line_each(lines):
    announcer, committed, printed = lines
    announcer.started(41, "latest")
    committed(42, 100.0)
    announcer.ended(42, "stopped")
    assert printed() == [
        "job console test: incarnation 3 runs, from epoch 41",
        "job console test: epoch 42 committed, 1,234 rows in, 5 rows out",
        "job console test: incarnation 3 ended, at epoch 42",
    ]


def test_an_outbox_prints_no_rows_in_which_it_does_not_count(lines):
    _, committed, printed = lines
    committed(42, 100.0, Announcer("console test of an outbox", 3, (), "outbox"))
    assert printed() == ["outbox console test of an outbox: epoch 42 committed, 5 rows out"]


def test_the_session_prints_what_the_announcer_says():
    assert console.CONSOLE == CONSOLE


def test_short_epochs_have_a_line_a_second(lines):
    _, committed, printed = lines
    for number in range(25):
        committed(number, 200.0 + number / 10)
    assert len(printed()) == 3
