"""`spark-ckpt demo`: the whole promise on real data, on this machine."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson
from spark_ckpt.cli.output import print_json
from spark_ckpt.errors import ConfigInvalid, RunFailed


def demo(
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Work in DIR (new or empty) and keep everything there.")
    ] = None,
    kafka: Annotated[str | None, typer.Option(metavar="SERVERS", help="Run from and to Kafka topics instead.")] = None,
    kill_after: Annotated[
        float | None,
        typer.Option(min=5, max=80, metavar="PERCENT", help="Kill after this share of the flights."),
    ] = None,
    progress: Annotated[
        bool, typer.Option("--progress", help="Let the driver show itself: rows/s, lag, epoch, alignment.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Replay a year of flights as a stream, kill and restart the driver, prove the result exact, restore an epoch."""
    from spark_ckpt_demo.cli.telling import display
    from spark_ckpt_demo.options import DemoOptions
    from spark_ckpt_demo.story import play

    # SIGTERM ends a demo like Ctrl-C: contexts close, so the demo also ends its driver.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    if progress and as_json:
        raise ConfigInvalid("--json is to be read by a program, --progress by a person", hint="leave one of them out")
    options = DemoOptions(folder=folder, kafka=kafka, kill_after=kill_after, progress=progress)
    told = play(options, display(quiet=as_json, progress=progress))
    if as_json:
        print_json(told.fields())
    if not told.exact:
        raise typer.Exit(RunFailed.exit_code)
