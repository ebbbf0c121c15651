"""A report is one file with the content of the store, readable anywhere, safe for any names."""

from __future__ import annotations

import re

import pytest
from page_world import HOSTILE, Elements, reported_world

from spark_ckpt.cli.app import exit_code
from spark_ckpt.observability.page.report import asset, drawn, report

NOW_MS = 1_700_000_000_000


@pytest.fixture
def page(tmp_path):
    return Elements(report(reported_world(tmp_path / "store").store, NOW_MS))


def test_the_file_has_every_epoch_with_its_details(page):
    [job] = page.data
    assert [row[0] for row in job["epochs"]] == [1, 2, 3]
    assert job["details"]["2"]["epoch"]["sources"][0]["cursor"]["n"] == 2
    assert '"n": 2' in job["details"]["2"]["epoch"]["sources"][0]["position"]
    assert job["details"]["1"]["back"]["call"] == "job.start(restore=1)"


def test_hostile_names_stay_text(page):
    [job] = page.data
    assert job["details"]["3"]["epoch"]["sources"][0]["cursor"]["text"] == HOSTILE
    assert [tag for tag, _ in page.elements if tag in ("img", "iframe", "object", "embed", "base", "form")] == []
    assert len([tag for tag, _ in page.elements if tag == "script"]) == 2
    assert [name for _, given in page.elements for name in given if name.startswith("on")] == []


def test_a_planted_page_with_unescaped_data_is_found():
    """A planted bug: the reader of these tests finds an element that escapes from the data."""
    escaped = drawn("t", [{"job": HOSTILE}])
    naive = re.sub(
        r'(id="data">).*?(</script>\n<script>)',
        lambda found: f"{found[1]}{HOSTILE}{found[2]}",
        escaped,
        flags=re.DOTALL,
    )
    assert "img" not in [tag for tag, _ in Elements(escaped).elements]
    assert "img" in [tag for tag, _ in Elements(naive).elements]


def test_a_hostile_title_is_escaped():
    page = Elements(drawn(HOSTILE, [{"job": "x"}]))
    assert "img" not in [tag for tag, _ in page.elements]


def test_the_file_loads_nothing(page):
    assert [value for _, given in page.elements for name, value in given.items() if name in ("src", "href")] == []
    [policy] = [given["content"] for tag, given in page.elements if given.get("http-equiv")]
    assert policy.startswith("default-src 'none'")


def test_the_script_puts_texts_into_the_page_as_text_only():
    script = asset("page.js")
    forbidden = ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "</script")
    assert [each for each in forbidden if each in script] == []


def test_the_command_writes_the_file_and_prints_its_path(tmp_path, capsys):
    world = reported_world(tmp_path / "store")
    code = exit_code(["report", world.store.location.uri, "-o", str(tmp_path / "run.html")])
    assert code == 0
    assert "run.html" in capsys.readouterr().out
    assert Elements((tmp_path / "run.html").read_text()).data[0]["job"] == "job"


def test_an_output_that_cannot_be_written_is_reported(tmp_path, capsys):
    world = reported_world(tmp_path / "store")
    assert exit_code(["report", world.store.location.uri, "-o", str(tmp_path / "no" / "run.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err
