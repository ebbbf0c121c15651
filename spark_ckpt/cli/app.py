"""All verbs in one application, and the one place where errors become exit codes."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import typer

from spark_ckpt.cli.verbs import find_verbs
from spark_ckpt.errors import CkptError

INTERRUPTED = 130


def application(first: str | None = None) -> typer.Typer:
    """The command line with the verb `first` only; with all of them if there is none of this name, for help and suggestions."""
    app = typer.Typer(
        name="spark-ckpt",
        help="Look into the store of a spark_ckpt job: epochs, state, savepoints, what a restore would do. Try protocols.",
        epilog=(
            "Every command but ui takes --json. Exit codes: 0 done; "
            "1 simulated run condemned, recorded one not accepted; 2 wrong use; "
            "3 store unreachable, full, foreign or too new; 4 another driver holds the job, or none takes it over; "
            "5 epoch missing or damaged, "
            "state does not fit; 6 run failed; 8 source or sink invalid; 9 not published; 10 environment unfit; 130 interrupted."
        ),
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
    )
    app.callback()(_group)
    for verb in find_verbs(first):
        verb.add_to(app)
    return app


def _group() -> None:
    """With it, an application of one verb still takes the verb's name."""


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
        application(arguments[0] if arguments else None)(args=list(arguments), prog_name="spark-ckpt")
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
