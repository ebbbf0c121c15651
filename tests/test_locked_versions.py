"""The gate installs exact versions, and the README's command the same test tools, so no new release breaks either."""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
LINES = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
LOCKED = {canonicalize_name(line.partition("==")[0]): line.partition("==")[2] for line in LINES}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {name: [Requirement(each) for each in texts] for name, texts in PROJECT["optional-dependencies"].items()}
AN_EXACT_VERSION = re.compile(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.]*")


def asked_by(extra: str) -> list[Requirement]:
    """Return all requirements of an extra, with those of nested extras."""
    inner = [name for each in EXTRAS[extra] if each.name == "spark-ckpt" for name in each.extras]
    own = [each for each in EXTRAS[extra] if each.name != "spark-ckpt"]
    return [*own, *(each for name in inner for each in asked_by(name))]


def unlocked(requirements: list[Requirement], locked: dict[str, str]) -> list[str]:
    """Return requirements without a fitting version in the lock."""
    return [
        str(each) for each in requirements if not each.specifier.contains(locked.get(canonicalize_name(each.name), "0"))
    ]


def open_ranges(texts: list[str]) -> list[str]:
    return [text for text in texts if not re.fullmatch(r"[\w-]+(\[[\w,]+\])?==[\w.]+", text)]


def reached(name: str, extras: frozenset[str] = frozenset(), seen: set[tuple[str, str]] | None = None) -> set[str]:
    """Return the distributions that an installed one brings into this environment."""
    seen = set() if seen is None else seen
    for extra in ("", *sorted(extras)):
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for text in metadata.requires(name) or []:
            each = Requirement(text)
            if each.marker is None or each.marker.evaluate({"extra": extra}):
                reached(canonicalize_name(each.name), frozenset(each.extras), seen)
    return {found for found, _ in seen}


def test_every_line_of_the_lock_is_one_exact_version():
    assert len(LINES) > 100
    assert [line for line in LINES if not AN_EXACT_VERSION.fullmatch(line)] == []


def test_the_lock_has_a_fitting_version_of_every_requirement():
    asked = [*map(Requirement, PROJECT["dependencies"]), *asked_by("test")]
    assert len(asked) > 30
    assert unlocked(asked, LOCKED) == []


def test_a_requirement_without_a_locked_version_is_found():
    assert unlocked(
        [Requirement("pytest>=8.3"), Requirement("pytest<8"), Requirement("no-such>=1")], {"pytest": "9.2.0"}
    ) == [
        "pytest<8",
        "no-such>=1",
    ]


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="the lock is of Python 3.11")
def test_the_lock_has_the_requirements_of_the_requirements():
    missing = reached("spark-ckpt", frozenset(["test"])) - LOCKED.keys() - {"spark-ckpt"}
    assert missing == set()


def test_requirements_of_tests_only_are_pinned_to_the_locked_version():
    """PySpark and protobuf, which jobs need as well, have a narrower range in the extra."""
    own = [
        each for each in PROJECT["optional-dependencies"]["test"] if not re.match(r"spark-ckpt|pyspark|protobuf", each)
    ]
    assert len(own) > 10
    assert open_ranges(own) == []
    assert {
        canonicalize_name(Requirement(each).name): each.partition("==")[2] for each in own
    }.items() <= LOCKED.items()


def test_an_open_range_of_a_test_tool_is_found():
    assert open_ranges(["hypothesis>=6.112", "moto[server]==5.2.5", "ruff"]) == ["hypothesis>=6.112", "ruff"]


def test_the_gate_installs_as_the_readme_says_with_the_locked_versions():
    gate, readme = (ROOT / ".ci" / "run").read_text(), (ROOT / "README.md").read_text()
    [command] = [line for line in readme.splitlines() if ".[test]" in line]
    installs = command.split(" && ")[1].replace("install", "install --quiet --no-compile")
    assert f"PIP_CONSTRAINT=constraints.txt {installs} " in gate
