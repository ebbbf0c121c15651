"""Measure what the simulator tries and write `docs/proof.md`: `python -m integration_tests.proof all --seconds 20`."""

from __future__ import annotations

import datetime
import json
import os
import platform
import subprocess
from dataclasses import asdict
from typing import Annotated

import typer

import spark_ckpt.simulator as sim
from integration_tests.proof import campaign as campaigns
from integration_tests.proof import ledger
from integration_tests.proof.caught import caught
from integration_tests.proof.mutants import mutants
from integration_tests.proof.page import RESULTS, write_page
from integration_tests.proof.tried import tried
from integration_tests.survival.process import ROOT
from spark_ckpt.protocol.menu import MENU

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, rich_markup_mode=None)

Seconds = Annotated[float, typer.Option("--seconds", help="Processor time per protocol.")]
First = Annotated[int, typer.Option("--first", help="The first seed.")]


@app.command("all")
def everything(seconds: Seconds = 20.0, first: First = 0) -> None:
    """Schedules of every protocol, planted bugs, and the page."""
    when = _now()
    measured = {
        **asdict(when),
        "machine": f"{os.cpu_count()} processors, {platform.machine()}, Python {platform.python_version()}",
        "first": first,
        "tried": [asdict(tried(name, seconds, first)) for name in _names()],
        "caught": [asdict(each) for each in caught()],
    }
    RESULTS.write_text(json.dumps(measured, indent=1) + "\n")
    write_page()


@app.command()
def schedules(
    seconds: Seconds = 20.0,
    rounds: Annotated[int, typer.Option("--rounds", help="Each protocol in turn, so many times.")] = 1,
    processes: Annotated[int, typer.Option("--processes", help="Side by side.")] = 1,
) -> None:
    """Schedules that no campaign has tried; they add up in campaigns.jsonl and on the page."""
    when = _now()
    for _ in range(rounds):
        for line in ledger.campaign(_names(), seconds, when, processes):
            typer.echo(
                f"{line.protocol}: seeds from {line.first}, {line.schedules} schedules, {line.hours:.1f} hours, "
                f"{len(line.condemned)} condemned"
            )
    write_page()


@app.command()
def page() -> None:
    """The page again, from what was measured."""
    write_page()


@app.command("mutants")
def mutants_of(module: str, tests: list[str]) -> None:
    """Mutants of a module that its tests do not kill. Minutes per module; needs the extra `mutation`."""
    found = mutants([module], tests)
    typer.echo(f"{found.tried} mutants, {found.score:.1%} killed")
    for survivor in found.survivors:
        typer.echo(survivor)


@app.command()
def campaign(
    seconds: Annotated[float, typer.Option("--seconds", help="For how long, by the clock.")] = 280.0,
    module: Annotated[list[str] | None, typer.Option("--module", help="These only.")] = None,
) -> None:
    """Mutants of protocol/, host/ and store/ that were not tried yet, for so long; what was tried adds up in mutants.jsonl."""
    everything = campaigns.targets()
    campaigns.run(seconds, {name: everything[name] for name in module or everything})
    found = campaigns.score(campaigns.kept())
    typer.echo(f"{found.tried} mutants tried, {found.share:.1%} killed of those that change something")
    for survivor in found.survivors:
        typer.echo(f"{survivor.module}:{survivor.line} {survivor.operator}")


def _names() -> list[str]:
    """What holds its promises: a protocol that doesn't is there to be condemned."""
    return [name for name in sim.NAMES if name not in MENU or MENU[name].sound]


def _now() -> ledger.When:
    return ledger.When(datetime.datetime.now(datetime.UTC).date().isoformat(), _git("rev-parse", "--short", "HEAD"))


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()


if __name__ == "__main__":  # whoever works beside imports this, too
    app()
