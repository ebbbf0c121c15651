"""The environment of each system: a virtual environment with its pinned requirements, and its jars. Made once, then reused."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from benchmarks.systems import Environment
from spark_ckpt import jars
from spark_ckpt.jars import Jar
from spark_ckpt.spark_session import class_archive

_INSTALL_TIMEOUT_S = 1800
_OWN_PACKAGES = ("spark-ckpt", "pyspark", "deltalake", "pyarrow", "pandas", "numpy", "confluent-kafka")


@dataclass(frozen=True)
class Prepared:
    """An installed environment. `site_packages`: None for that of the measuring process."""

    python: Path
    site_packages: Path | None
    jars: tuple[Path, ...]
    versions: tuple[tuple[str, str], ...]


def prepare(environment: Environment) -> Prepared:
    """Install missing packages; none if the last installation had the same requirements."""
    found = tuple(jars.fetch([[_jar(text)] for text in environment.jars], f"the environment {environment.name!r}"))
    if environment.class_archive and not class_archive.options():
        class_archive.create()
    if not environment.requirements:
        return Prepared(Path(sys.executable), None, found, tuple(_own_versions()))
    folder = cache_folder() / environment.name
    _install(folder, environment.requirements)
    site_packages = next((folder / "lib").glob("python3*")) / "site-packages"
    versions = tuple(_name_and_version(each) for each in environment.requirements)
    return Prepared(folder / "bin" / "python", site_packages, found, versions)


def _own_versions() -> Iterator[tuple[str, str]]:
    """Versions of this process; a checkout on the path is not an installed package and has no version."""
    for name in _OWN_PACKAGES:
        with suppress(PackageNotFoundError):
            yield name, version(name)


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/spark_ckpt/benchmarks`, by default below `~/.cache`."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "spark_ckpt" / "benchmarks"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _install(folder: Path, requirements: Sequence[str]) -> None:
    """Install. The stamp is next to the folder and is written last, so an incomplete installation has none."""
    stamp = folder.with_suffix(".requirements")
    content = "\n".join((f"python=={sys.version_info.major}.{sys.version_info.minor}", *requirements)) + "\n"
    if stamp.exists() and stamp.read_text() == content and folder.exists():
        return
    stamp.unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    _run([sys.executable, "-m", "venv", str(folder)])
    _run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", *requirements])
    stamp.write_text(content)


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=_INSTALL_TIMEOUT_S, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def _jar(text: str) -> Jar:
    group, artifact, number, sha256 = text.split(":")
    return Jar(group, artifact, number, sha256)


def _name_and_version(requirement: str) -> tuple[str, str]:
    name, _, number = requirement.partition("==")
    return name.partition("[")[0], number
