"""Measure what the simulator tries and write `docs/proof.md`: `python -m integration_tests.proof all --seconds 20`."""

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
    """Schedules of every protocol, planted bugs, and the page."""
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
    rounds: Annotated[int, typer.Option("--rounds", help="Each protocol in turn, so many times.")] = 1,
    processes: Annotated[int, typer.Option("--processes", help="Side by side.")] = 1,
    only: Annotated[list[str] | None, typer.Option("--only", help="This protocol, and others so named.")] = None,
) -> None:
    """Schedules that no campaign has tried; they add up in campaigns.jsonl and on the page."""
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
    """The planted bugs again, and the page; of schedules, what was measured before."""
    found = [asdict(each) for each in caught()]
    measured = json.loads(RESULTS.read_text()) | {"caught": found, "bugs": asdict(_now())}
    RESULTS.write_text(json.dumps(measured, indent=1) + "\n")
    write_page()


@app.command()
def page() -> None:
    """The page again, from what was measured."""
    write_page()


@app.command("mutants")
def mutants_of(
    sample: Annotated[int, typer.Option("--sample", help="How many, of the three packages together.")] = 400,
    seed: Annotated[int, typer.Option("--seed", help="Which ones.")] = 1,
    rounds: Annotated[
        list[float] | None,
        typer.Option("--round", help="Seconds of tests for a mutant, then for a survivor, and so on."),
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Survivors of earlier runs, too.")] = False,
    folder: Annotated[Path, typer.Option("--folder", help="Where mutants are made; kept for the next run.")] = FOLDER,
) -> None:
    """A sample of the mutants of three packages; what was tried adds up in mutants.json. An hour; extra `mutation`."""
    for each in try_sample(folder, sample, seed, rounds or [20.0, 90.0], again):
        if not each.dead and not each.verdict:
            typer.echo(f"{each.name} {each.outcome}\n{each.change}")
    write_page()


def sound_names() -> list[str]:
    """What holds its promises: a protocol that doesn't is there to be condemned."""
    return [name for name in sim.NAMES if name not in MENU or MENU[name].sound]


def _now() -> ledger.When:
    return ledger.When(datetime.datetime.now(datetime.UTC).date().isoformat(), _git("rev-parse", "--short", "HEAD"))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":  # whoever works beside imports this, too
    app()
