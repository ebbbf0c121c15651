"""A companion in the queries' program pins a point every so often: not without progress, not twice, and no query fails for it."""

from __future__ import annotations

import pytest
from pin_kit import BATCHES, Chain, points_in
from rewind_kit import NOW_MS

from spark_ckpt.errors import ConfigInvalid
from spark_rewind.pin_listener import RETRY_MS_MAX, PinListener, PinSchedule
from spark_rewind.pins import held, kept_points

MINUTE_MS = 60_000
HOUR_MS = 60 * MINUTE_MS


class Clock:
    def __init__(self) -> None:
        self.ms = NOW_MS

    def __call__(self) -> int:
        return self.ms


class Companion:
    """A listener beside a chain of queries. Events say nothing that it needs."""

    def __init__(self, chain: Chain, clock: Clock, budget: str = "1GiB") -> None:
        lake = str(chain.folder / "lake")
        self.clock = clock
        self.listener = PinListener(
            chain.folders, str(chain.pins), budget=budget, tables=[lake], every_minutes=60, now_ms=clock
        )

    def progress(self) -> None:
        self.listener.onQueryProgress(None)
        self.listener.wait()

    def idle(self) -> None:
        self.listener.onQueryIdle(None)
        self.listener.wait()


@pytest.fixture
def chain(tmp_path):
    return Chain(tmp_path)


@pytest.fixture
def clock():
    return Clock()


def test_a_point_is_pinned_every_so_many_minutes_of_progress(chain, clock):
    companion = Companion(chain, clock)
    companion.idle()
    assert points_in(chain.pins) == []
    for minutes, points in ((0, 1), (59, 1), (60, 2), (61, 2), (120, 3)):
        clock.ms = NOW_MS + minutes * MINUTE_MS
        companion.progress()
        assert len(points_in(chain.pins)) == points, minutes
    [first, *_] = kept_points(chain.pins)
    assert [each.batch for each in first.point.queries] == [BATCHES - 1] * 3


def test_what_was_done_before_the_queries_fell_idle_is_pinned_when_it_is_due_and_once(chain, clock):
    companion = Companion(chain, clock)
    companion.progress()
    clock.ms += MINUTE_MS
    companion.progress()
    for _ in range(3):
        clock.ms += HOUR_MS
        companion.idle()
    assert len(points_in(chain.pins)) == 2


def test_programs_that_share_a_folder_make_one_point_in_that_time(chain, clock):
    one, other = Companion(chain, clock), Companion(chain, clock)
    for _ in range(2):
        one.progress()
        other.progress()
    assert len(points_in(chain.pins)) == 1


def test_who_finds_another_at_work_tries_again(chain, clock):
    companion = Companion(chain, clock)
    with held(chain.pins):
        companion.progress()
    assert (points_in(chain.pins), companion.listener.error) == ([], None)
    clock.ms += RETRY_MS_MAX
    companion.idle()
    assert len(points_in(chain.pins)) == 1


def test_what_goes_wrong_is_told_and_tried_again_and_raises_nothing(chain, clock, caplog):
    metadata = chain.queries[1].folder / "metadata"
    text = metadata.read_text()
    metadata.unlink()
    companion = Companion(chain, clock)
    companion.progress()
    assert "holds no file `metadata`" in companion.listener.error.what
    assert "no point was pinned: [CKPT_CHECKPOINT_FOREIGN]" in caplog.text
    companion.progress()
    assert len(caplog.records) == 1, "not before a minute is over"
    metadata.write_text(text)
    clock.ms += RETRY_MS_MAX
    companion.idle()
    assert (len(points_in(chain.pins)), companion.listener.error) == (1, None)


def test_the_oldest_point_goes_for_a_new_one_that_would_not_fit(chain, clock):
    Companion(chain, clock).progress()
    [first] = points_in(chain.pins)
    size = sum(kept_points(chain.pins)[0].files().values())
    companion = Companion(chain, clock, str(size * 3 // 2))
    chain.run(8)
    chain.let_go(BATCHES + 4)
    clock.ms += HOUR_MS
    companion.progress()
    assert len(points_in(chain.pins)) == 1
    assert points_in(chain.pins) != [first]


@pytest.mark.parametrize(
    "wrong", [{"budget": "much"}, {"every_minutes": 0}, {"checkpoints": "/one"}, {"checkpoints": []}]
)
def test_a_mistake_is_told_when_the_listener_is_made(tmp_path, wrong):
    asked = {"checkpoints": ["/one"], "into": str(tmp_path), "budget": "1GiB"} | wrong
    with pytest.raises(ConfigInvalid):
        PinListener(**asked)


def test_nothing_is_due_while_a_pin_is_being_made():
    schedule = PinSchedule(HOUR_MS)
    schedule.moved()
    assert schedule.begins(0)
    schedule.moved()
    assert not schedule.begins(2 * HOUR_MS)
    schedule.pinned(2 * HOUR_MS)
    assert not schedule.begins(3 * HOUR_MS - 1)
    assert schedule.begins(3 * HOUR_MS), "what moved meanwhile is not in that point"
