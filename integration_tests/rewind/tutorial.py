"""The tutorial is run: its programs and commands in their order, and what they print takes the place of what the page shows.

Blocks: ```python is a program, ```text behind it what that printed; one that begins with `$ ` is commands and their output.

Write the page anew with: python -m integration_tests.rewind.tutorial
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
"""Where the page's story takes place. It is run in a folder whose name is as long, so that columns are as wide."""

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SHORTER = {"apply": ["--watch-s", "0"], "undo": ["--watch-s", "0"]}
"""Nobody runs anything meanwhile."""


@dataclass
class Telling:
    """`home`: where it is run. `rest`: ends what an application leaves behind when it ends; called before each command."""

    home: Path
    rest: Callable[[], None]
    names: dict[str, object] = field(default_factory=dict)
    printed: str = ""

    def retold(self, page: str) -> str:
        """The page with what its blocks print now. Raises what its programs raise."""
        assert len(str(self.home)) == len(HOME)
        return _BLOCK.sub(self._block, page)

    def _block(self, found: re.Match[str]) -> str:
        kind, body = found[1], found[2]
        if kind == "python":
            self._run(body)
        elif kind == "text":
            body = self._told(self.printed)
        elif body.startswith("$ "):
            commands = [line.removeprefix("$ ") for line in body.splitlines() if line.startswith("$ ")]
            body = "\n".join(f"$ {each}\n{self._told(self._output(each))}" for each in commands).replace("\n\n$", "\n$")
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
        """As a shell does it, from the story's folder."""
        if "*" not in word:
            return [word]
        shown = [path for path in self.home.glob(word) if not path.name.startswith(".")]
        return sorted(str(path.relative_to(self.home)) for path in shown)

    def _told(self, text: str) -> str:
        text = text.replace(str(self.home), HOME)
        text = re.sub(r"(before-rewind|rewound)-[0-9a-f]{12}", r"\1-5b0c3a1be9f2", text)
        text = re.sub(r"is \d+ s old", "is 40 s old", text)
        return text if text.endswith("\n") or not text else f"{text}\n"


def main() -> None:
    """Run the page in a session of its own, and write what it tells."""
    for spark in connected_session(CONF):
        PAGE.write_text(told(spark))
    end_jvm()


def told(spark: SparkSession) -> str:
    """The page as it has to be."""
    with tempfile.TemporaryDirectory(dir="/tmp") as home, contextlib.chdir(home):
        rest = jvm_of(spark).org.apache.spark.sql.execution.streaming.state.StateStore.stop
        return Telling(Path(home), rest).retold(PAGE.read_text())


if __name__ == "__main__":
    main()
