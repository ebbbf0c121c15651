"""`spark-ckpt demo`: the whole promise on real data, on this machine."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson
from spark_ckpt.cli.output import print_json
from spark_ckpt.errors import RunFailed


def demo(
    folder: Annotated[
        Path | None, typer.Option("--dir", metavar="DIR", help="Work in DIR (new or empty) and keep everything there.")
    ] = None,
    kafka: Annotated[str | None, typer.Option(metavar="SERVERS", help="Run from and to Kafka topics instead.")] = None,
    kill_after: Annotated[
        float | None,
        typer.Option(min=5, max=80, metavar="PERCENT", help="Kill after this share of the flights."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a year of flights as a stream, kill the driver, restart it, prove the result exact, go back in time."""
    from spark_ckpt.cli.telling import display
    from spark_ckpt.demo.options import DemoOptions
    from spark_ckpt.demo.story import play

    # A terminated demo takes its driver along: contexts are left, as with Ctrl-C.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    told = play(DemoOptions(folder=folder, kafka=kafka, kill_after=kill_after), display(quiet=as_json))
    if as_json:
        print_json(told.fields())
    if not told.exact:
        raise typer.Exit(RunFailed.exit_code)
