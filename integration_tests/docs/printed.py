"""Run the programs and commands of a page in their order, and replace the output on the page with their output.

A ```python block is a program, the ```text block after it is its output. A ```console block holds commands (`$ spark-ckpt ...`) and
their output. Other blocks stay as they are.

Write a page's output again: python -m integration_tests.docs.printed docs/tutorial.md
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import spark_ckpt
from integration_tests.spark import end_jvm
from spark_ckpt.cli.app import exit_code

ROOT = Path(spark_ckpt.__file__).parents[1]
HOME = "/home/ada/orders"
"""Folder in which the pages' programs run, as shown on the pages."""

_BLOCK = re.compile(r"^```(python|text|console)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_PROCESS = (r"process \d+ on \S+?(?=[),])", "process 4711 on laptop")
_VARIES = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\dZ", "TIME"),
    (r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]+|[0-9a-f]{32}", "ID"),
    _PROCESS,
    (r'"newest_ms": \d+', '"newest_ms": 0'),
    (r"\b[\d.]+ (ms|s|min)( ago)?\b", "DURATION"),
    (r"\b[\d.]+ (B|kB|MB|KiB|MiB)\b", "SIZE"),
)
"""Parts of an output that differ from run to run."""
_INTERVAL, _LONG = 'interval="1 minute"', 'interval="1 day"'
"""On a slow machine, a run of a page may take a minute. It would then have one more epoch."""


class Pages:
    """Runs pages in the current folder; `names` are those of the programs so far."""

    def __init__(self) -> None:
        self.names: dict[str, object] = {}
        self._printed = ""

    def again(self, page: str) -> str:
        """Return the page with its present output."""
        return _BLOCK.sub(self._block, page)

    def _block(self, found: re.Match[str]) -> str:
        kind, body = found[1], found[2]
        if kind == "python":
            self._printed = self._output_of(
                lambda: exec(compile(body.replace(_INTERVAL, _LONG), "page", "exec"), self.names)
            )
        elif kind == "text" and self._printed:
            body, self._printed = self._printed, ""
        elif kind == "console":
            commands = [line for line in body.splitlines() if line.startswith("$ ")]
            body = "\n".join(f"{each}\n{self._command(each)}" for each in commands)
        return f"```{kind}\n{body}```"

    def _command(self, line: str) -> str:
        _, program, *words = shlex.split(line)
        assert program == "spark-ckpt", line
        return self._output_of(lambda: _succeeds(words))

    def _output_of(self, run: Callable[[], object]) -> str:
        out = io.StringIO()
        with redirect_stdout(out):
            run()
        lines = re.sub(*_PROCESS, out.getvalue()).replace(str(Path.cwd()), HOME).splitlines()
        return "".join(f"{line.rstrip()}\n" for line in lines)


def _succeeds(words: list[str]) -> None:
    code = exit_code(words)
    assert code == 0, words


def alike(page: str) -> list[str]:
    """Return the lines of a page without the parts that differ between runs."""
    for pattern, name in _VARIES:
        page = re.sub(pattern, name, page)
    return [" ".join(line.split()) for line in page.splitlines()]


def main(names: list[str]) -> None:
    """Run each page in an empty folder and write it with its present output."""
    for name in names:
        page = ROOT / name
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            text = Pages().again(page.read_text())
        page.write_text(text)
        end_jvm()


if __name__ == "__main__":
    main(sys.argv[1:])
