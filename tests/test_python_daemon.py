"""PySpark's worker daemon of this library: what tasks import is there before workers are forked."""

import importlib

from spark_ckpt.tasks import python_daemon


def test_everything_the_daemon_imports_exists():
    for name in python_daemon._IMPORTED:
        importlib.import_module(name)


def served(monkeypatch, *arguments):
    """What the daemon imports before it serves."""
    imported = []
    monkeypatch.setattr("pyspark.daemon.manager", lambda: imported.append("serves"))
    monkeypatch.setattr(python_daemon.sys, "argv", ["daemon", *arguments])
    monkeypatch.setattr(python_daemon.importlib, "import_module", imported.append)
    monkeypatch.setattr(python_daemon.gc, "freeze", lambda: None)
    python_daemon.main()
    return imported


def test_a_daemon_of_tasks_imports_first_and_then_serves(monkeypatch):
    assert served(monkeypatch, "pyspark.worker") == [*python_daemon._IMPORTED, "serves"]


def test_a_daemon_of_sparks_planner_imports_nothing(monkeypatch):
    assert served(monkeypatch, "pyspark.sql.worker.plan_data_source_read") == ["serves"]
