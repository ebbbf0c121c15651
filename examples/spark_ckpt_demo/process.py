"""The driver as a child process with a log file: start, watch and kill it. No driver outlives the demo."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from spark_ckpt.errors import RunFailed

_TAIL_LINES = 15
_DIE_S = 30.0


class DriverProcess:
    """One driver with its JVM, in a process group of its own. As a context manager it kills the group on exit.

    `progress`: the driver shows its progress on this process's stdout.
    """

    def __init__(self, arguments: Sequence[str], log: Path, progress: bool = False) -> None:
        self._log = log
        command = [sys.executable, "-m", "spark_ckpt_demo.driver", *arguments, *(["--progress"] if progress else [])]
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=None if progress else output,
                stderr=output,
                # a group of its own: a kill reaches the JVM and the Python workers as well
                start_new_session=True,
                env=_environment(log.parent / "tmp"),
            )

    @property
    def pid(self) -> int:
        """Its process id, which is its group's id as well."""
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code, None while it runs, negative if a signal ended it."""
        return self._process.poll()

    def kill(self) -> None:
        """Send SIGKILL to the driver and its JVM at once, as when a machine or container dies."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return
        self._process.wait(_DIE_S)

    def check_ended_well(self) -> None:
        """Raise `RunFailed` with the end of the log unless the driver ended by itself and without an error."""
        if self.exit_code == 0:
            return
        # the JVM writes to the same file, and a kill can cut a character
        lines = self._log.read_text(errors="replace").splitlines()[-_TAIL_LINES:]
        raise RunFailed(
            f"the driver ended with exit code {self.exit_code}",
            log=self._log,
            last_lines="\n    " + "\n    ".join(lines),
            hint="read its log; `spark-ckpt doctor` checks this machine",
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.exit_code is None:
            self.kill()


def _environment(temporary: Path) -> dict[str, str]:
    """Return the child's environment: the imports of this process, and temporary files in the demo's folder."""
    temporary.mkdir(exist_ok=True)
    options = f'{os.environ.get("SPARK_SUBMIT_OPTS", "")} -Djava.io.tmpdir="{temporary}"'
    # A killed driver deletes nothing. In the demo's folder its temporary files go with the folder.
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, sys.path))),
        "TMPDIR": str(temporary),
        "SPARK_LOCAL_DIRS": str(temporary),
        "SPARK_SUBMIT_OPTS": options.strip(),
    }
