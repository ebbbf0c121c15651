"""A folder for tests that make thousands of files."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")
ROOM_BYTES = 1 << 30


@pytest.fixture
def fast_path(tmp_path: Path) -> Iterator[Path]:
    """As `tmp_path`, but in memory where there is room. Nothing is told about real disks: every fsync is still called, and what a
    power loss would take is for the test to say.
    """
    if not MEMORY.is_dir() or shutil.disk_usage(MEMORY).free < ROOM_BYTES:
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=MEMORY, prefix="spark-ckpt-test-") as folder:
        yield Path(folder)
