"""The command line: `run` continues where `results.jsonl` ends, `page` writes `docs/sparks-tests.md`."""

from __future__ import annotations

import dataclasses
import json
import logging
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from pyspark.sql import SparkSession

from integration_tests.spark import plain_session
from integration_tests.sparks_suites.page import RESULTS, read, write, write_page
from integration_tests.sparks_suites.suites import cases, lay_out_input
from integration_tests.sparks_suites.trials import Outcome, Trial, searched, try_case

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@app.command()
def run(
    of: Annotated[str, typer.Option(help="only tests whose module, class and method contain this")] = "",
    results: Annotated[Path, typer.Option(help="file of the results")] = RESULTS,
    search: Annotated[bool, typer.Option(help="look for the cause of a difference at once")] = True,
) -> None:
    """Run every test that has no result yet, in one session."""
    results = results.resolve()
    known = {(each.module, each.suite, each.test) for each in (read(results) if results.exists() else ())}
    with _session() as spark:
        for case in cases():
            if of in case.name and (case.module, case.suite, case.test) not in known:
                trial = try_case(spark, case, search=search)
                with results.open("a") as file:
                    file.write(json.dumps(dataclasses.asdict(trial)) + "\n")
                _report(trial)


@app.command()
def causes(
    of: Annotated[str, typer.Option(help="only tests whose module, class and method contain this")] = "",
    results: Annotated[Path, typer.Option(help="file of the results")] = RESULTS,
) -> None:
    """Look for the cause of each difference that `run --no-search` found."""
    results = results.resolve()
    with _session() as spark:
        by_name = {(case.module, case.suite, case.test): case for case in cases() if of in case.name}
        for trial in list(read(results)):
            case = by_name.get((trial.module, trial.suite, trial.test))
            if trial.outcome is Outcome.DIFFERS and not trial.searched and case is not None:
                found = searched(spark, case, trial)
                write([found if each == trial else each for each in read(results)], results)
                _report(found)


@contextmanager
def _session() -> Iterator[SparkSession]:
    """Yield a session in a folder with the input files of the tests, which also gets their output files."""
    logging.getLogger("spark_ckpt").setLevel(logging.CRITICAL)
    with tempfile.TemporaryDirectory(prefix="suites-") as folder:
        tempfile.tempdir = folder
        lay_out_input(Path(folder))
        with contextmanager(plain_session)() as spark:
            yield spark


def _report(trial: Trial) -> None:
    print(
        f"{trial.outcome:<15}{trial.seconds:6.1f} s  {trial.suite}.{trial.test} {trial.alone} {trial.why[-300:]!r}",
        flush=True,
    )


@app.command()
def page() -> None:
    """Write `docs/sparks-tests.md` from the results."""
    write_page()


if __name__ == "__main__":
    app()
