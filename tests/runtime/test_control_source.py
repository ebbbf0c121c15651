import pytest

from spark_ckpt.coordination.markers import BARRIER, NO_MARKER, OPEN, ControlMarker
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
