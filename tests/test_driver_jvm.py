"""Processes that PySpark launches for our session inherit "ignored" for the signals that stop a program."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from pyspark import java_gateway

from spark_ckpt.spark_internals.launching import PYTHON_START
from spark_ckpt.spark_session.session import launched_deaf

ASKS = "import signal; print(*(signal.getsignal(n) is signal.SIG_IGN for n in (signal.SIGINT, signal.SIGTERM)))"


def answer() -> str:
    """Return the output of a child that is launched as PySpark launches its Java process."""
    child = java_gateway.Popen([sys.executable, "-c", ASKS], stdout=subprocess.PIPE, text=True, preexec_fn=None)
    return child.communicate(timeout=60)[0].strip()


def test_only_processes_launched_inside_ignore_the_signals():
    previous = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # the process that starts the tests may ignore it
    try:
        _check_launches()
    finally:
        signal.signal(signal.SIGINT, previous)


def _check_launches():
    assert answer() == "False False"
    with launched_deaf():
        assert answer() == "True True"
    assert answer() == "False False"


def test_processes_launched_inside_inherit_the_first_module_of_python_processes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PYTHONPATH", "/own")
    asks = "import os; print(os.environ['PYTHONPATH'])"
    with launched_deaf():
        child = java_gateway.Popen([sys.executable, "-c", asks], env={"PYTHONPATH": "/given"}, stdout=subprocess.PIPE)
        assert child.communicate(timeout=60)[0].decode().split() == [f"{PYTHON_START}:/given"]
        child = java_gateway.Popen([sys.executable, "-c", asks], stdout=subprocess.PIPE)
        assert child.communicate(timeout=60)[0].decode().split() == [f"{PYTHON_START}:/own"]


def test_a_failed_launch_restores_pyspark():
    before = java_gateway.Popen
    with pytest.raises(RuntimeError), launched_deaf():
        raise RuntimeError("no Java")
    assert java_gateway.Popen is before
