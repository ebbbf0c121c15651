"""A process killed at any step of a pin or unpin leaves a complete point or none, and the next process continues."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from pin_kit import Chain, points_in
from rewind_kit import NOW_MS, content_of

from spark_rewind.pins import held, unpin
from spark_rewind.point_reports import report_points

STEPS = ("mkdir", "link", "rename", "replace", "unlink", "rmdir", "fsync")
"""Calls that change names in the file system, or make changes durable."""


class KilledAt:
    """Kills its process before the given one of those calls."""

    def __init__(self, step: int) -> None:
        self.left = step

    def put(self) -> None:
        for name in STEPS:
            setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, real):
        def counting(*given, **options):
            if self.left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self.left -= 1
            return real(*given, **options)

        return counting


def killed(step: int, work) -> bool:
    """Run the work in a child process. Returns True if it was killed before its end."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            KilledAt(step).put()
            work()
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def small(tmp_path: Path) -> Chain:
    return Chain(tmp_path, batches=2, queries=1)


def cleared(chain: Chain) -> None:
    """Remove the remains, so that the next kill is one step later."""
    with held(chain.pins):
        pass


def test_a_pin_killed_at_any_step_is_complete_or_absent_and_drops_no_other_point(tmp_path):
    chain = small(tmp_path)
    old = chain.pin().kept.folder
    seen, step = set(), 0
    while killed(step, lambda: chain.pin("new", budget_bytes=1_000_000, now_ms=NOW_MS + 1)):
        found = [each for each in points_in(chain.pins) if not each.startswith(".")]
        assert old.name in found
        report = report_points(chain.pins).points
        assert [each.gone for each in report] == [[]] * len(report)
        seen.add(len(report))
        if len(report) == 2:
            unpin(chain.pins, "new")
        cleared(chain)
        step += 1
    assert seen == {1, 2}
    assert step > 20
    assert [each.name for each in report_points(chain.pins).points] == [None, "new"]
    chain.pin(now_ms=NOW_MS + 2)
    assert not any(each.startswith(".") for each in points_in(chain.pins))


def test_an_eviction_killed_at_any_step_keeps_the_new_point_and_is_finished_by_the_next(tmp_path):
    chain = small(tmp_path)
    chain.pin()
    budget = report_points(chain.pins).held_bytes + 500  # not enough for the logs of a second one
    step, seen = 0, set()
    while killed(step, lambda: chain.pin("new", budget_bytes=budget, now_ms=NOW_MS + 1)):
        report = report_points(chain.pins).points
        assert [each.gone for each in report] == [[]] * len(report)
        seen.add(tuple(each.name for each in report))
        if "new" in [each.name for each in report]:
            unpin(chain.pins, "new")
        if None not in [each.name for each in report_points(chain.pins).points]:
            chain.pin()
        cleared(chain)
        step += 1
    assert seen == {(None,), (None, "new"), ("new",)}
    assert [each.name for each in report_points(chain.pins).points] == ["new"]


def test_an_unpin_killed_at_any_step_leaves_the_point_or_none(tmp_path):
    chain = small(tmp_path)
    other = chain.pin("other").kept.folder
    whole = content_of(other)
    step, seen = 0, set()
    while True:
        if "gone" not in {each.name for each in report_points(chain.pins).points}:
            chain.pin("gone", now_ms=NOW_MS + 1)
        if not killed(step, lambda: unpin(chain.pins, "gone")):
            break
        report = {each.name: each.gone for each in report_points(chain.pins).points}
        assert report["other"] == []
        assert report.get("gone", []) == []
        seen.add("gone" in report)
        step += 1
    assert seen == {True, False}
    assert content_of(other) == whole


def test_a_pin_that_appears_before_it_is_complete_is_caught(tmp_path, monkeypatch):
    """Planted bug: the point is made under its final name."""
    from spark_rewind import pinning

    real = pinning.prepare

    def prepared(request, folder, point, points):
        return real(request, folder.with_name(point.id), point, points)

    monkeypatch.setattr(pinning, "prepare", prepared)
    chain = small(tmp_path)
    (chain.pins / "points").mkdir(parents=True)
    torn = 0
    for step in range(4, 24, 4):
        assert killed(step, lambda: chain.pin("new"))
        torn += any(each.gone for each in report_points(chain.pins).points)
    assert torn
    with pytest.raises(FileNotFoundError):
        chain.pin("another")
