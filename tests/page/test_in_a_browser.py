"""The page in a real browser: it draws its data, runs no foreign script, and draws one page of 10,000 epochs."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from page_world import Elements, many_briefs, reported_world

from spark_ckpt.epochs.log_state import LogState, folded
from spark_ckpt.epochs.records import CreatedRecord
from spark_ckpt.observability.page.facts import COLUMNS, facts_of, rows_of
from spark_ckpt.observability.page.report import drawn, report
from spark_ckpt.observability.page.serving import PageServer
from spark_ckpt.store.standbys import StandbyNote, Standbys
from tests.store.store_world import ELSEWHERE

NOW_MS = 1_700_000_000_000
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: apt-get install chromium")


def opened(address: str, folder: Path, *options: str) -> str:
    """Return the page's elements once its script has run."""
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        f"--user-data-dir={folder / 'profile'}", *options, "--dump-dom", address,
    ]  # fmt: skip
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True, cwd=folder)
    return ran.stdout


def texts(dom: str) -> str:
    return re.sub(r"<script.*?</script>|<style.*?</style>|<[^>]+>", " ", dom, flags=re.DOTALL)


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "run.html"
    store = reported_world(tmp_path / "store").store
    Standbys(store.location).write("second", StandbyNote(holder=ELSEWHERE, waits_since_ms=NOW_MS, told_ms=NOW_MS))
    path.write_text(report(store, NOW_MS))
    return path


def test_a_report_draws_epochs_graph_incarnations_and_the_effect_of_a_restore(file, tmp_path):
    dom = opened(file.as_uri(), tmp_path)
    page = Elements(dom)
    rows = [given["data-epoch"] for tag, given in page.elements if tag == "tr" and "data-epoch" in given]
    assert rows == ["3", "2", "1"]
    assert len([tag for tag, _ in page.elements if tag == "rect"]) == 3
    visible = texts(dom)
    for expected in (
        "Job job",
        "7 rows wait",
        "1 row, not published",
        "job.start(restore=3)",
        "Incarnations",
        "400 ms",
        "publishing",
        "waits since",
    ):
        assert expected in visible


def test_hostile_names_are_visible_and_run_nothing(file, tmp_path):
    dom = opened(file.as_uri(), tmp_path)
    assert [tag for tag, _ in Elements(dom).elements if tag == "img"] == []
    assert "window.stolen=1" in texts(dom)


def test_the_live_page_draws_the_same_under_its_own_policy(tmp_path):
    world = reported_world(tmp_path / "store")
    server = PageServer([world.store.location.uri])
    server.start()
    try:
        dom = opened(server.url, tmp_path, "--virtual-time-budget=4000")  # until the answers are in
    finally:
        server.close()
    visible = texts(dom)
    for expected in ("Job job", "7 rows wait", "job.start(restore=3)", "State of a key at two epochs"):
        assert expected in visible


def test_the_live_page_repaints_with_every_answer_of_an_unchanged_log(tmp_path):
    """Ages change, and a driver that hangs shows without an event of its own."""
    world = reported_world(tmp_path / "store")
    server = PageServer([world.store.location.uri])
    server.start()
    try:
        dom = opened(server.url, tmp_path, "--virtual-time-budget=17000")
    finally:
        server.close()
    [body] = [given for tag, given in Elements(dom).elements if tag == "body"]
    assert int(body["data-repainted"]) >= 2
    assert "Failed: no sign of life" in texts(dom)


def test_the_graph_shows_its_last_box_completely(file, tmp_path):
    page = Elements(opened(file.as_uri(), tmp_path))
    [drawing] = [given for tag, given in page.elements if given.get("id") == "graph"]
    boxes = [given for tag, given in page.elements if tag == "rect"]
    _, _, wide, tall = map(float, drawing["viewbox"].split())
    assert max(float(box["x"]) + float(box["width"]) for box in boxes) <= wide
    assert max(float(box["y"]) + float(box["height"]) for box in boxes) <= tall
    assert "class" not in drawing  # so that it shrinks to the width of its card


def test_of_ten_thousand_epochs_one_page_is_drawn(tmp_path):
    """Drawn all at once they would take seconds. The time is not measured: it is that of a busy machine."""
    records = [(0, CreatedRecord(job="job", store_id="s")), *((0, brief) for brief in many_briefs(10_000))]
    log_state = folded(LogState(), records)
    small = facts_of(reported_world(tmp_path / "store").store, NOW_MS)
    job = small | {
        "columns": list(COLUMNS),
        "epochs": [list(row) for row in rows_of(log_state, NOW_MS)],
        "latest": 10_000,
        "newest": None,
    }
    path = tmp_path / "large.html"
    path.write_text(drawn("large", [job]))

    dom = opened(path.as_uri(), tmp_path)

    page = Elements(dom)
    assert "1 to 25 of 10,000" in texts(dom)
    assert len([tag for tag, given in page.elements if tag == "tr" and "data-epoch" in given]) == 25
    assert len(page.elements) < 1000
