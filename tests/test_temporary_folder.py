"""Temporary folders of a killed process are deleted by the next one; those of running processes are not."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_ckpt.temporary_folder import LOCK, TemporaryFolder

_PROGRAM = """
import sys
from spark_ckpt.temporary_folder import TemporaryFolder
made = TemporaryFolder("test", sys.argv[1])
(made.path / "copied").write_text("x")
print(made.path, flush=True)
sys.stdin.read()
"""

_FORKS = """
import os, sys
from spark_ckpt.temporary_folder import TemporaryFolder
made = TemporaryFolder("test", sys.argv[1])
if os.fork() == 0:
    sys.exit()
os.wait()
print(made.path.is_dir())
"""


class Process:
    """Another process, with a folder in `base`."""

    def __init__(self, base: Path) -> None:
        command = [sys.executable, "-c", _PROGRAM, str(base)]
        self.running = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.running.stdout is not None
        self.folder = Path(self.running.stdout.readline().strip())

    def is_killed(self) -> None:
        self.running.kill()
        self.running.wait()


@pytest.fixture
def process(tmp_path: Path) -> Iterator[Process]:
    made = Process(tmp_path)
    with made.running:
        yield made
        made.is_killed()


@pytest.fixture
def killed(process: Process) -> Path:
    """Return the folder of a killed process."""
    process.is_killed()
    return process.folder


def test_the_folder_of_a_killed_process_is_deleted_by_the_next_one_of_its_kind(killed: Path, tmp_path: Path) -> None:
    assert (killed / "copied").is_file()
    TemporaryFolder("other", str(tmp_path))
    assert killed.is_dir()
    made = TemporaryFolder("test", str(tmp_path))
    assert (killed.exists(), made.path.is_dir()) == (False, True)


def test_the_folder_of_a_process_that_runs_stays(process: Process, tmp_path: Path) -> None:
    own = TemporaryFolder("test", str(tmp_path))
    TemporaryFolder("test", str(tmp_path))
    assert ((process.folder / "copied").is_file(), own.path.is_dir()) == (True, True)


def test_a_folder_without_a_lock_and_one_of_another_host_stay(killed: Path, tmp_path: Path) -> None:
    old = tmp_path / "spark-ckpt-test-of-an-old-version"
    old.mkdir()
    (killed / LOCK).write_text("another-host")
    TemporaryFolder("test", str(tmp_path))
    assert (old.is_dir(), killed.is_dir()) == (True, True)


def test_a_folder_ends_with_its_block_and_with_its_last_reference(tmp_path: Path) -> None:
    with TemporaryFolder("test", str(tmp_path)) as first:
        assert first.is_dir()
    made = TemporaryFolder("test", str(tmp_path))
    second = made.path
    del made
    assert (first.exists(), second.exists()) == (False, False)


def test_a_folder_does_not_end_with_a_fork_of_its_process(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _FORKS, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "True\n"
    assert list(tmp_path.iterdir()) == []


def test_a_planted_process_that_ignores_locks_is_found(
    process: Process, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A planted bug: it takes a running process for a dead one."""
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)
    with pytest.raises(AssertionError):
        test_the_folder_of_a_process_that_runs_stays(process, tmp_path)


def test_the_folder_of_a_living_process_is_not_aged_out_of_the_temporary_files(process: Process) -> None:
    """systemd-tmpfiles takes this lock before it deletes an old folder, and skips a locked one with its whole content."""
    held = os.open(process.folder, os.O_RDONLY)
    try:
        with pytest.raises(BlockingIOError):
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        process.is_killed()
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        os.close(held)
