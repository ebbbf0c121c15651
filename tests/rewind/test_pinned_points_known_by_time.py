"""If only times bound a connection, a pinned batch is bounded by the time before the gap after it."""

from __future__ import annotations

from pathlib import Path

import pytest
from rewind_kit import NOW_MS, WrittenQuery, WrittenTable, began

from spark_rewind import connections, topics
from spark_rewind.declared import Declared
from spark_rewind.pinning import PinRequest, take_pin
from spark_rewind.plan import RewindPlan
from spark_rewind.planning import RewindRequest, plan_rewind

PINNED, BATCHES, LEFT = 3, 10, 7
TOPIC = {"topics": [{"topic": "orders", "written_by": ["writer"]}]}
EDGE = {"edges": [{"writer": "writer", "reader": "reader", "over": "the feature store"}]}


class Pair:
    """A writer, pinned at one batch, and a reader that reads each batch's output; then the writer deletes old batches."""

    def __init__(self, folder: Path, declared: dict[str, object]) -> None:
        self.folder = folder
        self.declared = declared
        self.writer, self.reader = WrittenQuery(folder / "writer"), WrittenQuery(folder / "reader")
        self.table = WrittenTable(folder / "totals")
        for number in range(BATCHES):
            self.writer.batch({"logOffset": number}, at_ms=began(number))
            self.table.version(at_ms=began(number, 3000))
            self.reader.batch({"orders": {"0": 10 * (number + 1)}}, at_ms=began(number, 6000))
            if number == PINNED:
                take_pin(PinRequest(self.request(""), folder / "pins"), NOW_MS)
        for number in range(LEFT):
            for log in ("offsets", "commits"):
                (self.writer.folder / log / str(number)).unlink()

    def request(self, to: str) -> RewindRequest:
        folders = [str(self.writer.folder), str(self.reader.folder)]
        tables = [str(self.table.root)] if "tables" in self.declared else []
        pins = self.folder / "pins" if to else None
        return RewindRequest(folders, to, tables, Declared.model_validate(self.declared), pins=pins)

    def plan(self) -> RewindPlan:
        return plan_rewind(self.request(f"writer@{PINNED}"), NOW_MS)


def reader_batch(plan: RewindPlan) -> int:
    [batch] = [each.batch for each in plan.queries if each.name == "reader"]
    return BATCHES - 1 if batch is None else batch


@pytest.mark.parametrize("declared", [TOPIC, EDGE], ids=["topic", "declared edge"])
def test_the_reader_of_a_pinned_writer_keeps_nothing_of_the_gap(tmp_path, declared):
    plan = Pair(tmp_path, declared).plan()
    assert [each.point for each in plan.queries if each.name == "writer"] != [None]
    assert reader_batch(plan) <= PINNED


def test_public_records_begin_where_the_first_undone_batch_may_have_begun(tmp_path):
    [public] = Pair(tmp_path, TOPIC).plan().public
    assert public.first <= 10 * (PINNED + 1)


def test_a_table_without_transactions_keeps_no_version_of_the_gap(tmp_path):
    tables = {"tables": [{"path": str(tmp_path / "totals"), "written_by": [{"query": "writer"}]}]}
    pair = Pair(tmp_path, tables)
    [table] = pair.plan().tables
    assert table.version <= PINNED


def test_a_bound_that_looks_past_the_gap_is_caught(tmp_path, monkeypatch):
    def began_next(writer, index):
        following = None if index is None else next((each for each in writer.known if each.number > index), None)
        return following.began_ms if following else None

    monkeypatch.setattr(topics, "next_began_ms", began_next)
    assert reader_batch(Pair(tmp_path, TOPIC).plan()) > PINNED


def test_counts_that_ignore_the_gap_are_caught(tmp_path, monkeypatch):
    def begun_by(writer, at_ms):
        return writer.known[0].number + sum(each.began_ms <= at_ms for each in writer.known)

    monkeypatch.setattr(connections, "begun_by", begun_by)
    assert reader_batch(Pair(tmp_path, EDGE).plan()) > PINNED
