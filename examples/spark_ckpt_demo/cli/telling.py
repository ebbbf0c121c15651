"""The demo's display: a terminal with progress bars, plain lines for logs, or silence for `--json`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from spark_ckpt.cli.list import print_epochs
from spark_ckpt.cli.output import print_line, print_table
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt_demo.display import Display, Watch

_EVERY_S = 5.0


class Silence:
    """Shows nothing."""

    def step(self, title: str) -> None:
        """Show nothing."""

    def say(self, text: str) -> None:
        """Show nothing."""

    @contextmanager
    def watching(self, what: str, total: int) -> Iterator[Watch]:
        """Show nothing."""
        yield lambda done, note: None

    def epochs(self, log: EpochLog) -> None:
        """Show nothing."""

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Show nothing."""


class Lines(Silence):
    """Shows plain lines, for a log or a pipe."""

    def step(self, title: str) -> None:
        """Show a heading."""
        self.say(f"\n== {title}")

    def say(self, text: str) -> None:
        """Show one line at once: a reader may be waiting for it."""
        print_line(text)
        sys.stdout.flush()

    @contextmanager
    def watching(self, what: str, total: int) -> Iterator[Watch]:
        """Show a line every few seconds while the count changes."""
        told_s, told = 0.0, -1

        def watch(done: int, note: str) -> None:
            nonlocal told_s, told
            if done != told and (time.monotonic() - told_s > _EVERY_S or done >= total):
                told_s, told = time.monotonic(), done
                self.say(f"   {done:,} of {total:,} {what}{f' ({note})' if note else ''}")

        yield watch

    def epochs(self, log: EpochLog) -> None:
        """Show the table of `spark-ckpt list`."""
        print_epochs(log, log.state())

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Show a small table."""
        print_table(columns, rows)


class Terminal(Lines):
    """Shows progress bars."""

    @contextmanager
    def watching(self, what: str, total: int) -> Iterator[Watch]:
        """Show a bar."""
        note = TextColumn("{task.fields[note]}")
        with Progress(TextColumn(f"   {what}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), note) as bar:
            task = bar.add_task(what, total=total, note="starting")
            yield lambda done, text: bar.update(task, completed=done, note=text)


class Beside(Lines):
    """Shows the story only, for drivers that show their progress on the same stdout."""

    def say(self, text: str) -> None:
        """Show one line. A driver that was killed while it drew has left the terminal without a cursor."""
        if sys.stdout.isatty():
            Console().show_cursor(True)
        super().say(text)

    @contextmanager
    def watching(self, what: str, total: int) -> Iterator[Watch]:
        """Show nothing: two pictures would write over each other."""
        yield lambda done, note: None


def display(quiet: bool, progress: bool = False) -> Display:
    """Return the display for this process's stdout. `progress`: drivers write to it, too."""
    if quiet:
        return Silence()
    if progress:
        return Beside()
    return Terminal() if sys.stdout.isatty() else Lines()
