"""`spark-ckpt line --as-of` counts rows that a restore of each program by its own clock would double, in real stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_ckpt.epochs.records import Position
from spark_ckpt.program_edges.line_stores import read_stores
from spark_ckpt.program_edges.wall_clock import EdgeAtMoment, WallClockCut, wall_clock_cut
from tests.cli.cli_world import CommandLine
from tests.edges.line_kit import ProgramKit

NOON_MS, SECOND = 1_767_960_000_000, 1_000
NOON = "2026-01-09T12:00:00Z"


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(capsys)


class Pair:
    """`orders` commits a row each second. `totals` reads at once, and its clock is slow by `slow_s`."""

    def __init__(self, folder: Path, slow_s: int) -> None:
        self.orders = ProgramKit(folder, "orders")
        self.totals = ProgramKit(folder, "totals", self.orders)
        for second in range(-3, 4):
            self.orders.commit(created_ms=NOON_MS + second * SECOND)
            self.totals.read(self.orders)
            self.totals.commit(created_ms=NOON_MS + (second - slow_s) * SECOND)

    @property
    def uris(self) -> list[str]:
        return [each.store.location.uri for each in (self.orders, self.totals)]

    def cut(self, at_ms: int = NOON_MS) -> WallClockCut:
        return wall_clock_cut(read_stores([self.orders.store.reopened(), self.totals.store.reopened()]), at_ms)


def edge(doubled: int = 0, in_transit: int = 0, lost_epochs: int = 0) -> EdgeAtMoment:
    return EdgeAtMoment("orders", "totals", "out", doubled, in_transit, lost_epochs)


def test_clocks_that_agree_make_a_line(tmp_path: Path) -> None:
    cut = Pair(tmp_path, slow_s=0).cut()
    assert cut.consistent
    assert cut.edges == (edge(),)


def test_the_rows_of_a_reader_with_a_slow_clock_are_doubled(tmp_path: Path) -> None:
    cut = Pair(tmp_path, slow_s=2).cut()
    assert cut.epochs == {"orders": 4, "totals": 6}
    assert cut.edges == (edge(doubled=2),)
    assert not cut.consistent
    assert cut.line is not None
    assert cut.line.epochs == {"orders": 4, "totals": 4}


def test_the_rows_that_a_reader_with_a_fast_clock_has_not_read_are_in_transit(tmp_path: Path) -> None:
    cut = Pair(tmp_path, slow_s=-2).cut()
    assert cut.epochs == {"orders": 4, "totals": 2}
    assert cut.edges == (edge(in_transit=2),)
    assert cut.consistent


def test_rows_that_retention_has_deleted_unread_are_lost(tmp_path: Path) -> None:
    pair = Pair(tmp_path, slow_s=-2)
    pair.orders.forget(4, 5, 6, 7)
    cut = pair.cut()
    assert cut.edges == (edge(in_transit=1, lost_epochs=1),)
    assert cut.line is None


def test_an_unread_epoch_whose_manifest_is_damaged_is_lost(tmp_path: Path) -> None:
    pair = Pair(tmp_path, slow_s=-2)
    for epoch in (2, 3):  # the reader has all of epoch 2
        pair.orders.damage(epoch)
    cut = pair.cut()
    assert cut.edges == (edge(in_transit=1, lost_epochs=1),)
    assert not cut.consistent


def test_the_rest_of_an_epoch_that_retention_has_deleted_is_lost(tmp_path: Path) -> None:
    orders = ProgramKit(tmp_path, "orders")
    totals = ProgramKit(tmp_path, "totals", orders)
    for second in range(-3, 4):
        orders.commit(created_ms=NOON_MS + second * SECOND)
    totals.positions["orders"] = Position(epoch=3, files=1, of=2)
    totals.commit(created_ms=NOON_MS)
    orders.forget(4, 5, 6, 7)
    cut = wall_clock_cut(read_stores([orders.store.reopened(), totals.store.reopened()]), NOON_MS + 4 * SECOND)
    assert cut.edges == (edge(in_transit=4, lost_epochs=1),)
    assert cut.line is None


def test_a_part_of_an_epoch_counts_with_its_files(tmp_path: Path) -> None:
    pair = Pair(tmp_path, slow_s=0)
    last = pair.totals.positions["orders"]
    pair.totals.positions["orders"] = Position(epoch=last.epoch, attempt=last.attempt, files=0, of=1)
    pair.totals.commit(created_ms=NOON_MS + 4 * SECOND)
    assert pair.cut(NOON_MS + 4 * SECOND).edges == (edge(in_transit=1),)


def test_rows_of_an_epoch_that_the_sender_has_undone_are_doubled(tmp_path: Path) -> None:
    pair = Pair(tmp_path, slow_s=0)
    pair.orders.begin(5)
    pair.orders.commit(created_ms=NOON_MS + 4 * SECOND)
    assert pair.cut(NOON_MS + 4 * SECOND).edges == (edge(doubled=2, in_transit=1),)


def test_a_moment_before_the_first_epoch_has_no_line(tmp_path: Path) -> None:
    cut = Pair(tmp_path, slow_s=0).cut(NOON_MS - 60 * SECOND)
    assert cut.epochs == {"orders": 0, "totals": 0}
    assert cut.line is None
    assert cut.edges == (edge(),)


def test_the_command_says_how_many_rows_and_names_the_line(command: CommandLine, tmp_path: Path) -> None:
    pair = Pair(tmp_path, slow_s=2)
    found = command("line", *pair.uris, "--as-of", NOON, "--json").json
    assert (found["doubled"], found["line"]) == (2, {"orders": 4, "totals": 4})
    text = command("line", *pair.uris, "--as-of", NOON).out
    assert "readers would have 2 rows that their senders send again" in text
    assert "orders@4, totals@4" in text


def test_the_line_that_the_command_names_is_the_one_that_restore_takes(command: CommandLine, tmp_path: Path) -> None:
    pair = Pair(tmp_path, slow_s=2)
    said = command("line", *pair.uris, "--as-of", NOON, "--json").json["line"]
    assert command("restore", *pair.uris, "--to", NOON, "--dry-run", "--json").json["epochs"] == said
