"""Run the tutorial: its programs and commands in their order, and replace the output on the page with theirs.

Blocks: ```python is a program, the ```text after it is its output; a block that begins with `$ ` has commands and their output.
Write the page again with: python -m integration_tests.rewind.tutorial
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import SparkSession

from integration_tests.spark import connected_session, end_jvm
from spark_ckpt.cli.app import exit_code
from spark_ckpt.spark_internals.jvm import jvm_of

PAGE = Path(__file__).parents[2] / "docs" / "rewind-tutorial.md"
CONF = {"spark.databricks.delta.snapshotPartitions": "1"}

HOME = "/srv/orders-team"
"""Folder of the page's example. The page runs in a folder whose name has the same length, so that columns have the same width."""

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SHORTER = {"apply": ["--watch-s", "0"], "undo": ["--watch-s", "0"]}
"""A pause in which no query runs."""


@dataclass
class PageRun:
    """`home`: the folder of the run. `rest`: does the cleanup of an application's end; called before each command."""

    home: Path
    rest: Callable[[], None]
    names: dict[str, object] = field(default_factory=dict)
    printed: str = ""

    def page_with_output(self, page: str) -> str:
        """The page with the present output of its blocks. Raises errors of its programs."""
        assert len(str(self.home)) == len(HOME)
        return _BLOCK.sub(self._block, page)

    def _block(self, found: re.Match[str]) -> str:
        kind, body = found[1], found[2]
        if kind == "python":
            self._run(body)
        elif kind == "text":
            body = self._normalised(self.printed)
        elif body.startswith("$ "):
            commands = [line.removeprefix("$ ") for line in body.splitlines() if line.startswith("$ ")]
            body = "\n".join(f"$ {each}\n{self._normalised(self._output(each))}" for each in commands).replace(
                "\n\n$", "\n$"
            )
        return f"```{kind}\n{body}```"

    def _run(self, program: str) -> None:
        out = io.StringIO()
        with redirect_stdout(out):
            exec(compile(program.replace(HOME, str(self.home)), "the tutorial", "exec"), self.names)
        self.printed = out.getvalue()

    def _output(self, command: str) -> str:
        self.rest()
        command, _, into = command.partition(" > ")
        program, *words = shlex.split(command)
        assert program == "spark-ckpt", command
        arguments = [each for word in words for each in self._expanded(word)]
        out, err = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = exit_code([*arguments, *_SHORTER.get(arguments[1], [])])
        assert code == 0, err.getvalue()
        if into:
            (self.home / into).write_text(out.getvalue())
        return "" if into else out.getvalue()

    def _expanded(self, word: str) -> list[str]:
        """Expand a word as a shell does, from the example's folder."""
        if "*" not in word:
            return [word]
        shown = [path for path in self.home.glob(word) if not path.name.startswith(".")]
        return sorted(str(path.relative_to(self.home)) for path in shown)

    def _normalised(self, text: str) -> str:
        text = text.replace(str(self.home), HOME)
        text = re.sub(r"(before-rewind|rewound)-[0-9a-f]{12}", r"\1-5b0c3a1be9f2", text)
        text = re.sub(r"is \d+ s old", "is 40 s old", text)
        return text if text.endswith("\n") or not text else f"{text}\n"


def main() -> None:
    """Run the page in its own session, and write it with its output."""
    for spark in connected_session(CONF):
        PAGE.write_text(printed_page(spark))
    end_jvm()


def printed_page(spark: SparkSession) -> str:
    """The page with its present output."""
    with tempfile.TemporaryDirectory(dir="/tmp") as home, contextlib.chdir(home):
        rest = jvm_of(spark).org.apache.spark.sql.execution.streaming.state.StateStore.stop
        return PageRun(Path(home), rest).page_with_output(PAGE.read_text())


if __name__ == "__main__":
    main()
