"""All commands in one application, and the one place that turns errors into exit codes."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, Protocol

import typer
from typer.core import TyperGroup

import spark_ckpt
from spark_ckpt.cli.output import flush, json_for, print_line, without_commands
from spark_ckpt.cli.verbs import GROUPS, OTHER, find_verbs, verbs
from spark_ckpt.errors import CkptError

if TYPE_CHECKING:
    from spark_ckpt.connector import Json

INTERRUPTED = 130


class _Formatter(Protocol):
    """The two methods of click's help formatter that a section needs; typer brings its own copy of click."""

    def section(self, name: str) -> AbstractContextManager[None]: ...

    def write_dl(self, rows: Sequence[tuple[str, str]], col_max: int = 30) -> None: ...


class _GroupedHelp(TyperGroup):
    """Lists the commands under the headings of `GROUPS`."""

    def format_commands(self, ctx: object, formatter: _Formatter) -> None:
        """Write one section of the help for each heading that has commands."""
        group_of = {verb.name: verb.group for verb in verbs()}
        for heading in GROUPS:
            named = [name for name in self.commands if group_of.get(name, OTHER) == heading]
            rows = [(name, self.commands[name].get_short_help_str(100)) for name in named]
            if rows:
                with formatter.section(heading):
                    formatter.write_dl(rows, col_max=14)


def application(first: str | None = None) -> typer.Typer:
    """Return the command line with the command `first` only.

    Without a command of this name it has all of them, for help and suggestions.
    """
    app = typer.Typer(
        name="spark-ckpt",
        cls=_GroupedHelp,
        help="Look into the store of a job or outbox: epochs, state, savepoints, what a restore would do. Try protocols.",
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


def _print_version(wanted: bool) -> None:
    if wanted:
        print_line(f"spark-ckpt {spark_ckpt.__version__}")
        raise typer.Exit


def _group(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """With a callback, an application of one command still takes the command's name."""


def run(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with its code.

    Exits without finalising the interpreter. Arrow's threads may still release memory; without an interpreter they
    abort the process (exit code 134, in one of eight short runs).
    """
    _replace_closed_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a user's data may have characters that its encoding lacks
    code = exit_code(list(sys.argv[1:] if arguments is None else arguments))
    # Here, since `os._exit` writes out no buffer.
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os._exit(code)


def _replace_closed_streams() -> None:
    """Write into nothing where the caller has closed the stream (`>&-`, some daemons): Python has None there."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8"))  # noqa: SIM115 - until the end


def exit_code(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code. Errors go to stderr, as JSON if the command has --json."""
    try:
        code = _ended(arguments)
        flush()  # a disk that is full by now still fails the command
    except CkptError as error:
        with contextlib.suppress(OSError):  # on a full disk the exit code still says it
            _tell(error, "--json" in arguments)
        return error.exit_code
    except KeyboardInterrupt:
        return INTERRUPTED
    return code


def _ended(arguments: Sequence[str]) -> int:
    try:
        application(arguments[0] if arguments else None)(args=list(arguments), prog_name="spark-ckpt")
    except SystemExit as ending:  # raised by typer: done, wrong use, interrupted
        return ending.code if isinstance(ending.code, int) else 0
    return 0


def _tell(error: CkptError, as_json: bool) -> None:
    if not as_json:
        sys.stderr.write(without_commands(f"{error}\n"))
        return
    context: dict[str, Json] = {name: str(value) for name, value in error.context.items()}
    fields: dict[str, Json] = {
        "condition": error.condition, "what": error.what, "context": context, "hint": error.hint,
    }  # fmt: skip
    sys.stderr.write(json_for(sys.stderr, {"error": fields}) + "\n")
