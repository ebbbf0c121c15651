"""Kills the driver of an outbox on each PySpark, in an empty environment with the wheel of this checkout.

python -m integration_tests.outbox_matrix                                   every PySpark; ten minutes each on two cores
python -m integration_tests.outbox_matrix --pyspark 3.5.6 --case windows/HDFS

A case is a query with state (a window aggregation, dropDuplicates, an outer join of two streams), a state store, and two Delta
tables in one outbox. The driver is killed after the outbox has committed a batch and before Spark has. It starts again and runs to
the end. Both tables then have to equal those of a run without a kill. One case runs through Spark Connect as well. There the
process that runs the outbox is killed.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from integration_tests.matrix import INSTALL_TIMEOUT_S, ROOT, Failed, interpreter, step, wheel
from integration_tests.outbox.outbox_cases import CASES, QUERIES, WHOLE
from integration_tests.outbox.outbox_query import write_files
from integration_tests.outbox.outbox_verdicts import Unfinished, run_until_done, wrong

PYSPARKS = ("3.5.6", "4.0.1", "4.1.1", "4.2.0", "4.3.0")
CONNECT = "windows/RocksDB"
FILES = range(5)
START_TIMEOUT_S = 900


@dataclass(frozen=True, slots=True)
class Cell:
    """Results on one PySpark: per case the difference, empty if there is none. `connect`: the same, or why it was not run."""

    pyspark: str
    packages: str
    cases: Mapping[str, str]
    connect: str
    took_s: float

    @property
    def exact(self) -> bool:
        return bool(self.cases) and not any(self.cases.values())


def tried(pyspark: str, python: str, built: Path, cases: Sequence[str], connect: bool) -> Cell:
    """Run everything on one PySpark, in a folder that is removed afterwards."""
    began_s = time.monotonic()
    home = interpreter(python)
    if home is None:
        return Cell(pyspark, "", {"install": f"no Python {python} here"}, "not run", 0)
    with tempfile.TemporaryDirectory(prefix="outbox-matrix-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        program = folder / "venv" / "bin" / "python"
        try:
            step("venv", [str(home), "-m", "venv", str(folder / "venv")])
            pip = [str(program), "-m", "pip", "install", "--progress-bar=off", str(built), wanted(pyspark)]
            step("install", pip, INSTALL_TIMEOUT_S)
        except Failed as failed:
            return Cell(pyspark, "", {"install": str(failed)}, "not run", time.monotonic() - began_s)
        environment = environment_of(folder)
        found = judged(folder / "plain", cases, program, environment)
        remote = through_connect(folder / "connect", pyspark, program, environment) if connect else "not run"
        return Cell(pyspark, versions(folder, python), found, remote, time.monotonic() - began_s)


def has_server(pyspark: str) -> bool:
    """PySpark 3.5 comes without the jar of the Connect server."""
    return not pyspark.startswith("3.")


def wanted(pyspark: str) -> str:
    """The requirement for pip. PySpark 3.5's extras bring a NumPy that is too old for the newest pyarrow."""
    return f"pyspark[connect]=={pyspark}" if has_server(pyspark) else f"pyspark=={pyspark}"


def environment_of(folder: Path) -> dict[str, str]:
    """This environment without variables that name another Python or Spark. The program is copied: the library is the wheel's."""
    package = folder / "program" / "integration_tests" / "outbox"
    package.mkdir(parents=True)
    for name in ("outbox_query.py", "outbox_cases.py"):
        shutil.copy(ROOT / "integration_tests" / "outbox" / name, package / name)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PYSPARK", "SPARK"))}
    return own | {"PYTHONPATH": str(folder / "program"), "TMPDIR": str(folder)}


def judged(folder: Path, cases: Sequence[str], program: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Kill every case once, and compare it with an undisturbed run of its query."""
    write_files(folder / "in", FILES)
    # Windows are computed without Spark.
    whole = [f"{WHOLE}/{query}" for query in QUERIES if query != "windows" and any(c.startswith(query) for c in cases)]
    try:
        run_until_done(folder, [*cases, *whole], str(program), environment=environment, timeout_s=START_TIMEOUT_S)
    except Unfinished as error:
        return {case: last_line(error) for case in cases}
    return {case: wrong(folder, case, FILES) for case in cases}


def through_connect(folder: Path, pyspark: str, program: Path, environment: Mapping[str, str]) -> str:
    """Kill one case on a Connect server; "exact", or the difference."""
    if not has_server(pyspark):
        return "not run: this PySpark has no server of its own"
    write_files(folder / "in", FILES)
    try:
        run_until_done(folder, [CONNECT], str(program), remote=True, environment=environment, timeout_s=START_TIMEOUT_S)
    except Unfinished as error:
        return last_line(error)
    return wrong(folder, CONNECT, FILES) or "exact"


def last_line(error: Unfinished) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("\tat ")]
    telling = [line for line in lines if "Error" in line or "CKPT_" in line]
    return (telling or lines or ["no output"])[-1][:300]


def versions(folder: Path, python: str) -> str:
    """Return the versions of other packages that matter to the tasks."""
    packages = (folder / "venv" / "lib" / f"python{python}" / "site-packages").glob("*.dist-info")
    found = dict(path.name.removesuffix(".dist-info").rsplit("-", 1) for path in packages)
    return ", ".join([f"Python {python}", *(f"{name} {found[name]}" for name in ("pyarrow", "pandas", "numpy"))])


def table(cells: Sequence[Cell]) -> Iterator[str]:
    """The table in Markdown."""
    yield "| PySpark | with | killed and started again | the same through Spark Connect |"
    yield "|---|---|---|---|"
    for cell in cells:
        faults = [f"{case}: {fault}" for case, fault in cell.cases.items() if fault]
        said = "; ".join(faults) or f"{len(cell.cases)} of {len(cell.cases)} cases exact"
        yield f"| {cell.pyspark} | {cell.packages} | {said} | {cell.connect} |".replace("\n", " ")


def main(
    pyspark: Annotated[list[str] | None, typer.Option(help=f"Default: {', '.join(PYSPARKS)}.")] = None,
    case: Annotated[list[str] | None, typer.Option(help=f"Default: all of {', '.join(CASES)}.")] = None,
    python: Annotated[str, typer.Option(help="Python of the environments.")] = "3.11",
    connect: Annotated[bool, typer.Option(help="Run a case through Spark Connect, too.")] = True,
) -> None:
    """Print the table; the exit code is 1 if a case is not exact."""
    cells = []
    with tempfile.TemporaryDirectory() as name:
        built = wheel(Path(name))
        for version in pyspark or PYSPARKS:
            cells.append(tried(version, python, built, case or list(CASES), connect))
            typer.echo(f"{version}: {cells[-1]}", err=True)
    typer.echo("\n".join(table(cells)))
    raise typer.Exit(
        not all(cell.exact and (not connect or cell.connect.startswith(("exact", "not run"))) for cell in cells)
    )


if __name__ == "__main__":
    typer.run(main)
