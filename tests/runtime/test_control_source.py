import pytest

from spark_ckpt.runtime.control_source import BARRIER, NO_MARKER, OPEN, Control, Marker, marker_number


def test_the_stream_gets_what_was_injected_before_it_was_there():
    control, offered = Control(), []
    control.inject(OPEN, 0)

    control.attach(offered.append)
    control.inject(BARRIER, 1)

    assert offered == [Marker(1, OPEN, 0), Marker(2, BARRIER, 1)]


def test_sparks_offset_names_the_newest_marker_of_a_batch():
    control = Control()
    control.inject(OPEN, 0)
    control.inject(BARRIER, 7)

    assert control.marker(marker_number("1")) == control.newest == Marker(2, BARRIER, 7)


@pytest.mark.parametrize("line", [None, "-1"])
def test_without_a_marker_there_is_none(line):
    assert Control().marker(marker_number(line)) == NO_MARKER
