"""All verbs in one application, and the one place where errors become exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from spark_ckpt.cli import rewind, savepoint
from spark_ckpt.cli.accept_loss import accept_loss
from spark_ckpt.cli.compare import compare
from spark_ckpt.cli.connectors import connectors
from spark_ckpt.cli.demo import demo
from spark_ckpt.cli.diff import diff
from spark_ckpt.cli.doctor import doctor
from spark_ckpt.cli.jars import jars
from spark_ckpt.cli.list import list_epochs
from spark_ckpt.cli.prepare import prepare
from spark_ckpt.cli.rescale import rescale
from spark_ckpt.cli.restore import restore
from spark_ckpt.cli.show import show
from spark_ckpt.cli.simulate import simulate
from spark_ckpt.cli.state import state
from spark_ckpt.cli.trace import trace
from spark_ckpt.cli.verify import verify
from spark_ckpt.errors import CkptError

INTERRUPTED = 130

app = typer.Typer(
    name="spark-ckpt",
    help="Look into the store of a spark_ckpt job: epochs, state, savepoints, what a restore would do. Try protocols.",
    epilog=(
        "Every command takes --json. Exit codes: 0 done; 1 simulated run condemned, recorded one not accepted; 2 wrong use; "
        "3 store unreachable, full, foreign or too new; 4 another driver holds the job; 5 epoch missing or damaged, "
        "state does not fit; 6 run failed; 8 source or sink invalid; 9 not published; 10 environment unfit; 130 interrupted."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("list", short_help="The epochs that can be restored.")(list_epochs)
app.command("show", short_help="What one epoch consists of.")(show)
app.command("state", short_help="An operator's state at an epoch.")(state)
app.command("diff", short_help="What changed in the state between epochs.")(diff)
app.add_typer(savepoint.app, name="savepoint")
app.command("restore", short_help="What going back to an epoch would do.")(restore)
app.add_typer(rewind.app, name="rewind")
app.command("rescale", short_help="Another number of key groups for an operator.")(rescale)
app.command("accept-loss", short_help="Go on although the store has lost epochs that sinks have.")(accept_loss)
app.command("verify", short_help="Whether every epoch is whole.")(verify)
app.command("doctor", short_help="Whether everything a job needs is here.")(doctor)
app.command("connectors", short_help="Sources and sinks that are installed.")(connectors)
app.command("jars", short_help="A connector's jars, for spark-submit.")(jars)
app.command("prepare", short_help="Make later starts on this machine fast.")(prepare)
app.command("simulate", short_help="A protocol under failures, as a story and a diagram.")(simulate)
app.command("trace", short_help="What a job recorded: as a story, and replayed.")(trace)
app.command("compare", short_help="What each protocol costs on one workload.")(compare)
app.command("demo", short_help="See it work: kill, restart, proof, restore.")(demo)


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code.

    Without tearing the interpreter down: threads of Arrow may still be letting go of what was read, and abort the
    process (exit code 134, seen in one of eight short runs) when they find the interpreter gone.
    """
    code = exit_code(list(sys.argv[1:] if arguments is None else arguments))
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):  # the reader went away (`spark-ckpt list ... | head`)
            stream.flush()
    os._exit(code)


def exit_code(arguments: Sequence[str]) -> int:
    """Run one command; its exit code. What goes wrong is told on stderr, as JSON if the command was asked for it."""
    try:
        app(args=list(arguments), prog_name="spark-ckpt")
    except SystemExit as ending:  # typer's own: done, wrong use, interrupted
        return ending.code if isinstance(ending.code, int) else 0
    except CkptError as error:
        _tell(error, "--json" in arguments)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _tell(error: CkptError, as_json: bool) -> None:
    if not as_json:
        sys.stderr.write(f"{error}\n")
        return
    context = {name: str(value) for name, value in error.context.items()}
    fields = {"condition": error.condition, "what": error.what, "context": context, "hint": error.hint}
    sys.stderr.write(json.dumps({"error": fields}, ensure_ascii=False) + "\n")
