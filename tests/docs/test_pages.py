from itertools import takewhile
from pathlib import Path

from spark_ckpt.pages.connectors import connectors_page
from spark_ckpt.pages.settings import settings_page

DOCS = Path(__file__).parents[2] / "docs"
HEAD = "| | what is promised | kept by a test in |"


def test_the_settings_page_is_what_the_settings_say():
    """Regenerate with: python -m spark_ckpt.pages.settings > docs/settings.md"""
    assert (DOCS / "settings.md").read_text() == settings_page()


def test_the_page_of_sources_and_sinks_is_what_their_docstrings_say():
    """Regenerate with: python -m spark_ckpt.pages.connectors > docs/connectors.md"""
    assert (DOCS / "connectors.md").read_text() == connectors_page()


def test_every_page_that_the_readme_names_exists():
    readme = (DOCS.parent / "README.md").read_text()
    named = {word.strip("`.,:") for word in readme.split() if word.strip("`").startswith("docs/")}

    missing = [name for name in sorted(named) if not (DOCS.parent / name).exists()]

    assert named
    assert missing == []


def test_the_gate_runs_the_tests_as_the_readme_says():
    readme, gate = (DOCS.parent / "README.md").read_text(), (DOCS.parent / ".ci" / "run").read_text()
    (command,) = [line for line in readme.splitlines() if ".[test]" in line]

    assert f"{command.split(' && ')[-1]} || code=$?" in gate.splitlines()


def test_every_promise_names_a_test_that_exists():
    """The table of promises up to what is outside of them: its last column. A second name is of the same folder."""
    lines = [line for line in (DOCS.parent / "README.md").read_text().splitlines() if line.startswith("| ")]
    promises = takewhile(lambda line: "**outside**" not in line, lines[lines.index(HEAD) + 1 :])
    columns = [line.strip("| ").split(" | ")[-1].replace("`", "").split(", ") for line in promises]
    named = [(DOCS.parent / column[0]).parent / Path(name).name for column in columns for name in column]

    assert len(columns) == 16
    assert [str(path) for path in named if not path.is_file()] == []


def test_what_the_rewind_page_shows_of_apply_is_what_the_tutorial_shows():
    """The tutorial's commands are run by a test, and what they print is compared."""
    pages = [(DOCS / name).read_text() for name in ("rewind.md", "rewind-tutorial.md")]
    shown, run = (
        [each for each in page.split("```") if "$ spark-ckpt rewind apply plan.json --settle-s 0\n" in each]
        for page in pages
    )

    assert len(shown) == 1
    assert shown == run
