"""PySpark's worker daemon of this library imports the modules of tasks before it forks workers."""

import importlib
import os
import socket
import struct
import subprocess
import sys
import tempfile

import pytest

from spark_ckpt.spark_internals.launching import PYTHON_START
from spark_ckpt.spark_internals.python_workers import print_error_unless_hung_up_on, print_unless_hung_up_on
from spark_ckpt.tasks import python_daemon
from tests.test_architecture import modules_of_row, within


def served(monkeypatch, *arguments):
    """Return the modules that the daemon imports before it serves."""
    imported = []
    monkeypatch.setattr("pyspark.daemon.manager", lambda: imported.append("serves"))
    monkeypatch.setattr(python_daemon.sys, "argv", ["daemon", *arguments])
    monkeypatch.setattr(python_daemon.importlib, "import_module", imported.append)
    monkeypatch.setattr(python_daemon.gc, "freeze", lambda: None)
    python_daemon.main()
    return imported


def started_daemon(module, sockets):
    """A daemon that serves Unix sockets in a folder, and the place at which Spark asks it for a worker."""
    path = os.pathsep.join([str(PYTHON_START), *sys.path])
    asked = {"PYTHONPATH": path} | {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(sockets),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",  # as Spark sets it
    }
    daemon = subprocess.Popen(
        [sys.executable, "-m", module, "of_no_tasks"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=os.environ | asked,
    )
    (length,) = struct.unpack("!i", daemon.stdout.read(4))
    return daemon, daemon.stdout.read(length).decode()


@pytest.mark.parametrize("module", ["spark_ckpt.tasks.python_daemon", "pyspark.daemon"])
def test_workers_whose_connection_spark_closes_end_silently(module):
    """Spark stops a task before its worker has answered that it was forked, or before it has read the task."""
    with tempfile.TemporaryDirectory() as sockets:
        daemon, place = started_daemon(module, sockets)
        for answers in (0, 4):
            with socket.socket(socket.AF_UNIX) as spark:
                spark.connect(place)
                assert len(spark.recv(answers)) == answers
        _, said = daemon.communicate(timeout=60)  # closes its input, at which it ends

    assert said.decode() == ""


@pytest.mark.parametrize(
    ("error", "says"),
    [(BrokenPipeError(), False), (ConnectionResetError(), False), (EOFError(), False), (ValueError("theirs"), True)],
    ids=lambda each: type(each).__name__,
)
def test_only_the_error_of_a_closed_connection_is_not_printed(error, says, capsys):
    with pytest.raises(type(error)):
        try:
            raise error
        finally:
            print_error_unless_hung_up_on()
    assert ("Traceback" in capsys.readouterr().err) is says


def test_a_last_write_that_spark_does_not_read_prints_nothing(capsys):
    print_unless_hung_up_on("failed to flush:\nTraceback ...\nBrokenPipeError: [Errno 32] Broken pipe\n")
    print_unless_hung_up_on("failed to flush:\nTraceback ...\nMemoryError\n")
    assert capsys.readouterr().out.splitlines() == ["failed to flush:", "Traceback ...", "MemoryError", ""]


def test_a_daemon_of_tasks_imports_first_and_then_serves(monkeypatch):
    *imported, last = served(monkeypatch, "pyspark.worker")
    assert last == "serves"
    monkeypatch.undo()
    for name in imported:
        importlib.import_module(name)
    ours = {name for name in imported if name.startswith("spark_ckpt")}
    assert ours
    assert all(within(name, set(modules_of_row("in tasks"))) for name in ours)


def test_a_daemon_of_sparks_planner_imports_nothing(monkeypatch):
    assert served(monkeypatch, "pyspark.sql.worker.plan_data_source_read") == ["serves"]


READER = """
from spark_ckpt.connector_parts.file_stream import FileStreamReader

class Reader(FileStreamReader):
    prepareForTriggerAvailableNow = read = None

reader = Reader({{}}, 1)
try:
    try:
        raise {first}
    finally:
        reader.stop()
except BaseException:
    raise {second}
"""


@pytest.mark.parametrize(
    ("first", "second", "says"),
    [
        ("EOFError()", "BrokenPipeError()", False),
        ("EOFError()", "ConnectionResetError()", False),
        ("EOFError()", "ValueError('theirs')", True),
        ("KeyError('theirs')", "BrokenPipeError()", True),
    ],
)
def test_the_process_of_a_source_prints_nothing_when_spark_closes_its_connection(first, second, says):
    text = READER.format(first=first, second=second)
    ended = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert ("Traceback" in ended.stderr) is says
