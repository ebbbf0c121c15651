"""Run the ported programs and write `docs/ported.md`: `python -m integration_tests.ported`, or with names of programs."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import SparkSession

from integration_tests.broker import running_broker
from integration_tests.ported.menu import PROGRAMS
from integration_tests.ported.page import Measured, read, write, write_page
from integration_tests.ported.pairs import Outcome, compare
from integration_tests.ported.program import Ported
from integration_tests.spark import connected_session

Names = Annotated[list[str] | None, typer.Argument(help="Programs; default: all.")]
Seed = Annotated[int, typer.Option("--seed", help="Draws the rows, and where the job fails.")]


def main(names: Names = None, seed: Seed = 1) -> None:
    """Run the programs in both forms, and write the page. The command ends with the differences, if there are any."""
    failures: list[str] = []
    # Digests of the code that runs, even if a file is edited meanwhile.
    digests = {name: ported.digest for name, ported in PROGRAMS.items()}
    with tempfile.TemporaryDirectory(prefix="spark-ckpt-ported-") as folder:
        for spark in connected_session():
            for number, name in enumerate(names or PROGRAMS):
                began = time.monotonic()
                try:
                    outcome = run(spark, Path(folder) / str(number), PROGRAMS[name], seed)
                except Exception as error:  # noqa: BLE001 - a job that does not run is not equal, too
                    failures.append(f"{name}: {type(error).__name__}: {error}"[:3000])
                    typer.echo(failures[-1])
                    continue
                measured = Measured(digests[name], seed, outcome.files, outcome.rows, outcome.point, outcome.interval)
                # Another process may have written meanwhile.
                write(read() | {name: measured})
                typer.echo(f"{name}: equal, {outcome}, {time.monotonic() - began:.0f} s")
    write_page()
    if failures:
        raise SystemExit("\n".join(failures))


def run(spark: SparkSession, folder: Path, ported: Ported, seed: int) -> Outcome:
    """Run one program, with a broker if it needs one."""
    folder.mkdir()
    if not ported.kafka:
        return compare(spark, folder, ported, seed)
    with running_broker(folder / "broker", {"auto.create.topics.enable": "true"}) as broker:
        return compare(spark, folder, ported, seed, broker.servers)


if __name__ == "__main__":
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command()(main)
    app()
