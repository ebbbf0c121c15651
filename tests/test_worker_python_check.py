"""The packages identify an interpreter: two environments on one binary are two interpreters."""

import os
import sys
from pathlib import Path

import pytest

from spark_ckpt.spark_session.worker_python import is_this_python


def environment(folder: Path) -> Path:
    """Make a virtual environment that links to the same binary."""
    folder.mkdir()
    python = folder / "python"
    python.symlink_to(Path(sys.executable).resolve())
    return python


def test_this_interpreter_is_known_under_all_its_names(monkeypatch):
    here = Path(sys.executable)
    assert is_this_python(str(here))
    monkeypatch.setenv("PATH", str(here.parent))
    assert is_this_python(here.name)


def test_another_environment_on_the_same_binary_is_another_interpreter(tmp_path, monkeypatch):
    other = environment(tmp_path / "bin")
    assert not is_this_python(str(other))
    monkeypatch.setenv("PATH", f"{other.parent}{os.pathsep}{os.environ['PATH']}")
    assert not is_this_python("python")


@pytest.mark.parametrize("written", ["/no/such/python", "no-such-python", ""])
def test_a_program_that_cannot_be_started_is_not_this_interpreter(written):
    assert not is_this_python(written)
