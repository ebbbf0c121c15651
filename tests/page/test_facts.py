"""The page has the content of the store; unknown facts are marked as unknown."""

from __future__ import annotations

import time

import pytest
from page_world import GRAPH, many_briefs, reported_world

from spark_ckpt.epochs.log_state import LogState, folded
from spark_ckpt.epochs.records import CreatedRecord
from spark_ckpt.errors import ConfigInvalid, EpochNotFound
from spark_ckpt.observability.page.facts import COLUMNS, epoch_of, facts_of, rows_of
from spark_ckpt.observability.page.report import going_back
from spark_ckpt.observability.page.server import state_at
from spark_ckpt.store.standbys import StandbyNote, Standbys
from tests.cli.cli_world import three_epochs, two_branches
from tests.store.store_world import ELSEWHERE, OPERATOR, SINK

NOW_MS = 1_700_000_000_000


@pytest.fixture
def world(tmp_path):
    return reported_world(tmp_path / "store")


def page_facts(world):
    facts = facts_of(world.store, NOW_MS)
    return facts, [dict(zip(COLUMNS, row, strict=True)) for row in facts["epochs"]]


def test_every_kept_epoch_has_its_facts_from_the_log(world):
    facts, rows = page_facts(world)
    assert (facts["job"], facts["latest"]) == ("job", 3)
    assert [(row["epoch"], row["status"]) for row in rows] == [(1, "published"), (2, "published"), (3, "publishing")]
    assert [row["duration_ms"] for row in rows] == [520] * 3


def test_parts_of_an_epoch_come_from_its_own_and_later_manifests(world):
    _, rows = page_facts(world)
    parts = [tuple(row[f"{part}_ms"] for part in ("barrier", "snapshot", "decision", "publish")) for row in rows]
    assert parts == [(100, 400, 20, 30), (100, 400, 20, 30), (100, 400, None, None)]


def test_the_size_of_the_state_is_the_files_that_the_epoch_names(world):
    _, rows = page_facts(world)
    for row in rows:
        files = world.store.log.manifest(row["epoch"]).operators[OPERATOR].files
        assert row["state_bytes"] == sum(file.size_bytes for file in files) > 0


def test_a_store_of_an_older_version_has_the_facts_it_knows(tmp_path):
    """The store has no parts, graph and ends of incarnations."""
    _, rows = page_facts(world := three_epochs(tmp_path / "store"))
    assert [row["barrier_ms"] for row in rows] == [None] * 3
    assert epoch_of(world.store, 3)["graph"] == []


def test_epochs_of_a_diverged_branch_are_marked_as_diverged(tmp_path):
    _, rows = page_facts(two_branches(tmp_path / "store"))
    assert {row["epoch"]: row["status"] for row in rows} == {
        1: "published", 2: "abandoned", 3: "abandoned", 4: "published", 5: "publishing",
    }  # fmt: skip


def test_each_incarnation_has_its_base_and_its_end(tmp_path):
    world = three_epochs(tmp_path / "store")
    world.store.log.release(1, "[CKPT_QUERY_FAILED] executor lost")
    world.begin()
    world.begin(restore=1)
    incarnations = {each["incarnation"]: each for each in facts_of(world.store, NOW_MS)["incarnations"]}

    assert incarnations[1]["ended"] == "[CKPT_QUERY_FAILED] executor lost"
    assert "before incarnation 3 began" in incarnations[2]["ended"]
    assert incarnations[3]["ended"] == "runs"
    assert [incarnations[number]["base"] for number in (1, 2, 3)] == [0, 3, 1]


def test_a_driver_whose_lease_is_over_does_not_run(world):
    facts = facts_of(world.store, NOW_MS + 3_600_000)
    assert facts["driver"]["holds_lease"] is False
    assert facts["incarnations"][-1]["ended"] == "without a word: its lease is over"


def test_a_waiting_standby_is_reported(world):
    note = StandbyNote(holder=ELSEWHERE, waits_since_ms=NOW_MS, told_ms=NOW_MS + 5, epoch=3, warm=True)
    Standbys(world.store.location).write("second", note)
    [found] = facts_of(world.store, NOW_MS)["standbys"]
    assert found == {
        "holder": str(ELSEWHERE), "waits_since_ms": NOW_MS, "told_ms": NOW_MS + 5, "epoch": 3, "warm": True,
    }  # fmt: skip


def test_the_details_of_an_epoch_have_its_graph_with_numbers(world):
    detail = epoch_of(world.store, 3)
    assert [(each["id"], each["inputs"]) for each in detail["graph"]] == [
        (each.id, list(each.inputs)) for each in GRAPH
    ]
    assert detail["sources"][0]["lag"] == 7
    assert detail["sinks"][0] | {"name": SINK, "rows": 1, "published": False} == detail["sinks"][0]
    assert detail["operators"][0]["bytes"] > 0


def test_a_restore_is_described_as_on_the_command_line(world):
    back = going_back(world.store, 1)
    assert back["call"] == "job.start(restore=1)"
    assert any("epochs 2 and 3" in line or "2, 3" in line for line in back["lines"])
    assert any("produces these rows again" in line for line in back["sinks"][SINK])


def test_state_of_a_key_at_two_epochs_is_side_by_side(world):
    found = state_at(world.store, OPERATOR, 1, 2, {"k": "b"})
    assert found["rows"] == [{"key": {"k": "b"}, "before": {"v": 2}, "after": {"v": 3}}]


def test_keys_that_differ_come_first_and_a_key_without_state_is_null(world):
    found = state_at(world.store, OPERATOR, 1, 3, {})
    assert [row["before"] == row["after"] for row in found["rows"]] == [False, False, True]
    assert [row["before"] for row in found["rows"]].count(None) == 1


def test_a_missing_epoch_or_operator_is_a_typed_error(world):
    with pytest.raises(EpochNotFound):
        epoch_of(world.store, 99)
    with pytest.raises(EpochNotFound):
        state_at(world.store, "nobody", 1, 2, {})
    with pytest.raises(ConfigInvalid):
        state_at(world.store, OPERATOR, 1, 2, {"v": "3"})


def test_reading_facts_changes_nothing(world, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    facts_of(world.store.reopened(), NOW_MS)
    going_back(world.store.reopened(), 1)
    state_at(world.store.reopened(), OPERATOR, 1, 2, {})
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")} == before


def test_ten_thousand_epochs_need_a_few_seconds_of_processor_time():
    records = [(0, CreatedRecord(job="job", store_id="s")), *((0, brief) for brief in many_briefs(10_000))]
    began_s = time.process_time()
    log_state = folded(LogState(), records)
    rows = list(rows_of(log_state, NOW_MS))
    took_s = time.process_time() - began_s

    assert len(rows) == 10_000
    assert rows[0][COLUMNS.index("decision_ms")] is not None
    assert took_s < 5.0
