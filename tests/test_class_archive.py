"""The archive of Spark's classes: its place, and its creation."""

import os
import subprocess
from pathlib import Path

import pytest

from spark_ckpt.errors import EnvironmentUnfit
from spark_ckpt.spark_session import class_archive


@pytest.fixture
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def archive(cache):
    path = class_archive.path()
    path.parent.mkdir(parents=True)
    path.write_bytes(b"classes")
    return path


def test_without_an_archive_there_are_no_options(cache):
    assert class_archive.options() == ""


def test_java_prints_nothing_about_an_archive_it_cannot_use(archive):
    """Java would print a warning on standard output, in the middle of a command's JSON."""
    archive.unlink()
    jar = next(class_archive.jars.pyspark_jars().glob("spark-launcher*.jar"))
    _said_by_java(f"-XX:ArchiveClassesAtExit={archive}", "-cp", jar, "org.apache.spark.launcher.Main")

    options = class_archive.options().split()

    assert b"Unable to use" in _said_by_java("-Xlog:cds=off", *options[:2], "-version")
    assert _said_by_java(*options, "-version") == b""


def _said_by_java(*arguments):
    return subprocess.run([class_archive.jars.find_java(), *arguments], check=False, capture_output=True).stdout


def test_an_archive_of_reinstalled_jars_is_not_used(archive):
    before = min(each.stat().st_mtime for each in class_archive.jars.pyspark_jars().glob("*.jar")) - 1
    os.utime(archive, (before, before))
    assert class_archive.options() == ""


def test_an_archive_is_named_after_java_and_spark(cache, monkeypatch, tmp_path):
    before = class_archive.path()
    monkeypatch.setattr(class_archive.jars, "pyspark_jars", lambda: tmp_path / "another" / "jars")

    assert class_archive.path() != before
    assert class_archive.path().parent == before.parent


@pytest.mark.parametrize("variable", ["JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS"])
def test_java_options_of_the_environment_do_not_hide_the_archive(cache, monkeypatch, variable):
    """Java prints them whenever it prints its version."""
    before = class_archive.path()
    monkeypatch.setenv(variable, "-Dsome.property=1")
    class_archive.jars.reported_version.cache_clear()

    assert class_archive.path() == before


def test_a_new_archive_replaces_those_of_uninstalled_jars(cache, monkeypatch, tmp_path):
    def archives(command, **_):
        Path(command[-1]).write_bytes(b"classes")

    monkeypatch.setattr(class_archive.subprocess, "run", _only_training(archives))
    found = []
    for name in ("gone", "kept"):
        jars = tmp_path / name
        jars.mkdir()
        monkeypatch.setattr(class_archive.jars, "pyspark_jars", lambda jars=jars: jars)
        found.append(class_archive.create())
    (tmp_path / "gone").rmdir()

    class_archive.create()

    assert [each.is_file() for each in found] == [False, True]
    assert {each.stem for each in found[0].parent.glob("spark-*")} == {found[1].stem}


def test_a_java_that_creates_no_archive_is_reported_with_its_log(cache, monkeypatch):
    def fails(command, stdout, **_):
        stdout.write(b"no archive today")

    monkeypatch.setattr(class_archive.subprocess, "run", _only_training(fails))

    with pytest.raises(EnvironmentUnfit) as failed:
        class_archive.create()

    assert failed.value.context["log"].read_text() == "no archive today"
    assert [left.name for left in class_archive.path().parent.iterdir()] == ["archive.log"]


def test_a_training_that_hangs_is_given_up(cache, monkeypatch):
    def hangs(command, **_):
        raise subprocess.TimeoutExpired(command, 1)

    monkeypatch.setattr(class_archive.subprocess, "run", _only_training(hangs))

    with pytest.raises(EnvironmentUnfit, match="more than"):
        class_archive.create()


def _only_training(instead):
    """Java's version is asked for really; the training program is replaced."""
    run = subprocess.run
    return lambda command, **rest: instead(command, **rest) if "-m" in command else run(command, **rest)
