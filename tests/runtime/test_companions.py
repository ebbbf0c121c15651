"""Settings choose a run's listeners and companions (lineage, page, metrics)."""

from __future__ import annotations

import json
import urllib.request

import pytest
from incarnation_kit import WAIT_S, Bench, FakeSource
from run_kit import Bench as RunBench

from spark_ckpt.driver.progress import Progress
from spark_ckpt.driver.run import Run
from spark_ckpt.errors import ConfigInvalid, SourceInvalid
from spark_ckpt.events.announcer import Announcer
from spark_ckpt.observability.companions import companions_of, listeners_of, page_of
from spark_ckpt.store.store import Store


@pytest.fixture
def with_companions(tmp_path, monkeypatch):
    """Start a bench with settings, its listeners and companions; close the companions at the end of the test."""
    made = []

    def make(**settings):
        bench = Bench(tmp_path, monkeypatch, **settings)
        listeners = listeners_of(bench.plan)
        companions = companions_of(bench.plan, Progress("job"), listeners)
        made.extend(companions)
        for each in companions:
            each.start()
        return bench, listeners, companions

    yield make
    for each in made:
        each.close()


def test_without_a_setting_a_run_has_no_listeners_and_no_companions(with_companions):
    _, listeners, companions = with_companions()
    assert (listeners, companions) == ([], [])


def test_lineage_follows_the_settings_of_its_client(with_companions, tmp_path, monkeypatch):
    events = tmp_path / "events.jsonl"
    for name, value in {"TYPE": "file", "LOG_FILE_PATH": str(events), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    bench, listeners, companions = with_companions(lineage="tests")
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1)
    incarnation.stopped(2)
    announcer = Announcer("job", 1, listeners)
    announcer.started(0, "latest")
    announcer.committed(2, {}, bench.store.reopened().log.manifest(2))
    announcer.ended(2, "stopped")
    for each in companions:
        each.close()

    sent = [json.loads(line) for line in events.read_text().splitlines()]
    assert [event["eventType"] for event in sent] == ["START", "RUNNING", "COMPLETE"]
    assert sent[0]["job"]["namespace"] == "tests"
    assert sent[1]["inputs"][0]["inputFacets"]["spark_ckpt_cursor"]["cursor"] == {"n": 1}
    assert sent[1]["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 1
    assert sent[1]["outputs"][0]["facets"]["schema"]["fields"][0]["name"] == "v"


def test_the_page_of_a_run_answers_at_its_address(with_companions):
    _, _, [page] = with_companions(ui="0")
    with urllib.request.urlopen(f"{page.url}api/jobs", timeout=30) as answer:
        assert json.load(answer)[0]["job"] == "job"


def test_the_page_of_a_program_shows_all_its_stages(tmp_path):
    stores = [Store.open(str(tmp_path / name), f"program.{name}") for name in ("main", "model")]
    page = page_of("program", stores, "0")
    page.start()
    try:
        with urllib.request.urlopen(f"{page.url}api/jobs", timeout=30) as answer:
            assert [shown["job"] for shown in json.load(answer)] == ["program.main", "program.model"]
    finally:
        page.close()


@pytest.mark.parametrize("address", ["here", "127.0.0.1:", ":4141", "127.0.0.1:99999"])
def test_an_invalid_page_address_is_refused_at_the_start(with_companions, address):
    with pytest.raises(ConfigInvalid, match="no address for the page"):
        with_companions(ui=address)


def test_metrics_that_go_nowhere_are_refused_at_the_start(with_companions):
    with pytest.raises(ConfigInvalid, match="no place for metrics"):
        with_companions(metrics="graphite")


class Companion:
    def __init__(self, fails=False):
        self.fails, self.calls = fails, []

    def start(self):
        self.calls.append("start")

    def close(self):
        self.calls.append("close")
        if self.fails:
            raise OSError("the address is gone")


def test_companions_end_with_the_run_and_cannot_prevent_its_end(tmp_path, monkeypatch):
    bench = RunBench(tmp_path, monkeypatch)
    failing, other = Companion(fails=True), Companion()
    run = Run.start(bench.plan(), "latest", False, [], lambda plan, progress, listeners: [failing, other])
    assert (failing.calls, other.calls) == (["start"], ["start"])
    assert run.stop(WAIT_S)
    assert failing.calls == other.calls == ["start", "close"]


def test_companions_of_a_run_that_could_not_begin_are_closed(tmp_path, monkeypatch):
    bench = RunBench(tmp_path, monkeypatch)
    bench.beginnings = [ValueError("no such table")]
    made = Companion()
    with pytest.raises(ValueError, match="no such table"):
        Run.start(bench.plan(), "latest", False, [], lambda plan, progress, listeners: [made])
    assert made.calls == ["close"]


def test_a_companion_that_cannot_start_does_not_end_the_run(tmp_path, monkeypatch):
    class CannotStart(Companion):
        def start(self):
            raise RuntimeError("can't start new thread")

    bench, other = RunBench(tmp_path, monkeypatch), Companion()
    run = Run.start(bench.plan(), "latest", False, [], lambda plan, progress, listeners: [CannotStart(), other])
    assert other.calls == ["start"]
    assert run.stop(WAIT_S)


def test_a_drain_whose_source_has_no_known_end_opens_no_companions(tmp_path, monkeypatch):
    def away(source, spark):
        raise SourceInvalid("no broker answers")

    bench, made = RunBench(tmp_path, monkeypatch), []
    monkeypatch.setattr(FakeSource, "end", away)
    with pytest.raises(SourceInvalid):
        Run.start(bench.plan(), "latest", True, [], lambda plan, progress, listeners: made or [made.append(1)])
    assert made == []
