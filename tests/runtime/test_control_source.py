import pytest

from spark_ckpt.coordination.markers import BARRIER, NO_MARKER, OPEN, ControlMarker, ControlMarkers
from spark_ckpt.driver.query.control_source import Control, marker_number


def test_the_stream_gets_what_was_injected_before_it_was_there():
    control, offered = Control(), []
    control.inject(ControlMarker(1, OPEN, 0))

    control.attach(offered.append)
    control.inject(ControlMarker(2, BARRIER, 1))

    assert offered == [ControlMarker(1, OPEN, 0), ControlMarker(2, BARRIER, 1)]
    assert control.newest == ControlMarker(2, BARRIER, 1)


@pytest.mark.parametrize(("line", "count"), [(None, 0), ("-1", 0), ("1", 2)])
def test_sparks_offset_counts_markers_from_minus_one(line, count):
    assert marker_number(line) == count
    assert Control().newest == NO_MARKER


def test_markers_that_a_batch_has_passed_are_forgotten():
    markers = ControlMarkers()
    for epoch in range(1, 1000):
        marker = markers.offer(BARRIER, epoch)
        markers.offer(BARRIER, epoch)  # of an epoch that was aborted: the batch has both
        assert markers.ended_by(marker.number + 1, epoch) == epoch
    assert list(markers.offered) == [markers.newest.number]
    assert markers.are_reached
