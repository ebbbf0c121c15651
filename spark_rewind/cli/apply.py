"""`spark-ckpt rewind apply` and `undo`: execute a plan, or undo it.

Their modules are loaded when a command runs: planning, in the same application, needs none and takes less time.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from spark_ckpt.cli.options import AsJson
from spark_ckpt.cli.output import print_json, print_line

if TYPE_CHECKING:
    from spark_rewind.applying import Settings

PlanFile = Annotated[Path, typer.Argument(metavar="PLAN", help="A file with what `rewind plan --json` printed.")]
Watch = Annotated[
    float, typer.Option("--watch-s", min=0, help="How long files are watched to see whether a query runs.")
]
Settle = Annotated[
    float,
    typer.Option(
        "--settle-s",
        min=0,
        help="How long to wait behind the fences for the last snapshots of state that has no attempts in its names: longer than "
        "spark.sql.streaming.stateStore.maintenanceInterval. 0 if the applications have ended, not only the queries.",
    ),
]


def apply(
    plan: PlanFile,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and change nothing.")] = False,
    watch_s: Watch = 10,
    settle_s: Settle = 75,
    from_snapshot: Annotated[
        list[str] | None,
        typer.Option(metavar="QUERY", help="It begins its tables as they are: no startingVersion. May be repeated."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Execute a plan: create new checkpoints and roll tables back. Stop the queries first; the old checkpoints are kept.

    Run the same command again after a crash. Until it is complete, queries of the plan refuse to start.
    """
    from spark_rewind import applying
    from spark_rewind.cli.record_text import print_record
    from spark_rewind.journal import read_plan

    record = applying.apply(read_plan(plan), _settings(watch_s, settle_s, from_snapshot or ()), dry=dry_run)
    if as_json:
        print_json(record.model_dump(mode="json"))
    else:
        print_record(record, dry=dry_run)


def undo(plan: PlanFile, watch_s: Watch = 10, settle_s: Settle = 75, as_json: AsJson = False) -> None:
    """Undo `rewind apply` of a plan: restore checkpoints and tables to their state before it.

    Refused if a query has run or a table was written since. Run the same command again after a crash.
    """
    from spark_rewind import applying
    from spark_rewind.cli.record_text import print_record
    from spark_rewind.journal import read_plan

    record = applying.undo(read_plan(plan), _settings(watch_s, settle_s, ()))
    if as_json:
        print_json(None if record is None else record.model_dump(mode="json"))
    elif record is None:
        print_line("Nothing of this plan had been carried out. What an earlier try left was taken away.")
    else:
        print_record(record, dry=False)


def _settings(watch_s: float, settle_s: float, from_snapshot: Sequence[str]) -> Settings:
    from spark_rewind.applying import Settings

    now_ms, engine = time.time_ns() // 1_000_000, f"spark-ckpt/{version('spark-ckpt')}"
    return Settings(partial(time.sleep, watch_s), now_ms, engine, from_snapshot, partial(time.sleep, settle_s))
