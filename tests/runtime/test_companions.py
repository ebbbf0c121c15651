"""What hears a run, and what lives beside it, is what its settings ask for."""

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
def beside(tmp_path, monkeypatch):
    """A bench with settings, its listeners and companions; these end with the test."""
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


def test_without_a_setting_nobody_hears_and_nothing_lives_beside(beside):
    _, listeners, companions = beside()
    assert (listeners, companions) == ([], [])


def test_lineage_goes_where_the_clients_own_settings_say(beside, tmp_path, monkeypatch):
    events = tmp_path / "events.jsonl"
    for name, value in {"TYPE": "file", "LOG_FILE_PATH": str(events), "APPEND": "true"}.items():
        monkeypatch.setenv(f"OPENLINEAGE__TRANSPORT__{name}", value)
    bench, listeners, companions = beside(lineage="tests")
    life = bench.born()
    life.life.request_savepoint("named")
    life.epoch(2, 1)
    life.stopped(2)
    announcer = Announcer("job", 1, listeners)
    announcer.started(0, "latest")
    announcer.committed(2, {}, bench.store.reopened().log.manifest(2))
    announcer.ended(2, "stopped")
    for each in companions:
        each.close()

    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert [event["eventType"] for event in told] == ["START", "RUNNING", "COMPLETE"]
    assert told[0]["job"]["namespace"] == "tests"
    assert told[1]["inputs"][0]["inputFacets"]["spark_ckpt_cursor"]["cursor"] == {"n": 1}
    assert told[1]["outputs"][0]["outputFacets"]["outputStatistics"]["rowCount"] == 1
    assert told[1]["outputs"][0]["facets"]["schema"]["fields"][0]["name"] == "v"


def test_the_page_of_a_run_answers_at_its_address(beside):
    _, _, [page] = beside(ui="0")
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
def test_an_address_that_is_none_is_refused_at_the_start(beside, address):
    with pytest.raises(ConfigInvalid, match="no address for the page"):
        beside(ui=address)


def test_metrics_that_go_nowhere_are_refused_at_the_start(beside):
    with pytest.raises(ConfigInvalid, match="no place for metrics"):
        beside(metrics="graphite")


class Beside:
    def __init__(self, fails=False):
        self.fails, self.heard = fails, []

    def start(self):
        self.heard.append("start")

    def close(self):
        self.heard.append("close")
        if self.fails:
            raise OSError("the address is gone")


def test_what_lives_beside_a_run_ends_with_it_and_cannot_keep_it_from_ending(tmp_path, monkeypatch):
    bench = RunBench(tmp_path, monkeypatch)
    failing, other = Beside(fails=True), Beside()
    run = Run.start(bench.plan(), "latest", False, [], lambda plan, progress, listeners: [failing, other])
    assert (failing.heard, other.heard) == (["start"], ["start"])
    assert run.stop(WAIT_S)
    assert failing.heard == other.heard == ["start", "close"]


def test_what_was_made_for_a_run_that_could_not_begin_is_closed(tmp_path, monkeypatch):
    bench = RunBench(tmp_path, monkeypatch)
    bench.beginnings = [ValueError("no such table")]
    made = Beside()
    with pytest.raises(ValueError, match="no such table"):
        Run.start(bench.plan(), "latest", False, [], lambda plan, progress, listeners: [made])
    assert made.heard == ["close"]


def test_what_cannot_start_beside_a_run_leaves_no_run_without_its_watch(tmp_path, monkeypatch):
    class CannotStart(Beside):
        def start(self):
            raise RuntimeError("can't start new thread")

    bench, other = RunBench(tmp_path, monkeypatch), Beside()
    run = Run.start(bench.plan(), "latest", False, [], lambda plan, progress, listeners: [CannotStart(), other])
    assert other.heard == ["start"]
    assert run.stop(WAIT_S)


def test_nothing_is_opened_for_a_drain_whose_source_does_not_say_where_it_ends(tmp_path, monkeypatch):
    def away(source, spark):
        raise SourceInvalid("no broker answers")

    bench, made = RunBench(tmp_path, monkeypatch), []
    monkeypatch.setattr(FakeSource, "end", away)
    with pytest.raises(SourceInvalid):
        Run.start(bench.plan(), "latest", True, [], lambda plan, progress, listeners: made or [made.append(1)])
    assert made == []
