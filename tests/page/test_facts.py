"""What the page says is what the store holds; what nobody knows is said as that."""

from __future__ import annotations

import time

import pytest
from page_world import GRAPH, many_briefs, told_world

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
    return told_world(tmp_path / "store")


def told(world):
    facts = facts_of(world.store, NOW_MS)
    return facts, [dict(zip(COLUMNS, row, strict=True)) for row in facts["epochs"]]


def test_every_kept_epoch_is_there_with_what_the_log_says_of_it(world):
    facts, rows = told(world)
    assert (facts["job"], facts["latest"]) == ("job", 3)
    assert [(row["epoch"], row["status"]) for row in rows] == [(1, "published"), (2, "published"), (3, "publishing")]
    assert [row["duration_ms"] for row in rows] == [520] * 3


def test_parts_of_an_epoch_come_from_itself_and_from_the_epochs_behind_it(world):
    _, rows = told(world)
    parts = [tuple(row[f"{part}_ms"] for part in ("barrier", "snapshot", "decision", "publish")) for row in rows]
    assert parts == [(100, 400, 20, 30), (100, 400, 20, 30), (100, 400, None, None)]


def test_the_size_of_the_state_is_the_files_that_the_epoch_names(world):
    _, rows = told(world)
    for row in rows:
        files = world.store.log.manifest(row["epoch"]).operators[OPERATOR].files
        assert row["state_bytes"] == sum(file.size_bytes for file in files) > 0


def test_a_store_of_an_older_version_says_what_it_knows(tmp_path):
    """Without parts, graph and ends of incarnations."""
    _, rows = told(world := three_epochs(tmp_path / "store"))
    assert [row["barrier_ms"] for row in rows] == [None] * 3
    assert epoch_of(world.store, 3)["graph"] == []


def test_epochs_of_a_branch_that_was_left_are_told_as_that(tmp_path):
    _, rows = told(two_branches(tmp_path / "store"))
    assert {row["epoch"]: row["status"] for row in rows} == {
        1: "published", 2: "abandoned", 3: "abandoned", 4: "published", 5: "publishing",
    }  # fmt: skip


def test_each_incarnation_says_where_it_began_and_what_ended_it(tmp_path):
    world = three_epochs(tmp_path / "store")
    world.store.log.release(1, "[CKPT_QUERY_FAILED] executor lost")
    world.begin()
    world.begin(restore=1)
    lives = {each["incarnation"]: each for each in facts_of(world.store, NOW_MS)["incarnations"]}

    assert lives[1]["ended"] == "[CKPT_QUERY_FAILED] executor lost"
    assert "before incarnation 3 began" in lives[2]["ended"]
    assert lives[3]["ended"] == "runs"
    assert [lives[number]["base"] for number in (1, 2, 3)] == [0, 3, 1]


def test_a_driver_whose_lease_is_over_is_not_said_to_run(world):
    facts = facts_of(world.store, NOW_MS + 3_600_000)
    assert facts["driver"]["holds_lease"] is False
    assert facts["incarnations"][-1]["ended"] == "without a word: its lease is over"


def test_a_standby_that_waits_is_told(world):
    note = StandbyNote(holder=ELSEWHERE, waits_since_ms=NOW_MS, told_ms=NOW_MS + 5, epoch=3, warm=True)
    Standbys(world.store.location).write("second", note)
    [found] = facts_of(world.store, NOW_MS)["standbys"]
    assert found == {
        "holder": str(ELSEWHERE), "waits_since_ms": NOW_MS, "told_ms": NOW_MS + 5, "epoch": 3, "warm": True,
    }  # fmt: skip


def test_an_epoch_closely_has_its_graph_with_numbers(world):
    detail = epoch_of(world.store, 3)
    assert [(each["id"], each["inputs"]) for each in detail["graph"]] == [
        (each.id, list(each.inputs)) for each in GRAPH
    ]
    assert detail["sources"][0]["lag"] == 7
    assert detail["sinks"][0] | {"name": SINK, "rows": 1, "published": False} == detail["sinks"][0]
    assert detail["operators"][0]["bytes"] > 0


def test_going_back_is_told_as_the_command_line_tells_it(world):
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


def test_what_is_not_there_is_a_typed_error(world):
    with pytest.raises(EpochNotFound):
        epoch_of(world.store, 99)
    with pytest.raises(EpochNotFound):
        state_at(world.store, "nobody", 1, 2, {})
    with pytest.raises(ConfigInvalid):
        state_at(world.store, OPERATOR, 1, 2, {"v": "3"})


def test_looking_changes_nothing(world, tmp_path):
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")}
    facts_of(world.store.reopened(), NOW_MS)
    going_back(world.store.reopened(), 1)
    state_at(world.store.reopened(), OPERATOR, 1, 2, {})
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "store").rglob("*")} == before


def test_ten_thousand_epochs_are_folded_and_told_in_a_few_seconds_of_processor_time():
    records = [(0, CreatedRecord(job="job", store_id="s")), *((0, brief) for brief in many_briefs(10_000))]
    began_s = time.process_time()
    log_state = folded(LogState(), records)
    rows = list(rows_of(log_state, NOW_MS))
    took_s = time.process_time() - began_s

    assert len(rows) == 10_000
    assert rows[0][COLUMNS.index("decision_ms")] is not None
    assert took_s < 5.0
