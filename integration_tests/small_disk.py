"""A file system of a few MiB that a test can fill, turn read-only and remove. Needs root."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

_BLOCK = 4096


@dataclass(frozen=True)
class SmallDisk:
    """A tmpfs at `device`, bound to `folder`, from which it can be removed, and bound again unchanged."""

    folder: Path
    device: Path

    def take_away(self) -> None:
        _run("umount", "--lazy", str(self.folder))

    def put_back(self) -> None:
        _run("mount", "--bind", str(self.device), str(self.folder))

    def fill(self) -> None:
        """Fill it to the last byte, so that small files are as impossible as large ones."""
        with self._ballast.open("ab", buffering=0) as ballast:
            for piece in (b"\0" * _BLOCK, b"\0"):
                _write_until_full(ballast, piece)

    def free(self) -> None:
        self._ballast.unlink()

    def read_only(self) -> None:
        _run("mount", "-o", "remount,ro", str(self.device))

    def writable(self) -> None:
        _run("mount", "-o", "remount,rw", str(self.device))

    @property
    def _ballast(self) -> Path:
        return self.device / ".ballast"


@contextmanager
def small_disk(folder: Path, mib: int = 8) -> Iterator[SmallDisk]:
    """Mount a small disk. Skips the test if mounting is impossible."""
    device = folder.with_name(f"{folder.name}-device")
    for each in (folder, device):
        each.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root on Linux can mount a file system to fill")
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(device)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"this machine allows no mount: {mounted.stderr.strip()}")
    disk = SmallDisk(folder, device)
    try:
        disk.put_back()
        yield disk
    finally:
        for each in (folder, device):
            subprocess.run(["umount", "--lazy", str(each)], capture_output=True, check=False)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)


def _write_until_full(ballast: object, piece: bytes) -> None:
    try:
        while True:
            ballast.write(piece)  # type: ignore[attr-defined]
    except OSError:
        return
