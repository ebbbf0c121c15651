"""Measure the simulator and write `docs/proof.md`: `python -m integration_tests.proof all --seconds 20`."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

import checkpoint_lab as sim
from checkpoint_protocols.menu import MENU
from integration_tests.proof import ledger
from integration_tests.proof.caught import caught
from integration_tests.proof.mutation import try_sample
from integration_tests.proof.page import RESULTS, write_page
from integration_tests.proof.tried import tried
from integration_tests.survival.process import ROOT

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, rich_markup_mode=None)

Seconds = Annotated[float, typer.Option("--seconds", help="Processor time per protocol.")]
First = Annotated[int, typer.Option("--first", help="The first seed.")]
FOLDER = Path(tempfile.gettempdir()) / "spark-ckpt-mutants"


@app.command("all")
def everything(seconds: Seconds = 20.0, first: First = 0) -> None:
    """Measure schedules of every protocol and planted bugs, and write the page."""
    when = _now()
    measured = {
        **asdict(when),
        "machine": f"{os.cpu_count()} processors, {platform.machine()}, Python {platform.python_version()}",
        "first": first,
        "tried": [tried(name, seconds, first).as_json() for name in sound_names()],
        "caught": [asdict(each) for each in caught()],
    }
    RESULTS.write_text(json.dumps(measured, indent=1) + "\n")
    write_page()


@app.command()
def schedules(
    seconds: Seconds = 20.0,
    rounds: Annotated[int, typer.Option("--rounds", help="Rounds over all protocols.")] = 1,
    processes: Annotated[int, typer.Option("--processes", help="Number of parallel processes.")] = 1,
    only: Annotated[list[str] | None, typer.Option("--only", help="Only this protocol; may be repeated.")] = None,
) -> None:
    """Try schedules that no campaign has tried; campaigns.jsonl and the page add them up."""
    when = _now()
    if unknown := {*(only or ())} - {*sound_names()}:
        raise typer.BadParameter(f"there is no {', '.join(sorted(unknown))}; there are {', '.join(sound_names())}")
    for _ in range(rounds):
        for line in ledger.campaign(only or sound_names(), seconds, when, processes):
            typer.echo(
                f"{line.protocol}: seeds from {line.first}, {line.schedules} schedules, {line.hours:.1f} hours, "
                f"{len(line.condemned)} condemned"
            )
    write_page()


@app.command("bugs")
def planted_bugs() -> None:
    """Measure the planted bugs again, and write the page with the earlier schedules."""
    found = [asdict(each) for each in caught()]
    measured = json.loads(RESULTS.read_text()) | {"caught": found, "bugs": asdict(_now())}
    RESULTS.write_text(json.dumps(measured, indent=1) + "\n")
    write_page()


@app.command()
def page() -> None:
    """Write the page again from the earlier measurements."""
    write_page()


@app.command("mutants")
def mutants_of(
    sample: Annotated[int, typer.Option("--sample", help="Size of the sample over all three packages.")] = 400,
    seed: Annotated[int, typer.Option("--seed", help="Which ones.")] = 1,
    rounds: Annotated[
        list[float] | None,
        typer.Option("--round", help="Seconds of tests for a mutant, then for a survivor, and so on."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Also try survivors of earlier runs.")] = False,
    folder: Annotated[Path, typer.Option("--folder", help="Folder of the mutants; kept for the next run.")] = FOLDER,
) -> None:
    """Try a sample of the mutants of three packages; mutants.json adds up the results. It takes an hour; extra `mutation`."""
    for each in try_sample(folder, sample, seed, rounds or [20.0, 90.0], again):
        if not each.dead and not each.verdict:
            typer.echo(f"{each.name} {each.outcome}\n{each.change}")
    write_page()


def sound_names() -> list[str]:
    """Protocols that keep their promises; the others exist to be condemned."""
    return [name for name in sim.NAMES if name not in MENU or MENU[name].sound]


def _now() -> ledger.When:
    return ledger.When(datetime.datetime.now(datetime.UTC).date().isoformat(), _git("rev-parse", "--short", "HEAD"))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":  # parallel processes import this module, too
    app()
