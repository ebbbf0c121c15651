"""Each bug planted in `rewind apply` is found by the queries that run afterwards, or before the decision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rewind_kit import planned

from integration_tests.campaign.rewinds import Broken, compare, settings_for, startable, world
from integration_tests.rewind.small_lake import SmallLake, checkpoints, history
from integration_tests.rewind.small_spark import SourceChanged, StateMissing
from spark_ckpt import failpoints
from spark_ckpt.errors import CheckpointDamaged
from spark_ckpt.failpoints import FailpointHit
from spark_ckpt.spark_internals.state_selection import Counting
from spark_rewind import carrying, checkpoint_copy, drafting, shifts, table_commits
from spark_rewind.applying import apply
from spark_rewind.durable import link_or_copy
from spark_rewind.positions import DeltaPosition
from spark_rewind.reading import names
from spark_rewind.shifts import Shift

SEEDS = range(40)
"""Histories that are tried until one shows the bug; without a bug all of them pass."""


def carried_out(folder: Path, seed: int) -> None:
    lake, good = history(folder / "lake", seed)
    plan = planned(checkpoints(lake), f"ingest@{good}", [lake.root])
    apply(plan, settings_for(plan))
    fixed = SmallLake(lake.root)
    fixed.settle()
    compare(fixed.held(), fixed.wanted())


def without_transactions(now, then, writers, stamp):
    yield from (each for each in restoring(now, then, writers, stamp) if "txn" not in each)


restoring = table_commits.restoring


def without_versions_in_flight(line: int, newest: int, positions) -> Shift:
    return Shift(line, line, newest + 1)


def clamped(self: Shift, position: DeltaPosition) -> DeltaPosition:
    return replace(position, version=max(position.version, self.line + 1) + self.first - self.base)


def unmoved(text: str, shift: Shift, position: DeltaPosition) -> str:
    return text


def one_too_far(text: str, shift: Shift, position: DeltaPosition) -> str:
    return moved_text(text, replace(shift, first=shift.first + 1), position)


moved_text = shifts.moved_text


def other_order(*given):
    return [reversed_adds(text) for text in commits(*given)]


commits = table_commits.commits


def reversed_adds(text: str) -> str:
    lines = text.splitlines()
    adds = [each for each in lines if each.startswith('{"add"')]
    return "".join(f"{each}\n" for each in [*(each for each in lines if each not in adds), *reversed(adds)])


PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "txn is not taken back": lambda patch: patch.setattr(table_commits, "restoring", without_transactions),
    "versions in flight are lost": lambda patch: (
        patch.setattr(drafting, "shift_of", without_versions_in_flight),
        patch.setattr(Shift, "moved", clamped),
    )[0],
    "readers stay where they stood": lambda patch: patch.setattr(drafting, "moved_text", unmoved),
    "readers go on one version too far": lambda patch: patch.setattr(drafting, "moved_text", one_too_far),
    "files of a version follow in another order": lambda patch: patch.setattr(drafting, "commits", other_order),
    "the state is not copied": lambda patch: (
        patch.setattr(checkpoint_copy, "copy_state", lambda *given, **more: None),
        patch.setattr(checkpoint_copy, "state_differences", lambda *given: []),
    )[0],
}


@pytest.mark.parametrize("bug", PLANTED)
def test_a_bug_shows_in_the_tables_or_in_the_queries(tmp_path, monkeypatch, bug):
    PLANTED[bug](monkeypatch)
    for seed in SEEDS:
        try:
            carried_out(tmp_path / str(seed), seed)
        except (Broken, SourceChanged, StateMissing, CheckpointDamaged):
            return
    pytest.fail(f"{bug}: no history found it")


def one_version_less(self, newest: int, *rest, **more: bool) -> None:
    counting(self, newest - 1, *rest, **more)


counting = Counting.__init__


def uncut(source: Path, target: Path, newest: int) -> None:
    for name in names(source):
        link_or_copy(source / name, target / name)


@pytest.mark.parametrize(
    ("place", "name", "bug", "message"),
    [
        (Counting, "__init__", one_version_less, "no state of version"),
        (checkpoint_copy, "copy_file_log", uncut, "other files than it had read"),
    ],
)
def test_an_incomplete_copy_is_found_before_the_decision(tmp_path, monkeypatch, place, name, bug, message):
    lake, good = history(tmp_path / "lake", 1)
    before = world(lake)
    plan = planned(checkpoints(lake), f"ingest@{good}", [lake.root])
    monkeypatch.setattr(place, name, bug)
    with pytest.raises(CheckpointDamaged, match=message):
        apply(plan, settings_for(plan))
    assert sorted(startable(lake)) == sorted(path.name for path in checkpoints(lake))
    assert world(lake) == before


@pytest.mark.parametrize("point", ["REWIND_DECIDED", "REWIND_TABLE_COMMITTED", "REWIND_SWAPPED", "REWIND_KEPT"])
@pytest.mark.parametrize("fenced", [True, False])
def test_only_fences_keep_a_query_from_starting_on_a_partial_rewind(tmp_path, monkeypatch, point, fenced):
    """After a crash past the decision no query may start, and the fences ensure it."""
    lake, good = history(tmp_path / "lake", 3)
    plan = planned(checkpoints(lake), f"ingest@{good}", [lake.root])
    if not fenced:
        monkeypatch.setattr(carrying, "put_fences", lambda paths, identity: None)
    with failpoints.armed(f"{point}:raise"), pytest.raises(FailpointHit):
        apply(plan, settings_for(plan))
    assert bool(startable(lake)) != fenced
