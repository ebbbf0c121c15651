"""The reference page of the command line, generated from the commands. `python -m spark_ckpt.pages.command_line`
prints it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import typer
from typer.core import TyperCommand, TyperGroup

from spark_ckpt.cli.app import application

_WIDTH = 100
_HEAD = """# Command line

The commands read and change stores and checkpoints. Only these start a JVM: `demo`, `doctor`, `jars`, `prepare`, `rescale
--partitions`, `simulate --on-spark`, and `adopt`, `state` and `diff` for some state. Use `--json` in scripts. If a command fails,
it prints a typed error and ends with the exit code of this error: [errors](errors.md).
"""


def cli_page() -> str:
    """Return the text of `docs/cli.md`."""
    root = typer.main.get_command(application())
    return "\n".join([_HEAD, *_sections(root, "spark-ckpt")])


def _sections(command: object, name: str) -> Iterator[str]:
    if isinstance(command, TyperGroup):
        for part, below in command.commands.items():
            yield from _sections(below, f"{name} {part}")
        return
    if not isinstance(command, TyperCommand):
        raise TypeError(f"{name} is no command")
    context = typer.Context(command, info_name=name, terminal_width=_WIDTH, max_content_width=_WIDTH)
    told = "\n".join(line.rstrip() for line in command.get_help(context).strip().splitlines())
    yield from (f"## {name}", "", "```text", told, "```", "")


if __name__ == "__main__":
    sys.stdout.write(cli_page())
