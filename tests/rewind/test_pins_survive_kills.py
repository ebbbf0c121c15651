"""A process that is killed anywhere while it pins or unpins leaves a whole point or none, and the next one goes on."""

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
    """Kills its process before a certain one of those calls."""

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
    """Whether it was killed before it was done; in a process of its own."""
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
    """What was left is cleared, so that a later kill is one step further on."""
    with held(chain.pins):
        pass


def test_a_pin_that_is_killed_anywhere_is_there_or_not_and_drops_nothing_before(tmp_path):
    chain = small(tmp_path)
    old = chain.pin().kept.folder
    seen, step = set(), 0
    while killed(step, lambda: chain.pin("new", budget_bytes=1_000_000, now_ms=NOW_MS + 1)):
        found = [each for each in points_in(chain.pins) if not each.startswith(".")]
        assert old.name in found
        told = report_points(chain.pins).points
        assert [each.gone for each in told] == [[]] * len(told)
        seen.add(len(told))
        if len(told) == 2:
            unpin(chain.pins, "new")
        cleared(chain)
        step += 1
    assert seen == {1, 2}
    assert step > 20
    assert [each.name for each in report_points(chain.pins).points] == [None, "new"]
    chain.pin(now_ms=NOW_MS + 2)
    assert not any(each.startswith(".") for each in points_in(chain.pins))


def test_an_eviction_that_is_killed_anywhere_leaves_the_new_point_and_is_finished_by_the_next(tmp_path):
    chain = small(tmp_path)
    chain.pin()
    budget = report_points(chain.pins).held_bytes + 500  # not enough for the logs of a second one
    step, seen = 0, set()
    while killed(step, lambda: chain.pin("new", budget_bytes=budget, now_ms=NOW_MS + 1)):
        told = report_points(chain.pins).points
        assert [each.gone for each in told] == [[]] * len(told)
        seen.add(tuple(each.name for each in told))
        if "new" in [each.name for each in told]:
            unpin(chain.pins, "new")
        if None not in [each.name for each in report_points(chain.pins).points]:
            chain.pin()
        cleared(chain)
        step += 1
    assert seen == {(None,), (None, "new"), ("new",)}
    assert [each.name for each in report_points(chain.pins).points] == ["new"]


def test_an_unpin_that_is_killed_anywhere_leaves_the_point_or_none(tmp_path):
    chain = small(tmp_path)
    other = chain.pin("other").kept.folder
    whole = content_of(other)
    step, seen = 0, set()
    while True:
        if "gone" not in {each.name for each in report_points(chain.pins).points}:
            chain.pin("gone", now_ms=NOW_MS + 1)
        if not killed(step, lambda: unpin(chain.pins, "gone")):
            break
        told = {each.name: each.gone for each in report_points(chain.pins).points}
        assert told["other"] == []
        assert told.get("gone", []) == []
        seen.add("gone" in told)
        step += 1
    assert seen == {True, False}
    assert content_of(other) == whole


def test_a_pin_that_would_appear_before_it_is_whole_is_caught(tmp_path, monkeypatch):
    """The planted bug: it is made under its own name."""
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
