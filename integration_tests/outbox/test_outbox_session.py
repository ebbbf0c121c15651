"""A session that has ended is refused by name, and a new one continues."""

from __future__ import annotations

from pathlib import Path

import pytest
from spark_ckpt_delta import DeltaSink

from integration_tests.outbox.outbox_query import Place, expected, run, windows, write_files
from integration_tests.spark import plain_session
from spark_ckpt.errors import ConfigInvalid

pytestmark = pytest.mark.spark
FILES = range(3)


@pytest.mark.parametrize(
    "ran", [pytest.param(False, marks=pytest.mark.long), True], ids=["before its first query", "after a query"]
)
def test_a_session_that_has_ended_is_refused_and_a_new_one_continues(tmp_path: Path, ran: bool) -> None:
    write_files(tmp_path / "in", FILES)
    place = Place(tmp_path)
    sinks = {"gold": DeltaSink(place.table("gold"))}
    for spark in plain_session():
        ended = windows(spark, place.inbox)
        if ran:
            assert run(place.outbox(sinks), ended) is None
        spark.stop()
        with pytest.raises(ConfigInvalid, match="session"):
            place.outbox(sinks).start(ended.writeStream)
    for spark in plain_session():
        assert run(place.outbox(sinks), windows(spark, place.inbox)) is None
    assert place.rows("gold") == expected(FILES)
