import json

import pytest

from spark_ckpt.driver.query.offset_log import read_batch_offsets
from spark_ckpt.errors import EnvironmentUnfit
from spark_ckpt.plan.graph import SourceNode
from spark_ckpt.plan.plan_order import PlanOrder
from spark_ckpt.store.location import Location

ONE = PlanOrder.of(SourceNode("in", None, None))


def write(folder, batch, *lines):
    (folder / "offsets").mkdir(exist_ok=True)
    (folder / "offsets" / str(batch)).write_text("\n".join(lines))
    return Location(str(folder))


def metadata(watermark_ms=0):
    return json.dumps({"batchWatermarkMs": watermark_ms, "batchTimestampMs": 1, "conf": {}})


def test_each_source_has_its_own_line_and_the_control_source_is_the_first(tmp_path):
    location = write(tmp_path, 4, "v1", metadata(17), "1", '{"t":{"0":5}}')

    offsets = read_batch_offsets(location, 4, ONE)

    assert (offsets.sources, offsets.markers, offsets.watermark_ms) == (('{"t":{"0":5}}',), 2, 17)


def test_a_source_that_was_not_read_yet_has_no_position(tmp_path):
    location = write(tmp_path, 0, "v1", metadata(), "0", "-")

    assert read_batch_offsets(location, 0, ONE).sources == (None,)


@pytest.mark.parametrize("line", ["-", "-1"])
def test_before_the_first_marker_there_is_none(tmp_path, line):
    assert read_batch_offsets(write(tmp_path, 0, "v1", metadata(), line, "{}"), 0, ONE).markers == 0


def test_another_format_of_the_offset_log_is_refused(tmp_path):
    location = write(tmp_path, 0, "v2", metadata(), "{}")

    with pytest.raises(EnvironmentUnfit, match="v2"):
        read_batch_offsets(location, 0, ONE)
