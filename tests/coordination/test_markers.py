"""An epoch ends with the first batch that holds the barrier of the open epoch, and with no other."""

import pytest

from spark_ckpt.coordination.markers import BARRIER, NO_MARKER, OPEN, PREFETCHED, ControlMarkers


@pytest.fixture
def markers():
    """OPEN is marker 1, the barrier of epoch 7 marker 2, that of epoch 8 marker 3."""
    made = ControlMarkers()
    made.offer(OPEN, 0)
    made.offer(BARRIER, 7)
    made.offer(BARRIER, 8)
    return made


def test_the_batch_in_which_the_open_epochs_barrier_first_appears_ends_it(markers):
    assert markers.ended_by(2, open_epoch=7) == 7


def test_a_batch_after_it_ends_nothing_though_the_barrier_is_still_the_newest_marker(markers):
    markers.ended_by(2, open_epoch=7)
    assert markers.ended_by(2, open_epoch=7) is None


def test_of_several_markers_in_one_batch_the_newest_counts(markers):
    assert markers.ended_by(3, open_epoch=8) == 8


@pytest.mark.parametrize("open_epoch", [None, 8])
def test_the_barrier_of_an_epoch_that_is_not_open_ends_nothing(markers, open_epoch):
    assert markers.ended_by(2, open_epoch) is None


@pytest.mark.parametrize("count", [0, 1])
def test_without_a_barrier_no_epoch_ends(markers, count):
    assert markers.ended_by(count, open_epoch=7) is None


def test_kinds_differ_from_each_other_and_from_that_of_data_rows():
    assert len({OPEN, BARRIER, PREFETCHED, NO_MARKER.kind, 0}) == 4


def test_marker_zero_is_older_than_the_first_one_and_has_no_epoch():
    first = ControlMarkers().offer(OPEN, 0)

    assert NO_MARKER.number < first.number == 1
    assert NO_MARKER.epoch == 0
