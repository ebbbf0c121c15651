import importlib.util
import re
from pathlib import Path

import pytest

from spark_ckpt.config import JobConfig
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.pages.connectors import connectors_page
from spark_ckpt.pages.python import python_page
from spark_ckpt.pages.settings import conf_keys, settings_page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PACKAGES = ("checkpoint_lab", "checkpoint_protocols", "connectors", "spark_ckpt", "spark_rewind")


def test_the_settings_page_is_generated_from_the_settings():
    """Regenerate with: python -m spark_ckpt.pages.settings > docs/settings.md"""
    assert (DOCS / "settings.md").read_text() == settings_page()


def test_the_settings_page_has_every_conf_key():
    keys = dict.fromkeys(conf_keys(), "x")
    assert len(keys) == len(JobConfig.model_fields)
    with pytest.raises(ConfigInvalid) as refused:
        JobConfig.of({}, keys)
    assert "there is no setting" not in str(refused.value)


def test_the_page_of_the_python_api_has_every_public_name():
    """Regenerate with: python -m spark_ckpt.pages.python > docs/api.md"""
    assert (DOCS / "api.md").read_text() == python_page()


def test_the_page_of_sources_and_sinks_is_generated_from_their_docstrings():
    """Regenerate with: python -m spark_ckpt.pages.connectors > docs/connectors.md"""
    assert (DOCS / "connectors.md").read_text() == connectors_page()


def dead(text: str, folder: Path) -> list[str]:
    """Return the files that a text links to, or names as `docs/...`, and that do not exist."""
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    named = [ROOT / name for name in re.findall(r"\bdocs/[\w/-]+\.\w+", text)]
    return sorted(str(path) for path in {*(folder / link for link in links if link), *named} if not path.exists())


def test_no_page_outside_of_the_site_has_a_dead_link():
    pages = [*ROOT.glob("*.md"), *ROOT.glob("benchmarks/*.md"), *ROOT.glob("specs/*.md")]
    assert "README.md" in {page.name for page in pages}
    assert [link for page in pages for link in dead(page.read_text(), page.parent)] == []


def test_no_error_or_docstring_names_a_missing_page():
    modules = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    assert [link for path in modules for link in dead(path.read_text(), ROOT) if "/docs/" in link] == []


def test_a_dead_link_is_found():
    assert len(dead("[a](docs/gone.md) and [b](README.md#x), see docs/lost.md", ROOT)) == 2


def missing_imports(text: str) -> list[str]:
    """Return the imports of a page's code blocks that fail; the connector that a page writes is left out."""
    found = []
    for block in re.findall(r"^ *```python\n(.*?)```", text, re.DOTALL | re.MULTILINE):
        for module, names in re.findall(r"^ *from (?!acme)([\w.]+) import ([\w, ]+)", block, re.MULTILINE):
            home = importlib.import_module(module)
            wanted = [name.split(" as ")[0].strip() for name in names.split(",")]
            found += [f"{module}.{name}" for name in wanted if not has(home, name)]
    return found


def has(module, name: str) -> bool:
    """Return true for an attribute or a module below."""
    try:
        return hasattr(module, name) or bool(importlib.util.find_spec(f"{module.__name__}.{name}"))
    except ModuleNotFoundError:
        return False


def test_code_on_the_pages_imports_names_that_exist():
    pages = [ROOT / "README.md", *DOCS.rglob("*.md")]
    assert [each for page in pages for each in missing_imports(page.read_text())] == []


def test_an_import_of_a_name_that_is_gone_is_found():
    imports = ("from checkpoint_protocols import markers", "from checkpoint_protocols.snapshots import markers")
    page = "```python\n" + "\n".join(imports) + "\n```\n"
    assert missing_imports(page) == ["checkpoint_protocols.markers"]


def test_the_gate_runs_the_tests_as_the_readme_says():
    readme, gate = (DOCS.parent / "README.md").read_text(), (DOCS.parent / ".ci" / "run").read_text()
    (command,) = [line for line in readme.splitlines() if ".[test]" in line]

    assert f"{command.split(' && ')[-1]} || code=$?" in gate.splitlines()


def test_the_rewind_page_shows_the_tutorials_output_of_apply():
    """A test runs the tutorial's commands and compares their output."""
    pages = [(DOCS / name).read_text() for name in ("rewind.md", "rewind-tutorial.md")]
    shown, run = (
        [each for each in page.split("```") if "$ spark-ckpt rewind apply plan.json --settle-s 0\n" in each]
        for page in pages
    )

    assert len(shown) == 1
    assert shown == run
