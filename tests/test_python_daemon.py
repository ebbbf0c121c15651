"""PySpark's worker daemon of this library imports the modules of tasks before it forks workers."""

import importlib
import subprocess
import sys

import pytest

from spark_ckpt.spark_internals.python_workers import print_unless_hung_up_on, silent_when_hung_up_on
from spark_ckpt.tasks import python_daemon
from tests.test_architecture import modules_of_row, within


def served(monkeypatch, *arguments):
    """Return the modules that the daemon imports before it serves."""
    imported = []
    monkeypatch.setattr("pyspark.daemon.manager", lambda: imported.append("serves"))
    monkeypatch.setattr("pyspark.daemon.worker", lambda sock, authenticated: 0)
    monkeypatch.setattr(python_daemon.sys, "argv", ["daemon", *arguments])
    monkeypatch.setattr(python_daemon.importlib, "import_module", imported.append)
    monkeypatch.setattr(python_daemon.gc, "freeze", lambda: None)
    python_daemon.main()
    return imported


def raising(error):
    def worker(sock, authenticated):
        raise error

    return worker


@pytest.mark.parametrize(
    "error", [BrokenPipeError(), ConnectionResetError(), EOFError()], ids=lambda each: type(each).__name__
)
def test_a_worker_whose_connection_spark_closes_ends_silently(error):
    assert silent_when_hung_up_on(raising(error))(None, True) == 1


def test_any_other_end_of_a_worker_is_left_to_spark():
    with pytest.raises(ValueError, match="theirs"):
        silent_when_hung_up_on(raising(ValueError("theirs")))(None, True)
    assert silent_when_hung_up_on(lambda sock, authenticated: 7)(None, True) == 7


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
