"""The site builds without dead links, and every page of the docs is on it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from spark_ckpt.pages.command_line import cli_page

ROOT = Path(__file__).parents[2]
PAGES = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}


class Config(yaml.SafeLoader):
    """Reads the site's configuration without its Python tags."""


def built(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Without `--quiet`, as a warning that is not printed is not counted either."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(config), "-d", str(site)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(
        command, cwd=config.parent, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def named(nav: object) -> set[str]:
    if isinstance(nav, str):
        return {nav}
    below = nav.values() if isinstance(nav, dict) else nav
    return {page for each in below for page in named(each)}


@pytest.fixture(scope="module")
def config():
    return yaml.load((ROOT / "mkdocs.yml").read_text(), Config)


def test_the_site_builds_without_a_dead_link(tmp_path):
    ran = built(ROOT / "mkdocs.yml", tmp_path)
    assert ran.returncode == 0, ran.stderr
    for page in ("index.html", "errors.html", "api.html"):
        assert (tmp_path / page).stat().st_size > 5000
    assert "shown_group" in (tmp_path / "api.html").read_text()
    assert "fonts.googleapis.com" not in (tmp_path / "index.html").read_text()


def test_a_dead_link_stops_the_build(config, tmp_path):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "index.md").write_text("# A page\n\n[gone](gone.md) and [nowhere](#nowhere)\n")
    small = {"site_name": "small", **{name: config[name] for name in ("strict", "validation")}}
    (tmp_path / "mkdocs.yml").write_text(yaml.safe_dump(small))
    ran = built(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert ran.returncode == 1
    assert "gone.md" in ran.stderr
    assert "#nowhere" in ran.stderr


def test_every_page_is_on_the_site(config):
    assert PAGES - named(config["nav"]) == set(), "give each a place under `nav` in mkdocs.yml"


def test_the_page_of_the_command_line_is_generated_from_the_commands():
    """Regenerate with: python -m spark_ckpt.pages.command_line > docs/cli.md"""
    assert (ROOT / "docs" / "cli.md").read_text() == cli_page()


def test_every_example_is_on_its_page():
    page = (ROOT / "docs" / "examples.md").read_text()
    names = {path.stem for path in (ROOT / "docs" / "examples").glob("*.py")}
    assert set(re.findall(r"^\| \[(\w+)\]\(#\1\) \|", page, re.MULTILINE)) == names
    assert (
        set(re.findall(r'^## (\w+)\n\n``` {.python}\n--8<-- "docs/examples/\1\.py"\n```$', page, re.MULTILINE)) == names
    )
    assert len(names) == 13
    assert "Thirteen" in page


def test_every_example_has_a_test_that_runs_it():
    tests = "".join(path.read_text() for path in (ROOT / "integration_tests").glob("*/test_*.py"))
    names = {path.stem for path in (ROOT / "docs" / "examples").glob("*.py")}
    marks = ('@of("{}")', '\n    run("{}", ', '"examples" / "{}.py"')
    assert [name for name in sorted(names) if not any(mark.format(name) in tests for mark in marks)] == []
