"""The doctor finds defects, gives advice, and leaves no files."""

import threading
import tomllib
from pathlib import Path

import pytest

from spark_ckpt import jars
from spark_ckpt.cli import checks, store_check
from spark_ckpt.cli.checks import PACKAGES, Package
from spark_ckpt.store import delta_log
from spark_ckpt.store.store import Store


@pytest.fixture
def fresh_java():
    jars.find_java.cache_clear()
    yield
    jars.find_java.cache_clear()


def findings(answer):
    return {each["check"]: each for each in answer.json["findings"]}


def test_the_packages_and_bounds_are_those_of_the_project():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    declared = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    written = {each.replace(" ", "") for each in declared}

    for package in PACKAGES:
        bounds = f">={package.oldest}" + (f",<{package.below}" if package.below else "")
        assert {f"{package.name}{bounds}", f"{package.name}=={package.oldest}"} & written, package


def test_a_machine_without_java_fails_with_advice(command, monkeypatch, tmp_path, fresh_java):
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    answer = command("doctor", "--json")

    assert (answer.code, answer.json["healthy"]) == (10, False)
    assert findings(answer)["java"]["status"] == "fail"
    assert "JDK 17" in findings(answer)["java"]["next"]


@pytest.mark.parametrize(
    ("package", "status"),
    [
        (Package("pyarrow", "1.0"), "ok"),
        (Package("pyarrow", "999"), "fail"),
        (Package("pyarrow", "1.0", "2.0"), "fail"),
        (Package("no-such-package", "1.0"), "fail"),
        (Package("no-such-package", "1.0", "", "demo", "the demo"), "warn"),
    ],
)
def test_versions_are_compared_as_numbers(package, status):
    found = checks.installed(package)

    assert found.status == status
    assert bool(found.next) == (status != "ok")


def test_workers_with_another_python_are_a_warning(monkeypatch):
    monkeypatch.setenv("PYSPARK_PYTHON", "/usr/bin/another-python")

    assert checks.workers().status == "warn"


def test_missing_jars_are_a_warning_and_nothing_is_downloaded(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    found = checks.connector("delta")

    assert (found.status, found.next) == ("warn", "fetch them now: spark-ckpt jars delta")
    assert not list(tmp_path.rglob("*.jar"))


def test_a_good_store_is_not_changed(command, world):
    folder = Path(world.store.location.uri)
    before = sorted(folder.rglob("*"))

    found = findings(command("doctor", "--store", folder, "--json"))

    assert {found[name]["status"] for name in ("store", "newest epoch", "store writes")} == {"ok"}
    assert sorted(folder.rglob("*")) == before


def test_the_store_of_an_outbox_is_good(command, tmp_path):
    Store.open(str(tmp_path / "store"), "orders", kind="outbox")

    found = findings(command("doctor", "--store", tmp_path / "store", "--json"))

    assert (found["store"]["status"], found["store"]["detail"].split(",")[0]) == ("ok", "outbox orders")


def test_an_empty_place_for_a_new_store_is_good_and_stays_empty(command, tmp_path):
    found = findings(command("doctor", "--store", tmp_path / "new", "--json"))

    assert {found[name]["status"] for name in ("store", "store writes")} == {"ok"}
    assert not (tmp_path / "new").exists()


def test_a_folder_with_other_content_is_refused(command, tmp_path):
    (tmp_path / "letter.txt").write_text("dear")

    assert findings(command("doctor", "--store", tmp_path, "--json"))["store"]["status"] == "fail"


def test_a_store_that_cannot_be_written_fails_with_advice(command, tmp_path):
    (tmp_path / "file").write_text("not a folder")

    found = findings(command("doctor", "--store", tmp_path / "file" / "store", "--json"))

    assert any(each["status"] == "fail" and each["next"] for each in found.values())


def test_a_damaged_newest_epoch_is_found(command, world):
    newest = world.store.log.manifest(3).operators["totals"].files[-1]
    (Path(world.store.state("totals").location.uri) / newest.path).unlink()

    found = findings(command("doctor", "--store", world.store.location.uri, "--json"))

    assert found["newest epoch"]["status"] == "fail"


def writes_in(folder):
    *_, found = store_check.store_findings(str(folder), {})
    return found


def test_a_place_where_two_writers_both_commit_is_refused(monkeypatch, tmp_path):
    """Planted: commits without compare-and-swap, as on an object store without conditional puts."""
    commit = delta_log.commit

    def blind(table, location, actions, schema):
        return commit(delta_log.open_table(location), location, actions, schema)

    monkeypatch.setattr(delta_log, "commit", blind)

    assert writes_in(tmp_path).status == "fail"


def test_a_place_where_neither_of_two_writers_commits_is_refused(monkeypatch, tmp_path):
    def loses(*_):
        raise delta_log.CommitLost("refused")

    monkeypatch.setattr(delta_log, "commit", loses)

    found = writes_in(tmp_path)
    assert (found.status, "neither" in found.detail) == ("fail", True)


def test_a_place_where_both_commit_only_at_the_same_moment_is_refused(monkeypatch, tmp_path):
    """Planted: a later writer is refused, but two that read at the same moment both find nothing, and write."""
    commit, both_looked = delta_log.commit, threading.Barrier(2)
    in_turn = iter(("first", "second"))

    def looks_first(table, location, actions, schema):
        if next(in_turn, None) is not None:
            return commit(table, location, actions, schema)
        both_looked.wait(60)
        return table.version() + 1

    monkeypatch.setattr(delta_log, "commit", looks_first)

    found = writes_in(tmp_path)
    assert (found.status, "race 1" in found.detail) == ("fail", True)


@pytest.mark.parametrize("server", ["127.0.0.1:9", "127.0.0.1:99999", "broker..local:9092"])
def test_a_broker_that_does_not_answer_is_reported_with_advice(command, server):
    found = findings(command("doctor", "--kafka", server, "--json"))

    assert found["kafka"]["status"] == "fail"
    assert server in found["kafka"]["detail"]
    assert "broker" in found["kafka"]["next"]
