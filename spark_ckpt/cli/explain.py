"""`spark-ckpt explain`: the meaning, cause and cure of an error."""

from __future__ import annotations

from dataclasses import asdict
from textwrap import fill
from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson
from spark_ckpt.cli.output import print_json, print_line, print_table
from spark_ckpt.connector import Json
from spark_ckpt.explained.explanation import Explanation, conditions, explained, explanation_of

_WIDTH = 100


def explain(
    condition: Annotated[
        str | None,
        typer.Argument(
            metavar="[CONDITION]", help="As the message shows it, such as CKPT_STORE_FULL; all if left out."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Explain an error: its meaning, its usual causes, its cure."""
    if condition is None:
        _list(as_json)
        return
    told = explained(condition)
    if as_json:
        print_json(_fields(told))
        return
    print_line(f"{told.condition} (exit code {told.exit_code}; {told.retry})")
    for name, text in (("means", told.meaning), ("cause", told.cause), ("cure", told.cure)):
        print_line()
        print_line(fill(text, _WIDTH, initial_indent=f"{name:<7}", subsequent_indent=" " * 7, break_on_hyphens=False))


def _list(as_json: bool) -> None:
    every = [explanation_of(kind) for kind in conditions().values()]
    if as_json:
        print_json([_fields(told) for told in every])
    else:
        print_table(("condition", "means"), [(told.condition, told.meaning) for told in every])


def _fields(told: Explanation) -> dict[str, Json]:
    return asdict(told)
