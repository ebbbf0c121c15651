"""A session adds its own Java options to the user's."""

import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from spark_ckpt.spark_session import class_archive
from spark_ckpt.spark_session import session as spark_session
from spark_ckpt.spark_session.class_archive import DRIVER_OPTIONS
from spark_ckpt.temporary_folder import LOCK

ARCHIVE = "-XX:SharedArchiveFile=ours.jsa"


@pytest.fixture(autouse=True)
def an_archive(monkeypatch):
    monkeypatch.setattr(class_archive, "options", lambda: ARCHIVE)


class Builder:
    """Spark's builder of sessions; its session is the settings."""

    def __init__(self):
        self.settings = {}

    def appName(self, name):
        return self

    def master(self, where):
        return self

    def config(self, key, value):
        self.settings[key] = value
        return self

    def getOrCreate(self):
        return self.settings


@pytest.fixture(autouse=True)
def no_java(monkeypatch):
    here = type("SparkSession", (), {"builder": property(lambda _: Builder()), "getActiveSession": lambda _: True})
    monkeypatch.setattr(spark_session, "SparkSession", here())
    monkeypatch.setattr(spark_session, "launched_deaf", nullcontext)
    monkeypatch.setattr(spark_session.jars, "find_java", lambda: None)


def options(own: str | None = None) -> str:
    return spark_session.session("app", conf={} if own is None else {DRIVER_OPTIONS: own})[DRIVER_OPTIONS]


def test_archived_classes_and_late_optimisation_are_added_to_the_users_options():
    assert options("-Xss4m").split()[:2] == ["-Xss4m", ARCHIVE]
    assert "-XX:Tier4BackEdgeThreshold=400000" in options("-Xss4m")


def test_without_options_of_the_user_the_session_has_ours():
    assert options() == options("")


def test_the_users_own_archive_has_priority():
    assert ARCHIVE not in options("-XX:SharedArchiveFile=mine.jsa")


@pytest.mark.parametrize("own", ["-XX:TieredStopAtLevel=1", "-XX:CompileThresholdScaling=2", "-XX:-TieredCompilation"])
def test_the_users_compiler_options_have_priority(own):
    assert options(own).split()[:2] == [own, ARCHIVE]
    assert "Tier4" not in options(own)


def test_without_an_archive_only_the_optimisation_is_late(monkeypatch):
    monkeypatch.setattr(class_archive, "options", lambda: "")
    assert "Archive" not in options()
    assert "Tier4" in options()


def test_the_workers_sockets_have_a_folder_that_a_killed_driver_does_not_leave():
    folder = spark_session.session("app")["spark.python.unix.domain.socket.dir"]
    assert (Path(folder) / LOCK).is_file()
    assert spark_session.session("app")["spark.python.unix.domain.socket.dir"] == folder, "one for the process"


def test_sockets_whose_own_folder_has_too_long_a_path_are_in_the_temporary_folder(monkeypatch):
    room = len(tempfile.gettempdir())
    monkeypatch.setattr(spark_session, "unix_sockets", lambda folder: {"at": folder} if len(folder) <= room else {})
    assert spark_session.session("app")["at"] == tempfile.gettempdir()
