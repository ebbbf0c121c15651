"""Points for tests: a chain of queries that is pinned and later deletes the pinned batches."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

from rewind_kit import NOW_MS, WrittenQuery, WrittenTable, began

from spark_rewind.pinning import PinRequest, Taken, take_pin
from spark_rewind.plan import RewindPlan
from spark_rewind.planning import RewindRequest, plan_rewind

BATCHES = 8
SMALL = 100


class Chain:
    """Queries first -> middle -> last, or some of them, each with a state; every batch is a version of its table."""

    def __init__(self, folder: Path, batches: int = BATCHES, queries: int = 3) -> None:
        self.folder = folder
        self.pins = folder / "pins"
        self.queries = [WrittenQuery(folder / "checkpoints" / name) for name in ("first", "middle", "last")[:queries]]
        self.tables = [WrittenTable(folder / "lake" / name) for name in ("bronze", "silver", "gold")[:queries]]
        self.run(batches)

    def run(self, batches: int) -> None:
        """Run more batches of each query."""
        for _ in range(batches):
            before: object = {"logOffset": self.queries[0].batches}
            for query, table in zip(self.queries, self.tables, strict=True):
                number = query.batch(before, state=True)
                state(query, number).write_bytes(f"changes of {number}".encode() * SMALL)
                table.version((query.query, number), at_ms=began(number))
                before = table.at(number + 1)

    def clean_up(self, upto: int) -> None:
        """Delete batches before `upto` from logs and state, as Spark's clean-up does: a snapshot replaces them."""
        for query in self.queries:
            (state(query, upto).with_suffix(".snapshot")).write_bytes(b"whole")
            for number in range(upto):
                (query.folder / "offsets" / str(number)).unlink(missing_ok=True)
                (query.folder / "commits" / str(number)).unlink(missing_ok=True)
                state(query, number).unlink(missing_ok=True)

    @property
    def folders(self) -> list[str]:
        return [str(each.folder) for each in self.queries]

    def pin(self, name: str | None = None, budget_bytes: int | None = None, now_ms: int = NOW_MS) -> Taken:
        plan = RewindRequest(self.folders, "", [str(self.folder / "lake")])
        return take_pin(PinRequest(plan, self.pins, name, budget_bytes), now_ms)

    def plan(self, to: str, *, pins: bool = True) -> RewindPlan:
        return plan_rewind(
            RewindRequest(self.folders, to, [str(self.folder / "lake")], pins=self.pins if pins else None), NOW_MS
        )


def state(query: WrittenQuery, batch: int) -> Path:
    return query.folder / "state" / "0" / "0" / f"{batch + 1}.delta"


def batches_of(taken: Taken) -> list[int]:
    assert taken.kept.point is not None
    return [each.batch for each in taken.kept.point.queries]


def points_in(pins: Path) -> list[str]:
    """Names of all entries of the folder, with hidden ones."""
    return sorted(each.name for each in (pins / "points").iterdir()) if (pins / "points").is_dir() else []


def lines_of(plan: RewindPlan) -> Sequence[int | None]:
    return [each.batch for each in plan.queries]


def redone(query: WrittenQuery, batch: int) -> None:
    """Roll the query back before a batch in the same folder: its later batches are deleted."""
    for number in range(batch, query.batches):
        (query.folder / "offsets" / str(number)).unlink()
        (query.folder / "commits" / str(number)).unlink()
    text = json.loads((query.folder / "metadata").read_text())
    assert text["id"] == query.query
    query.batches = batch


def replaced(query: WrittenQuery) -> None:
    """Replace a checkpoint's folder by a copy, as a roll back does."""
    copy = query.folder.with_name(f"{query.folder.name}-copy")
    shutil.copytree(query.folder, copy)
    query.folder.rename(query.folder.with_name(f"{query.folder.name}-old"))
    copy.rename(query.folder)
