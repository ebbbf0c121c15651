import json

from spark_ckpt.runtime.control_source import BARRIER, NO_MARKER, OPEN, ControlFile, ControlReader, Marker


def test_nothing_is_offered_before_the_first_marker(tmp_path):
    control = ControlFile(tmp_path / "control.json")

    reader = ControlReader(str(control.path))

    assert reader.latestOffset(reader.initialOffset(), None) == reader.initialOffset()


def test_a_marker_is_offered_once(tmp_path):
    control = ControlFile(tmp_path / "control.json")
    control.inject(BARRIER, 7)
    reader = ControlReader(str(control.path))

    first = reader.latestOffset(reader.initialOffset(), None)

    assert [list(reader.read(each)) for each in reader.partitions(reader.initialOffset(), first)] == [[(BARRIER, 7)]]
    assert reader.latestOffset(first, None) == first
    assert reader.partitions(first, first) == []


def test_a_batch_never_holds_two_markers_however_late_it_is_planned(tmp_path):
    control = ControlFile(tmp_path / "control.json")
    control.inject(OPEN, 0)
    control.inject(BARRIER, 1)
    control.inject(BARRIER, 2)
    reader = ControlReader(str(control.path))

    end = reader.latestOffset(reader.initialOffset(), None)

    assert [partition.value for partition in reader.partitions(reader.initialOffset(), end)] == [(BARRIER, 2)]


def test_a_marker_survives_sparks_offset_log():
    marker = Marker(3, BARRIER, 41)

    assert Marker.parse(json.dumps(json.loads(marker.json()))) == marker
    assert list(json.loads(NO_MARKER.json())) == ["number", "kind", "epoch"]
