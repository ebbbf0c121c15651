"""The campaigns find planted faults, and the page agrees with their result lines."""

from __future__ import annotations

import json
import random
import subprocess
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pyarrow as pa
import pytest
from deltalake import write_deltalake

from integration_tests.broker import running_broker
from integration_tests.campaign import damages, deaths, delta_kills
from integration_tests.campaign.failovers import failovers_of, judged, pauses_of
from integration_tests.campaign.hazards import (
    future_times,
    odd_paths,
    odd_settings,
    poisoned_records,
    tables_behind,
    tables_changed,
)
from integration_tests.campaign.hazards.site import Site, site_of
from integration_tests.campaign.hazards.trials import tried
from integration_tests.campaign.page import MARK, write_page
from integration_tests.campaign.trial import RESULTS, Results, Trial, merge, read
from integration_tests.survival.process import Driver, started

HAZARDS = {
    "tables-behind": tables_behind.SCENES,
    "tables-changed": tables_changed.SCENES,
    "poisoned-records": poisoned_records.SCENES,
    "odd-settings": odd_settings.SCENES,
    "odd-paths": odd_paths.SCENES,
    "future-times": future_times.SCENES,
}
WHOLE = (0, json.dumps({"epochs": [{"epoch": 1}, {"epoch": 2}], "latest": 2}))


@pytest.fixture(scope="module")
def hazards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """One session and one broker for trials of all kinds."""
    folder = tmp_path_factory.mktemp("hazards")
    with running_broker(folder / "broker") as broker, site_of(folder, broker.servers) as site:
        yield site


def trials(path: Path) -> list[Trial]:
    return list(read(path))


def test_a_silently_different_answer_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(damages, "answer_of", lambda question: (0, json.dumps({"epochs": [{"epoch": 1}], "latest": 1})))

    verdict, why = damages.judged(WHOLE, ("list", "store"))

    assert verdict == "different"
    assert "latest" in why


LISTED = [
    {"epoch": 1, "rows_in": 5, "state_bytes": 9, "damage": None},
    {"epoch": 2, "rows_in": 6, "state_bytes": 9, "damage": None},
]


def _listed(*changed: dict[str, object]) -> tuple[int, str]:
    epochs = [epoch | change for epoch, change in zip(LISTED, changed, strict=True)]
    return 0, json.dumps({"epochs": epochs, "latest": 2})


@pytest.mark.parametrize(
    ("second", "verdict"),
    [
        ({"state_bytes": None, "damage": "[CKPT_EPOCH_DAMAGED] its digest is another"}, "told"),
        ({"state_bytes": None}, "different"),
        ({"state_bytes": 8, "damage": "[CKPT_EPOCH_DAMAGED] its digest is another"}, "different"),
        ({"state_bytes": None, "damage": "[CKPT_EPOCH_DAMAGED]", "rows_in": 7}, "different"),
    ],
)
def test_a_list_may_differ_only_at_the_epoch_that_it_calls_damaged(
    monkeypatch: pytest.MonkeyPatch, second: dict[str, object], verdict: str
) -> None:
    monkeypatch.setattr(damages, "answer_of", lambda question: _listed({}, second))

    assert damages.judged(_listed({}, {}), ("list", "store"))[0] == verdict


@pytest.mark.parametrize(
    ("files", "uncounted", "verdict"), [(18, [3], "told"), (18, [], "different"), (23, [3], "different")]
)
def test_a_plan_may_count_less_input_only_if_it_names_the_unreadable_epochs(
    files: int, uncounted: list[int], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(files: int, uncounted: list[int]) -> tuple[int, str]:
        return 0, json.dumps({"epoch": 1, "inputs": [{"source": "rows", "files": files, "uncounted": uncounted}]})

    monkeypatch.setattr(damages, "answer_of", lambda question: answer(files, uncounted))
    assert damages.judged(answer(22, []), ("restore", "store", "1"))[0] == verdict


def test_a_worker_is_found_by_its_command_line_and_the_youngest_by_its_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commands = {
        5: "python -m spark_ckpt.tasks.python_daemon pyspark.worker",
        40: "java SparkSubmit --conf spark.python.daemon.module=spark_ckpt.tasks.python_daemon",
        90: "python -m spark_ckpt.tasks.python_daemon pyspark.worker",
    }
    monkeypatch.setattr(deaths, "command_of", commands.__getitem__)
    monkeypatch.setattr(deaths, "started", {90: 100, 40: 150, 5: 200}.__getitem__)
    driver = cast(Driver, SimpleNamespace(family=lambda: list(commands)))

    assert deaths.of_family(driver, deaths.WORKER) == [90, 5], "process ids wrap around"


def test_an_error_without_a_type_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def untyped(question: object) -> tuple[int, str]:
        raise KeyError("seq")

    monkeypatch.setattr(damages, "answer_of", untyped)

    assert damages.judged(WHOLE, ("list", "store")) == ("untyped", "KeyError: 'seq'")


@pytest.mark.parametrize("how", sorted(damages.HOW))
def test_every_damage_changes_the_file(how: str, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one\ntwo\nthree\n")
    damages.HOW[how](path, random.Random(1))

    assert not path.exists() or path.read_bytes() != b"one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("change", "figure"),
    [
        (lambda rows: rows[1:], "lost"),
        (lambda rows: [*rows, rows[0]], "duplicated"),
        (lambda rows: [*rows, ("key-0", 99, 99)], "wrong"),
    ],
)
def test_a_delta_table_with_a_lost_a_repeated_or_a_wrong_row_is_found(
    change: object, figure: str, tmp_path: Path
) -> None:
    inbox = delta_kills.Inbox(tmp_path, random.Random(1))
    inbox.write()
    rows = change(sorted(inbox.appended().elements()))  # type: ignore[operator]
    columns = zip(("k", "count", "total"), zip(*rows, strict=True), strict=True)
    write_deltalake(str(tmp_path / "table"), pa.table({name: list(values) for name, values in columns}))
    results = tmp_path / "results.jsonl"

    delta_kills.compare(inbox, tmp_path / "table", "append", 0, Results(results, "delta", 1))

    (trial,) = trials(results)
    found = Counter({name: trial.figures[name] for name in ("lost", "duplicated", "wrong")})
    assert found == Counter({figure: 1})
    assert trial.why


def test_a_merged_table_holds_the_newest_figures_of_each_key(tmp_path: Path) -> None:
    inbox = delta_kills.Inbox(tmp_path, random.Random(1))
    inbox.write()
    last = {row[0]: row for row in sorted(inbox.appended(), key=lambda row: row[1])}

    assert inbox.merged() == Counter(last.values())


def test_a_driver_whose_process_id_is_reused_has_no_processes() -> None:
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as other:
        driver = object.__new__(Driver)
        driver.process, driver.started_ticks = other, started(other.pid)
        assert driver.family() == [other.pid]
        driver.started_ticks = 1
        assert driver.family() == []
        other.kill()


FENCED = {"event": "failed", "condition": "CKPT_FENCED"}
BEFORE = {"event": "committed", "epoch": 4}


def test_a_driver_that_wakes_after_its_successor_began_reports_that_it_is_fenced_and_ends() -> None:
    assert judged(4, [BEFORE, FENCED], 1, 4) == ""


def test_a_commit_before_the_takeover_may_be_reported_after_it() -> None:
    assert judged(4, [BEFORE, {"event": "committed", "epoch": 5}, FENCED], 1, 5) == ""


@pytest.mark.parametrize(
    ("code", "events"),
    [
        (4, [BEFORE, {"event": "committed", "epoch": 5}, FENCED]),
        (4, [BEFORE, {"event": "published", "epoch": 5}, FENCED]),
        (0, [BEFORE]),
        (4, [BEFORE]),
        (3, [BEFORE, {"event": "failed", "condition": "CKPT_RUN_FAILED"}]),
    ],
    ids=["commits", "publishes", "ends well", "says nothing", "says something else"],
)
def test_a_woken_driver_that_continues_or_hides_its_end_is_found(code: int, events: list[dict[str, object]]) -> None:
    assert judged(code, events, 1, 4)


def test_a_seed_repeats_the_schedule_of_failovers_and_of_pauses() -> None:
    assert failovers_of(5, 40) == failovers_of(5, 40) != failovers_of(6, 40)
    assert pauses_of(5, 40) == pauses_of(5, 40) != pauses_of(6, 40)


def test_a_trial_waits_only_for_the_start_of_a_successor_whose_publisher_will_freeze() -> None:
    pauses = pauses_of(5, 200)
    behind = [one.wake for one, following in pairwise(pauses) if following.point]

    assert {pause.wake for pause in pauses} == {"started", "committed", "published"}
    assert set(behind) == {"started"}


def test_the_page_has_the_ends_of_trials_whose_advice_was_followed(tmp_path: Path) -> None:
    page, lines = tmp_path / "page.md", tmp_path / "results.jsonl"
    page.write_text(f"{MARK}\n")
    results = Results(lines, "odd-paths", 1)
    results.add("folders", {"right": 1}, seed=7)
    results.add("folders", {"recovered": 1}, seed=8)
    results.add("folders", {"advice fails": 1}, "the same error again", seed=9)

    write_page(lines, page)

    assert [trial.seed for trial in trials(lines)] == [7, 8, 9]
    assert "| folders | 3 | 1 | 1 | 1 |" in page.read_text()
    assert "| odd names of folders, columns and files | 3 | 1 |" in page.read_text()


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.kafka
@pytest.mark.parametrize("kind", sorted(HAZARDS))
def test_a_trial_of_each_kind_ends_right(kind: str, hazards: Site, tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"

    tried(HAZARDS[kind], hazards, 1, Results(results, kind, 1))

    assert [trial.why for trial in trials(results)] == [""]


def test_the_page_counts_the_result_lines(tmp_path: Path) -> None:
    page, lines = tmp_path / "page.md", tmp_path / "results.jsonl"
    page.write_text(f"# Head\n\n{MARK}\n\nold figures\n")
    results = Results(lines, "kafka", 1)
    results.add("in recovery")
    results.add("in recovery", why="the driver does not end")
    results.add("output compared", {"records": 100, "lost": 2})

    write_page(lines, page)

    text = page.read_text()
    assert "old figures" not in text
    assert "| Kafka to Kafka: kill -9 | 2 | 1 | 2 | 0 | 0 | 0 |" in text
    assert "| in recovery | 2 | 1 |" in text


def test_trials_that_kept_their_promise_are_added_up_and_the_page_stays(tmp_path: Path) -> None:
    page, lines = tmp_path / "page.md", tmp_path / "results.jsonl"
    page.write_text(f"{MARK}\n")
    results = Results(lines, "odd-paths", 1)
    for _ in range(3):
        results.add("folders", {"right": 1})
    results.add("folders", {"recovered": 1})
    results.add("folders", {"advice fails": 1}, "the same error again")
    Results(lines, "failovers", 1).add("killed", {"first epoch after s": 2.5})
    write_page(lines, page)
    before = page.read_text()

    for _ in range(2):
        merge(lines)
        write_page(lines, page)

        assert page.read_text() == before
        assert [(trial.times, trial.why) for trial in trials(lines)] == [
            (3, ""),
            (1, ""),
            (1, "the same error again"),
            (1, ""),
        ]


def test_the_documented_figures_are_those_of_the_results(tmp_path: Path) -> None:
    """Regenerate with: python -m integration_tests.campaign page"""
    from integration_tests.campaign.page import PAGE

    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text())
    write_page(RESULTS, copy)

    assert copy.read_text() == PAGE.read_text()
