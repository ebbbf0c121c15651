"""Jars: each one is locked by its digest and downloaded once; a missing or different one is reported before a
session starts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spark_ckpt import jars
from spark_ckpt.errors import ConfigInvalid, EnvironmentUnfit
from spark_ckpt.jars import Jar

ROOT = Path(__file__).parents[1]


def _jar(name: str, version: str = "1.0") -> Jar:
    return Jar("org.example", name, version, hashlib.sha256(f"{name} {version}".encode()).hexdigest())


class Repository:
    """Replaces Ivy and the network: writes the jars that it has to Ivy's folder."""

    def __init__(self, *jars_it_has: Jar) -> None:
        self.has = set(jars_it_has)
        self.asked: list[list[Jar]] = []
        self.damaged: set[Jar] = set()

    def __call__(self, work: Path, wanted: Sequence[Jar]) -> None:
        self.asked.append(list(wanted))
        for jar in self.has & set(wanted):
            folder = work / "cache" / jar.group / jar.artifact / "jars"
            folder.mkdir(parents=True)
            text = "something else" if jar in self.damaged else f"{jar.artifact} {jar.version}"
            (folder / jar.file_name).write_text(text)


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Repository:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one = Repository()
    monkeypatch.setattr(jars, "run_ivy", one)
    return one


def _resolve(*choices: list[Jar]) -> list[Path]:
    return jars.fetch(choices, "the test")


def test_jars_are_downloaded_once_in_one_request(repository: Repository) -> None:
    a, b = _jar("a"), _jar("b")
    repository.has = {a, b}

    first, second = _resolve([a], [b]), _resolve([a], [b])

    assert [path.name for path in first] == ["a-1.0.jar", "b-1.0.jar"]
    assert first == second
    assert repository.asked == [[a, b]]


def test_a_version_that_the_mirror_lacks_is_replaced_by_the_next(repository: Repository) -> None:
    a, new, old = _jar("a"), _jar("b", "2.0"), _jar("b", "1.9")
    repository.has = {a, old}

    assert [path.name for path in _resolve([a], [new, old])] == ["a-1.0.jar", "b-1.9.jar"]
    assert repository.asked == [[a, new], [old]]


def test_an_unavailable_jar_is_named_with_advice(repository: Repository) -> None:
    with pytest.raises(EnvironmentUnfit, match=r"org\.example:a:1\.0") as missing:
        _resolve([_jar("a")])

    assert "SPARK_CKPT_IVY_SETTINGS" in missing.value.hint


def test_a_jar_with_another_digest_is_never_used(repository: Repository) -> None:
    a = _jar("a")
    repository.has = repository.damaged = {a}

    with pytest.raises(EnvironmentUnfit, match="not the locked one"):
        _resolve([a])
    assert not list(jars.cache_folder().glob("*.jar"))


def test_a_jar_damaged_in_the_cache_is_downloaded_again(repository: Repository) -> None:
    a = _jar("a")
    repository.has = {a}
    (path,) = _resolve([a])
    path.write_text("torn")

    assert _resolve([a]) == [path]
    assert path.read_text() == "a 1.0"


def test_processes_that_resolve_at_once_download_once(repository: Repository) -> None:
    a = _jar("a")
    repository.has = {a}

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: _resolve([a]), range(4)))

    assert found == [found[0]] * 4
    assert [wanted for wanted in repository.asked if wanted] == [[a]]


LOCKS = sorted([*(ROOT / "connectors").glob("*/jars.lock.json"), *(ROOT / "integration_tests").glob("*.lock.json")])


@pytest.mark.parametrize("lock", LOCKS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_lock_file_names_every_jar_once(lock: Path) -> None:
    choices = jars.read_lock(lock)

    names = [(choice[0].group, choice[0].artifact) for choice in choices]
    assert len(set(names)) == len(names) > 3


ROW = {"group": "org.example", "artifact": "a", "versions": [{"version": "1.0", "sha256": "0" * 64}]}


@pytest.mark.parametrize(
    "content",
    [
        "no JSON",
        "[]",
        json.dumps({"format": 2, "jars": [ROW]}),
        json.dumps({"format": 1, "jars": [ROW | {"artifact": "../../bin/a"}]}),
        json.dumps({"format": 1, "jars": [ROW | {"versions": [{"version": "1.0", "sha256": "short"}]}]}),
        json.dumps({"format": 1, "jars": [{"group": "org.example"}]}),
    ],
)
def test_an_invalid_lock_file_is_refused(tmp_path: Path, content: str) -> None:
    lock = tmp_path / "jars.lock.json"
    lock.write_text(content)

    with pytest.raises(ConfigInvalid):
        jars.read_lock(lock)


def _fake_java(folder: Path, version: str) -> None:
    (folder / "bin").mkdir(parents=True)
    java = folder / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\"' >&2\n")
    java.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "good"), [("17.0.15", True), ("21", True), ("11.0.2", False), ("1.8.0_292", False)]
)
def test_java_must_be_new_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, good: bool) -> None:
    _fake_java(tmp_path, version)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    jars.find_java.cache_clear()
    try:
        if good:
            assert jars.find_java() == tmp_path / "bin" / "java"
        else:
            with pytest.raises(EnvironmentUnfit, match="too old"):
                jars.find_java()
    finally:
        jars.find_java.cache_clear()


@pytest.mark.parametrize(
    ("program", "message"), [("#!/bin/sh\nexec sleep 60\n", "no version within"), ("no program", "cannot be run")]
)
def test_a_java_that_does_not_answer_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    _fake_java(tmp_path, "")
    (tmp_path / "bin" / "java").write_text(program)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setattr(jars, "VERSION_TIMEOUT_S", 0.01)
    jars.find_java.cache_clear()
    try:
        with pytest.raises(EnvironmentUnfit, match=message):
            jars.find_java()
    finally:
        jars.find_java.cache_clear()


def test_a_missing_java_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    jars.find_java.cache_clear()
    try:
        with pytest.raises(EnvironmentUnfit, match="no java on PATH"):
            jars.find_java()
    finally:
        jars.find_java.cache_clear()
