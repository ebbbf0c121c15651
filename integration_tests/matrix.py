"""Installs and uses the wheel as users do: each Python with each PySpark, each in an empty environment.

python -m integration_tests.matrix                               every cell; about three minutes each
python -m integration_tests.matrix --python 3.13 --pyspark 4.2.1 --demo

A cell builds an environment, installs the wheel with connectors and extras, runs `spark-ckpt doctor`, and runs two of the examples
to their end, whose output is counted; `--demo` also runs `spark-ckpt demo`. A PySpark that delta-spark does not support is tried
without the extra `delta`, and the table says so. For a PySpark outside of the wheel's range, the other requirements are installed
without delta-spark, and the wheel without its requirements: such a cell only shows what would break.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from email.parser import Parser
from pathlib import Path
from typing import Annotated

import typer
from deltalake import DeltaTable, QueryBuilder
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
PYTHONS = ("3.11", "3.12", "3.13")
PYSPARKS = ("4.1.4", "4.2.0", "4.2.1", "4.3.0")
EXTRAS = ("jobs", "kafka", "registry", "metrics", "lineage", "ui", "demo", "delta")
"""The last PySpark is outside of the narrower range of its delta-spark, which is then left out."""
JOBS: Mapping[str, tuple[str, int]] = {"deduplicate": ("payments", 3), "sessions": ("visits", 2)}
"""For each example: its output table, and the number of its rows."""
INSTALL_TIMEOUT_S, RUN_TIMEOUT_S, DEMO_TIMEOUT_S = 1800, 300, 1800
MIB = 1024 * 1024


class Failed(Exception):
    """A failed step of a cell, and its last output."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Result of one Python with one PySpark. `said`: "works", or the step that failed and its error."""

    python: str
    pyspark: str
    in_range: bool
    said: str
    size_mib: float = 0
    install_s: float = 0


def wheel(folder: Path) -> Path:
    """Build the wheel. Raises `Failed`."""
    step("wheel", [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(ROOT)])
    [built] = folder.glob("spark_ckpt-*.whl")
    return built


def requirements(built: Path) -> list[Requirement]:
    """Requirements of the wheel with its extras, including those of extras inside extras."""
    with zipfile.ZipFile(built) as opened:
        [name] = [name for name in opened.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(opened.read(name).decode())
    asked = [Requirement(text) for text in metadata.get_all("Requires-Dist", [])]
    chosen, found = set(EXTRAS), []
    for _ in range(len(asked)):  # an extra may name another one
        found = [
            each for each in asked if each.marker is None or any(each.marker.evaluate({"extra": e}) for e in chosen)
        ]
        inner = {extra for each in found if each.name == "spark-ckpt" for extra in each.extras}
        if inner <= chosen:
            break
        chosen |= inner
    return [each for each in found if each.name != "spark-ckpt"]


def is_in_range(asked: Sequence[Requirement], pyspark: str) -> bool:
    """True if the wheel supports this version."""
    return all(each.specifier.contains(pyspark) for each in asked if each.name == "pyspark")


def installations(
    built: Path, asked: Sequence[Requirement], pyspark: str, extras: Sequence[str] = EXTRAS
) -> list[list[str]]:
    """Arguments of pip, call by call."""
    if is_in_range(asked, pyspark):
        return [[f"{built}[{','.join(extras)}]", f"pyspark=={pyspark}"]]
    others = [without_marker(each) for each in asked if each.name not in ("pyspark", "delta-spark")]
    return [[f"pyspark=={pyspark}", *others], ["--no-deps", str(built)]]


def without_marker(requirement: Requirement) -> str:
    """The form for pip's command line: the extra is already selected."""
    return str(requirement).partition(";")[0].strip()


def interpreter(version: str) -> Path | None:
    """A Python of this version: this one, on the path, or among pyenv's."""
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        return Path(sys.executable)
    root = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    found = sorted(root.glob(f"versions/{version}.*/bin/python{version}"))
    on_path = shutil.which(f"python{version}")
    return found[-1] if found else Path(on_path) if on_path else None


def tried(python: str, pyspark: str, built: Path, demo: bool) -> Cell:
    """Run one cell in a folder that is removed afterwards."""
    asked = requirements(built)
    in_range = is_in_range(asked, pyspark)
    home = interpreter(python)
    if home is None:
        return Cell(python, pyspark, in_range, f"not tried: no Python {python} here")
    with tempfile.TemporaryDirectory(prefix="matrix-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        began_s = time.monotonic()
        try:
            step("venv", [str(home), "-m", "venv", str(folder / "venv")])
            program = folder / "venv" / "bin" / "python"
            without = installed(program, built, asked, pyspark)
            install_s = time.monotonic() - began_s
            size_mib = sum(path.stat().st_size for path in (folder / "venv").rglob("*") if path.is_file()) / MIB
        except Failed as failed:
            return Cell(python, pyspark, in_range, str(failed))
        said = used(program, folder, in_range, demo)
        return Cell(python, pyspark, in_range, f"{said}{without}", size_mib, install_s)


def installed(program: Path, built: Path, asked: Sequence[Requirement], pyspark: str) -> str:
    """Install; return the missing requirements as text. Raises `Failed`."""
    pip = [str(program), "-m", "pip", "install", "--progress-bar=off"]  # with --quiet it would not report conflicts
    try:
        for arguments in installations(built, asked, pyspark):
            step("install", [*pip, *arguments], INSTALL_TIMEOUT_S)
    except Failed as failed:
        if "delta-spark" not in str(failed):
            raise
        for arguments in installations(built, asked, pyspark, EXTRAS[:-1]):
            step("install", [*pip, *arguments], INSTALL_TIMEOUT_S)
        return f", without the extra delta ({str(failed).removeprefix('install: ')})"
    return ""


def used(program: Path, folder: Path, in_range: bool, demo: bool) -> str:
    """Run doctor, examples, and the demo in this environment only; return "works", or the first failure."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))
    }
    environment["TMPDIR"] = str(folder)
    try:
        if in_range:
            step("doctor", [str(program), "-m", "spark_ckpt", "doctor"], RUN_TIMEOUT_S, environment, folder)
        for name, (table, rows) in JOBS.items():
            shutil.copytree(EXAMPLES / "inputs" / name, folder / name)
            command = [str(program), str(EXAMPLES / f"{name}.py"), str(folder / name), "drain"]
            step(name, command, RUN_TIMEOUT_S, environment, folder)
            check_rows(name, folder / name / table, rows)
        if demo:
            step("demo", [str(program), "-m", "spark_ckpt", "demo"], DEMO_TIMEOUT_S, environment, folder)
    except Failed as failed:
        return str(failed)
    return "works"


def check_rows(name: str, table: Path, rows: int) -> None:
    """Count the rows. Raises `Failed`."""
    counted = QueryBuilder().register("t", DeltaTable(str(table))).execute("select count(*) as n from t").read_all()
    if (found := counted["n"][0].as_py()) != rows:
        raise Failed(f"{name}: {found} rows instead of {rows}")


def step(
    name: str,
    command: Sequence[str],
    timeout_s: float = RUN_TIMEOUT_S,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> None:
    """Run a step. Raises `Failed` with the last line of its output that reports an error."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False, env=environment, cwd=folder
        )
    except subprocess.TimeoutExpired:
        raise Failed(f"{name}: not within {timeout_s:.0f} s") from None
    if done.returncode:
        raise Failed(f"{name}: {last_error(done.stdout + done.stderr)}")


def last_error(text: str) -> str:
    """The most helpful line of the output."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if "The conflict is caused by:" in lines:  # the last line is an address
        return next(line for line in lines if " depends on pyspark" in line and not line.startswith("spark-ckpt"))
    telling = [line for line in lines if "Error" in line or "ERROR" in line or "CKPT_" in line or "fail" in line]
    return (telling or lines or ["no output"])[-1][:200]


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """The table in Markdown."""
    yield "| Python | PySpark | in the wheel's range | what it did | installed |"
    yield "|---|---|---|---|---|"
    for cell in cells:
        size = f"{cell.size_mib:,.0f} MiB, {cell.install_s:.0f} s" if cell.size_mib else ""
        said = cell.said.replace("|", "/")
        yield f"| {cell.python} | {cell.pyspark} | {'yes' if cell.in_range else 'no'} | {said} | {size} |"


def main(
    python: Annotated[list[str] | None, typer.Option(help="Default: 3.11, 3.12, 3.13.")] = None,
    pyspark: Annotated[list[str] | None, typer.Option(help="Default: the newest of 4.1, 4.2 and 4.3.")] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Run `spark-ckpt demo` as well.")] = False,
) -> None:
    """Print the table; the exit code is 1 if a cell of the wheel's own range does not work."""
    cells = []
    with tempfile.TemporaryDirectory() as name:
        built = wheel(Path(name))
        typer.echo(f"{built.name}: {built.stat().st_size / 1024:,.0f} KiB", err=True)
        for version in python or PYTHONS:
            for spark in pyspark or PYSPARKS:
                cells.append(tried(version, spark, built, demo))
                typer.echo(f"Python {version}, PySpark {spark}: {cells[-1].said}", err=True)
    typer.echo("\n".join(table(cells)))
    raise typer.Exit(any(cell.in_range and not cell.said.startswith("works") for cell in cells))


if __name__ == "__main__":
    typer.run(main)
