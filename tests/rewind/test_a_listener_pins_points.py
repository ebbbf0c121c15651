"""A listener in the queries' program pins points at an interval, only after progress, and never fails a query."""

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


class Listening:
    """A listener of a chain of queries. It needs no content of events."""

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


def test_a_point_is_pinned_at_each_interval_with_progress(chain, clock):
    listening = Listening(chain, clock)
    listening.idle()
    assert points_in(chain.pins) == []
    for minutes, points in ((0, 1), (59, 1), (60, 2), (61, 2), (120, 3)):
        clock.ms = NOW_MS + minutes * MINUTE_MS
        listening.progress()
        assert len(points_in(chain.pins)) == points, minutes
    [first, *_] = kept_points(chain.pins)
    assert [each.batch for each in first.point.queries] == [BATCHES - 1] * 3


def test_the_last_progress_before_idle_queries_is_pinned_once_at_the_next_interval(chain, clock):
    listening = Listening(chain, clock)
    listening.progress()
    clock.ms += MINUTE_MS
    listening.progress()
    for _ in range(3):
        clock.ms += HOUR_MS
        listening.idle()
    assert len(points_in(chain.pins)) == 2


def test_programs_that_share_a_folder_pin_one_point_per_interval(chain, clock):
    one, other = Listening(chain, clock), Listening(chain, clock)
    for _ in range(2):
        one.progress()
        other.progress()
    assert len(points_in(chain.pins)) == 1


def test_a_clock_that_is_set_back_ends_no_pins(chain, clock):
    one, other = Listening(chain, clock), Listening(chain, clock)
    one.progress()
    clock.ms -= 24 * HOUR_MS
    for minutes, points in ((0, 2), (59, 2), (60, 3)):
        clock.ms = NOW_MS - 24 * HOUR_MS + minutes * MINUTE_MS
        for each in (one, other):
            each.progress()
        assert len(points_in(chain.pins)) == points, minutes


def test_a_listener_retries_when_another_process_holds_the_lock(chain, clock):
    listening = Listening(chain, clock)
    with held(chain.pins):
        listening.progress()
    assert (points_in(chain.pins), listening.listener.error) == ([], None)
    clock.ms += RETRY_MS_MAX
    listening.idle()
    assert len(points_in(chain.pins)) == 1


def test_an_error_is_logged_and_retried_and_never_raised(chain, clock, caplog):
    metadata = chain.queries[1].folder / "metadata"
    text = metadata.read_text()
    metadata.unlink()
    listening = Listening(chain, clock)
    listening.progress()
    assert "holds no file `metadata`" in listening.listener.error.what
    assert "no point was pinned: [CKPT_CHECKPOINT_FOREIGN]" in caplog.text
    listening.progress()
    assert caplog.text.count("no point was pinned") == 1, "not before a minute is over"
    metadata.write_text(text)
    clock.ms += RETRY_MS_MAX
    listening.idle()
    assert (len(points_in(chain.pins)), listening.listener.error) == (1, None)


def test_the_oldest_point_is_dropped_when_a_new_one_exceeds_the_budget(chain, clock):
    Listening(chain, clock).progress()
    [first] = points_in(chain.pins)
    size = sum(kept_points(chain.pins)[0].files().values())
    listening = Listening(chain, clock, str(size * 3 // 2))
    chain.run(8)
    chain.clean_up(BATCHES + 4)
    clock.ms += HOUR_MS
    listening.progress()
    assert len(points_in(chain.pins)) == 1
    assert points_in(chain.pins) != [first]


@pytest.mark.parametrize(
    "wrong", [{"budget": "much"}, {"every_minutes": 0}, {"checkpoints": "/one"}, {"checkpoints": []}]
)
def test_a_wrong_argument_is_refused_when_the_listener_is_created(tmp_path, wrong):
    asked = {"checkpoints": ["/one"], "into": str(tmp_path), "budget": "1GiB"} | wrong
    with pytest.raises(ConfigInvalid):
        PinListener(**asked)


def test_no_pin_is_due_while_another_is_being_made():
    schedule = PinSchedule(HOUR_MS)
    schedule.moved()
    assert schedule.begins(0)
    schedule.moved()
    assert not schedule.begins(2 * HOUR_MS)
    schedule.pinned(2 * HOUR_MS)
    assert not schedule.begins(3 * HOUR_MS - 1)
    assert schedule.begins(3 * HOUR_MS), "progress during the pin is not in that point"
