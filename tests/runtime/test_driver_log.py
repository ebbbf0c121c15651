"""Spark's stacks go to a file, unless the user configures the logging."""

from __future__ import annotations

import os

import pytest

from spark_ckpt.spark_internals import loggers
from spark_ckpt.spark_session import driver_log


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (driver_log.VARIABLE, "SPARK_CONF_DIR", "PYSPARK_GATEWAY_PORT"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "cache" / "spark_ckpt" / "logs"


def test_a_driver_has_a_log_file_of_its_process(cache):
    assert driver_log.options("-Xmx1g") == (
        f'"-Dlog4j2.configurationFile={loggers.CONFIGURATION.as_uri()}" "-Dckpt.log={cache}/spark-{os.getpid()}.log"'
    )


def test_the_variable_names_another_file_or_sparks_own_logging(monkeypatch, tmp_path):
    monkeypatch.setenv(driver_log.VARIABLE, str(tmp_path / "mine.log"))
    assert f'"-Dckpt.log={tmp_path}/mine.log"' in driver_log.options("")
    monkeypatch.setenv(driver_log.VARIABLE, "console")
    assert driver_log.options("") == ""


def test_a_logging_that_the_user_configures_stays(monkeypatch, tmp_path):
    assert driver_log.options("-Dlog4j2.configurationFile=mine.xml") == ""
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    assert driver_log.options("")
    (tmp_path / "log4j2.properties").write_text("")
    assert driver_log.options("") == ""


def test_spark_submit_configures_the_logging_of_its_programs(monkeypatch):
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert driver_log.options("") == ""


def test_the_newest_logs_stay_and_those_of_running_processes(cache):
    cache.mkdir(parents=True)
    running = cache / f"spark-{os.getpid()}.log"
    ended = [cache / f"spark-{2**22 + number}.log" for number in range(30)]  # above the highest process id of Linux
    for number, log in enumerate([running, *ended]):
        log.touch()
        os.utime(log, (number, number))
    driver_log.options("")
    assert sorted(cache.iterdir()) == sorted([running, *ended[-20:]])


def test_a_log_that_cannot_be_deleted_stays(cache):
    cache.mkdir(parents=True)
    ended = [cache / f"spark-{2**22 + number}.log" for number in range(22)]
    ended[0].mkdir()  # no user can unlink a folder
    for number, log in enumerate(ended):
        log.touch()
        os.utime(log, (number, number))
    assert driver_log.options("")
    assert sorted(cache.iterdir()) == [ended[0], *ended[2:]]
