"""Versions of the gate.

python .ci/versions.py newest   arguments of pip for the newest versions: without the pins of pyproject.toml's extra `test`
python .ci/versions.py lock     write constraints.txt, and those pins, from the environment that runs this
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT, LOCK = ROOT / "pyproject.toml", ROOT / "constraints.txt"
HEAD = "# The exact versions that the gate installs, of Python 3.11. Made by: .venv/bin/python .ci/versions.py lock"
LEFT_OUT = {"pip", "setuptools", "wheel", "spark-ckpt"}
"""Not installed by our requirements, and the project itself."""


def test_extra() -> list[str]:
    """The requirements of the extra `test`."""
    extras: dict[str, list[str]] = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    return extras["test"]


def newest() -> list[str]:
    """Arguments of `pip install`."""
    own, *others = test_extra()
    return ["--editable", own.replace("spark-ckpt", ".", 1), *(re.sub(r"==[^,;]+$", "", each) for each in others)]


def locked() -> dict[str, str]:
    """Name and version of everything that is installed here."""
    found = {each.name: each.version for each in metadata.distributions()}
    return {name: found[name] for name in sorted(found, key=str.lower) if name.lower() not in LEFT_OUT}


def lock() -> None:
    """Write both files."""
    versions = locked()
    LOCK.write_text("\n".join([HEAD, *(f"{name}=={version}" for name, version in versions.items())]) + "\n")
    known = {normal(name): version for name, version in versions.items()}
    text = PROJECT.read_text()
    for pin in [each for each in test_extra() if "==" in each]:
        name = re.split(r"[\[=]", pin)[0]
        text = text.replace(f'"{pin}"', f'"{pin.partition("==")[0]}=={known[normal(name)]}"')
    PROJECT.write_text(text)


def normal(name: str) -> str:
    """A distribution's name as an index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    if sys.argv[1:] == ["newest"]:
        sys.stdout.write("\n".join(newest()) + "\n")
    elif sys.argv[1:] == ["lock"]:
        lock()
    else:
        sys.exit(__doc__)
