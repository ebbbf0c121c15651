"""The benchmark of the page requests a real server with a real store, and fails if it is slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.inside import page


def test_a_second_is_the_target_of_every_round() -> None:
    lines = page.table({"first": [900, 1200, 950], "again": [20, 30], "drawn": []}, 10_000)
    assert [line.split(" | ")[-1] for line in lines[2:]] == ["no |", "yes |", "no browser |"]


def test_the_requests_are_for_the_stores_epochs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page.shutil, "which", lambda name: None)
    found = page.measured(rounds=1, epochs=3)
    assert {name: len(ms) for name, ms in found.items()} == dict.fromkeys(page.NAMES, 1) | {"drawn": 0}
    assert min(found["first"]) > 0
    assert min(found["start, CPU"]) > 0


def test_a_store_that_cannot_be_read_is_no_measurement(tmp_path: Path) -> None:
    with page.served(str(tmp_path)) as served, pytest.raises(RuntimeError, match="there is no store here"):
        served.asked()


def test_a_page_that_draws_nothing_is_no_measurement(tmp_path: Path) -> None:
    browser = tmp_path / "browser"
    browser.write_text("#!/bin/sh\necho '<html></html>'\n")
    browser.chmod(0o755)
    with pytest.raises(RuntimeError, match="not drawn"):
        page.drawn_ms(str(browser), b"[]", tmp_path / "folder")
