"""Records an incarnation as it runs: each event with its time and the answers, before the answers are carried out.

Whatever the world can see of an incarnation follows from a line that is in the file: a line is one write, so a killed process
loses at most the one that it was about to write. A host that loses power may lose more. A job that records nothing does not load
the format.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from checkpoint_protocols.machine import Effect, Event
from spark_ckpt.coordination.incarnation import IncarnationCore
from spark_ckpt.coordination.job_shape import JobShape
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.storage_errors import typed_errors_at
from spark_ckpt.store.identity import Standing
from spark_ckpt.store.restore import RecoveryPoint

if TYPE_CHECKING:
    from spark_ckpt.trace.lines import Line

MOST_BYTES = 64 << 20
"""Of one incarnation: what comes after is not recorded."""

MOST_FILES = 20
"""Of one job in a folder: incarnations before the newest ones are removed."""

_log = logging.getLogger(__name__)


def file_of(folder: Path, job: str, incarnation: int) -> Path:
    """Where an incarnation is recorded."""
    return folder / f"{job}-i{incarnation:08d}.jsonl"


def files_of(folder: Path, job: str = "*") -> list[Path]:
    """What was recorded, job by job, oldest first."""
    return sorted(folder.glob(f"{job}-i{'[0-9]' * 8}.jsonl"))


class TraceFile:
    """One incarnation's lines. Raises `ConfigInvalid` if there is one already, `StoreOutage` if none can be made."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        flags = os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY
        self._path = path
        self._left = most_bytes
        self._file: int | None = None
        self._lock = threading.Lock()
        with typed_errors_at(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._file = os.open(path, flags, 0o600)
            except FileExistsError:
                raise ConfigInvalid(
                    f"{path} is there already: it was recorded by a job of this name with another store",
                    hint="give the jobs of every store a trace_dir of their own",
                ) from None

    def write(self, line: Line) -> None:
        """Append a line. Trouble with the disk ends the recording, and nothing else."""
        with self._lock:
            self._write(line)

    def _write(self, line: Line) -> None:
        from spark_ckpt.trace.lines import Cut

        if self._file is None:
            return
        text = (line.text() + "\n").encode()
        whole = len(text) <= self._left
        self._left -= len(text)
        try:
            _write_all(self._file, text if whole else (Cut().text() + "\n").encode())
        except OSError as error:
            _log.warning("%s is not written any more: %s", self._path, error.strerror)
            self._close()
        if not whole:
            self._close()

    def close(self) -> None:
        """From any thread."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _write_all(file: int, text: bytes) -> None:
    while text:
        text = text[os.write(file, text) :]


class RecordedRules:
    """The rules of an incarnation, and a file that is told of what they do; without a file nothing is recorded."""

    def __init__(self, core: IncarnationCore, file: TraceFile | None) -> None:
        self._core = core
        self._file = file

    def handle(self, event: Event, now_ms: float) -> list[Effect]:
        """As the rules do, recorded before anything comes of it."""
        if self._file is None:
            return self._core.handle(event, now_ms)
        from spark_ckpt.trace.lines import handled

        try:
            effects = self._core.handle(event, now_ms)
        except Exception as error:
            self._file.write(handled(event, now_ms, (), type(error).__name__))
            raise
        self._file.write(handled(event, now_ms, effects))
        return effects

    def close(self) -> None:
        """Nothing is recorded any more."""
        if self._file is not None:
            self._file.close()


def recorded(
    folder: Path | None, shape: JobShape, point: RecoveryPoint, standing: Standing | None, acked: Mapping[str, int]
) -> tuple[IncarnationCore, RecordedRules]:
    """The rules of an incarnation, and the same recorded in a folder if there is one. Raises as `TraceFile`."""
    core = IncarnationCore(shape, point, standing, acked)
    if folder is None:
        return core, RecordedRules(core, None)
    from spark_ckpt.trace.lines import Begun

    for old in files_of(folder, shape.job)[: -(MOST_FILES - 1)]:
        old.unlink(missing_ok=True)
    file = TraceFile(file_of(folder, shape.job, point.incarnation))
    file.write(Begun.of(shape, point, standing or Standing(), acked))
    return core, RecordedRules(core, file)
