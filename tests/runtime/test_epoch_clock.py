"""An epoch's manifest has the times of its parts; a part that ends too late for it is in the next manifest."""

from __future__ import annotations

from spark_ckpt.driver.epoch_clock import EpochClock
from spark_ckpt.epochs.records import PartTime


def test_the_barrier_ends_where_its_batch_begins_and_the_snapshot_is_that_batch():
    clock = EpochClock()
    clock.offered(1, 10.0)
    clock.batch_ended(400)

    timings_ms = clock.timings(1, 10.5, {"in": 7})

    assert (timings_ms.barrier_ms, timings_ms.snapshot_ms, timings_ms.lag_rows) == (100, 400, {"in": 7})


def test_a_batch_that_began_before_its_barrier_was_offered_waited_for_nothing():
    """Spark reads the control stream while it plans the batch, so a barrier may be offered during the planning."""
    clock = EpochClock()
    clock.offered(1, 10.0)
    clock.batch_ended(900)

    timings_ms = clock.timings(1, 10.5, {})

    assert (timings_ms.barrier_ms, timings_ms.snapshot_ms) == (0, 500)


def test_an_epoch_without_a_barrier_has_no_parts():
    """The first one pins the sources."""
    timings_ms = EpochClock().timings(1, 10.0, {})
    assert (timings_ms.barrier_ms, timings_ms.snapshot_ms) == (None, None)


def test_a_part_that_ends_too_late_is_reported_by_the_next_epoch_once():
    clock = EpochClock()
    clock.offered(1, 10.0)
    assert clock.stored(4, 20.0, 20.02) == 20
    clock.publishing("out", 4, 20.02)
    assert clock.published("out", 4, 20.05) == 30
    expected = (
        PartTime(epoch=4, part="decision", duration_ms=20),
        PartTime(epoch=4, part="publish", sink="out", duration_ms=30),
    )

    assert clock.timings(1, 25.0, {}).earlier == expected
    clock.stored(5, 25.0, 25.0)
    assert clock.timings(1, 26.0, {}).earlier == (PartTime(epoch=5, part="decision", duration_ms=0),)


def test_a_publish_lasts_from_the_first_attempt_to_the_last():
    clock = EpochClock()
    clock.publishing("out", 4, 20.0)
    clock.publishing("out", 4, 22.0)
    assert clock.published("out", 4, 23.0) == 3000


def test_a_sink_that_never_answers_fills_no_memory():
    clock = EpochClock()
    for epoch in range(1000):
        clock.publishing("out", epoch, 0.0)
        clock.published("out", epoch, 1.0)
    assert len(clock.timings(1, 2.0, {}).earlier) <= 64
