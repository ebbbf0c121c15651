"""A reader of a rolled-back table reads the rest of the kept versions once, and no undone version."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_rewind.positions import DeltaPosition
from spark_rewind.shifts import Shift, base_of, moved_text, shift_of


def at(version: int, index: int = -1, *, snapshot: bool = False) -> DeltaPosition:
    return DeltaPosition("t", version, index, snapshot)


@pytest.mark.parametrize(
    ("position", "base"),
    [
        (at(7), 6),  # nothing of version 7 is read
        (at(7, 2), 6),  # three files of version 7 are read: the rest has to follow, in the same order
        (at(7, 2, snapshot=True), 7),  # it is reading the table as of version 7
        (at(0), -1),  # nothing at all is read
    ],
)
def test_the_base_is_the_last_version_that_a_reader_has_read_completely(position, base):
    assert base_of(position) == base


def test_without_a_reader_the_line_itself_is_the_base():
    assert shift_of(4, 9, []) == Shift(4, 4, 10)
    assert shift_of(4, 9, [at(5)]) == Shift(4, 4, 10)
    assert Shift(4, 4, 10).moved(at(5)) == at(11)


def test_versions_that_a_reader_has_not_read_follow_again():
    shift = shift_of(6, 9, [at(7), at(4, 1), at(5)])
    assert shift == Shift(3, 6, 10)
    assert shift.last == 13
    assert [shift.moved(each).version for each in (at(4, 1), at(5), at(7))] == [11, 12, 14]


@pytest.mark.parametrize("position", [at(8), at(7, 0), at(7, 0, snapshot=True), at(3)])
def test_a_reader_of_an_undone_version_has_no_position(position):
    with pytest.raises(ValueError, match="is not between version 3 and the end of version 6"):
        Shift(3, 6, 10).moved(position)


def test_other_fields_of_an_offset_stay_as_delta_wrote_them():
    text = '{"sourceVersion":1,"reservoirId":"t","reservoirVersion":5,"index":2,"isStartingVersion":false}'
    found = json.loads(moved_text(text, Shift(3, 6, 10), at(5, 2)))
    assert found == json.loads(text) | {"reservoirVersion": 12}


@given(st.data())
def test_a_moved_reader_reads_the_same_files_up_to_the_line(data):
    """Versions are lists of files; the log is extended as the commits extend it, and read from both positions."""
    log = data.draw(st.lists(st.lists(st.integers(), max_size=3), min_size=1, max_size=8))
    line = data.draw(st.integers(0, len(log) - 1))
    places = []
    for _ in range(data.draw(st.integers(0, 3))):
        version = data.draw(st.integers(0, line + 1))
        most = len(log[version]) - 1 if version <= line else -1
        places.append(at(version, data.draw(st.integers(-1, most))))
    shift = shift_of(line, len(log) - 1, places)
    longer = [*log, ["restored"], *log[shift.base + 1 : line + 1]]
    assert len(longer) - 1 == shift.last
    for place in places:
        assert after(longer, shift.moved(place)) == after(log[: line + 1], place)


def after(log: list[list[int]], place: DeltaPosition) -> list[int]:
    files = [(version, index, file) for version, there in enumerate(log) for index, file in enumerate(there)]
    return [file for version, index, file in files if (version, index) > (place.version, place.index)]
