"""Recorder of an incarnation: each event with its time and the answers, before the answers are executed.

Everything that other systems can see of an incarnation follows from a line in the file. A line is one write, so a
killed process loses at most the line that it was about to write. A host that loses power may lose more. A job without
`trace_dir` does not load the format.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from checkpoint_protocols.machine import Effect, Event
from spark_ckpt.coordination.job_shape import JobShape
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.coordination.stage_process import StageProcess
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.storage_errors import typed_errors_at

if TYPE_CHECKING:
    from spark_ckpt.trace.lines import Line

MOST_BYTES = 64 << 20
"""Size limit of one incarnation's trace; later events are not recorded."""

MOST_FILES = 20
"""Number of a job's incarnations in a folder; older ones are removed."""

_log = logging.getLogger(__name__)


def file_of(folder: Path, job: str, incarnation: int) -> Path:
    """Return the path of an incarnation's trace."""
    return folder / f"{job}-i{incarnation:08d}.jsonl"


def files_of(folder: Path, job: str = "*") -> list[Path]:
    """Return the recorded files, job by job, oldest first."""
    return sorted(folder.glob(f"{job}-i{'[0-9]' * 8}.jsonl"))


class TraceFile:
    """The trace file of one incarnation. Raises `ConfigInvalid` if it exists, a `StoreOutage` if it cannot be created."""

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES) -> None:
        # Exclusive: a second recording under this name would mix two incarnations.
        flags = os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_WRONLY
        self._path = path
        self._left = most_bytes
        self._file: int | None = None
        self._lock = threading.Lock()  # the rules of an incarnation and those between programs share the file
        with typed_errors_at(str(path)):
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._file = os.open(path, flags, 0o600)
            except FileExistsError:
                raise ConfigInvalid(
                    f"{path} exists: a job of this name with another store recorded it",
                    hint="give the jobs of every store a trace_dir of their own",
                ) from None

    def write(self, line: Line) -> None:
        """Append a line. A failure of the disk ends the recording, and nothing else."""
        with self._lock:
            self._write(line)

    def _write(self, line: Line) -> None:
        from spark_ckpt.trace.lines import TraceCut

        if self._file is None:
            return
        # One write per line, so that a killed process cannot leave half of an earlier one.
        text = (line.text() + "\n").encode()
        whole = len(text) <= self._left
        # It may get negative: then this line is left out, and the last one says that the recording ends.
        self._left -= len(text)
        try:
            _write_all(self._file, text if whole else (TraceCut().text() + "\n").encode())
        except OSError as error:
            _log.warning("%s is not written any more: %s", self._path, error.strerror)
            self._close()
        if not whole:
            self._close()

    def close(self) -> None:
        """End the recording. Any thread may call it."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)


def _write_all(file: int, text: bytes) -> None:
    while text:
        # The kernel may take a part of it only, as on a disk that is nearly full.
        text = text[os.write(file, text) :]


class RecordedRules:
    """Rules of an incarnation with a file that records them; without a file nothing is recorded."""

    def __init__(self, core: EpochProtocol | StageProcess, file: TraceFile | None) -> None:
        self._core = core
        self._file = file
        self._last: tuple[Event, list[Effect]] | None = None

    def handle(self, event: Event, now_ms: float) -> list[Effect]:
        """Return the answers of the rules. They are recorded before the caller can execute them."""
        if self._file is None:
            return self._core.handle(event, now_ms)
        from spark_ckpt.trace.lines import handled

        try:
            effects = self._core.handle(event, now_ms)
        except Exception as error:
            # The error is the answer: a replay has to raise it at this line.
            self._file.write(handled(event, now_ms, (), type(error).__name__))
            raise
        # The rules between programs get the same event twice a second, which changes nothing in them.
        if isinstance(self._core, StageProcess) and (event, effects) == self._last:
            return effects
        self._last = event, effects
        self._file.write(handled(event, now_ms, effects))
        return effects

    def close(self) -> None:
        """End the recording."""
        if self._file is not None:
            self._file.close()


def recorded(
    folder: Path | None,
    shape: JobShape,
    point: RecoveryPoint,
    standing: Standing | None,
    acked: Mapping[str, int],
    stage: StageProcess,
) -> tuple[EpochProtocol, RecordedRules, RecordedRules]:
    """Return the rules of an incarnation, the same recorded in `folder`, if there is one, and the recorded `stage`.

    Independent programs have no rules between them to record. Raises as `TraceFile`.
    """
    core = EpochProtocol(shape, point, standing, acked)
    if folder is None:
        return core, RecordedRules(core, None), RecordedRules(stage, None)
    from spark_ckpt.trace.lines import Begun

    # One place is for the new file.
    for old in files_of(folder, shape.job)[: -(MOST_FILES - 1)]:
        old.unlink(missing_ok=True)
    file = TraceFile(file_of(folder, shape.job, point.incarnation))
    file.write(Begun.of(shape, point, standing or Standing(), acked, stage))
    return core, RecordedRules(core, file), RecordedRules(stage, file if stage.protocol.indexed else None)
