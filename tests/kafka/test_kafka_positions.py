"""Positions: Spark's offset JSON to cursors and back, starts, ends, holes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_ckpt_kafka import positions
from spark_ckpt_kafka.source import KafkaSource

from spark_ckpt.errors import ConfigInvalid, RowsLost, SourceInvalid, StartOutOfRange

Places = st.dictionaries(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 11)), st.integers(0, 2**62))


@given(Places)
def test_a_cursor_is_json_and_reads_back_as_the_same_positions(found: dict[tuple[str, int], int]) -> None:
    text = json.dumps(positions.to_cursor(found))

    assert positions.parse_offset_line(text) == found


@given(Places)
def test_one_position_has_one_spelling(found: dict[tuple[str, int], int]) -> None:
    backwards = dict(reversed(list(found.items())))

    assert json.dumps(positions.to_cursor(found)) == json.dumps(positions.to_cursor(backwards))


@given(Places, Places)
def test_reached_means_that_no_partition_lags(
    cursor: dict[tuple[str, int], int], end: dict[tuple[str, int], int]
) -> None:
    lagging = [place for place, offset in end.items() if cursor.get(place, 0) < offset]

    assert positions.reached(positions.to_cursor(cursor), positions.to_cursor(end)) == (not lagging)


@pytest.mark.parametrize(
    "line", ["", "7", "[1]", '{"a": 1}', '{"a": {}}', '{"a": {"x": 1}}', '{"a": {"0": "1"}}', '{"a": {"0": true}}']
)
def test_what_is_not_a_kafka_position_is_refused(line: str) -> None:
    with pytest.raises(SourceInvalid, match="not a Kafka position"):
        positions.parse_offset_line(line)


def test_partitions_that_the_offset_line_leaves_out_keep_their_place() -> None:
    source = KafkaSource("b:9092", "a")

    assert source.cursor('{"a":{"1":9}}', {"a": {"0": 3, "1": 4}}) == {"a": {"0": 3, "1": 9}}


def test_start_is_explicit_for_every_partition() -> None:
    partitions, begin, end = {"a": [0, 1]}, {("a", 0): 5, ("a", 1): 6}, {("a", 0): 50, ("a", 1): 60}

    def start(where: Any) -> dict[tuple[str, int], int]:
        return positions.starting(where, partitions, begin, end)

    assert start("earliest") == begin
    assert start("latest") == end
    assert start({"a": {"0": -1}}) == {("a", 0): 50, ("a", 1): 6}
    assert start({"a": {0: 7, 1: -2}}) == {("a", 0): 7, ("a", 1): 6}
    with pytest.raises(ConfigInvalid, match="does not fit the topic"):
        start({"a": {"0": "7"}})


@pytest.mark.parametrize(
    ("offset", "says", "behind"),
    [(3, "offsets 3 to 9", 10), (101, "ends at offset 100", 100)],
)
def test_a_hole_is_named_and_can_be_skipped(offset: int, says: str, behind: int) -> None:
    beginnings, ends = {("a", 0): 10}, {("a", 0): 100}
    with pytest.raises(RowsLost, match=says):
        positions.check_holes({("a", 0): offset}, beginnings, ends)
    past = positions.past_lost({("a", 0): offset}, beginnings, ends)
    assert past == {("a", 0): behind}
    positions.check_holes(past, beginnings, ends)


def test_a_partition_that_was_added_to_a_topic_and_lost_records_unread_is_named() -> None:
    """An added topic is none: a pattern, or a new program, may name one whose old records retention has removed long ago."""
    beginnings, ends = {("a", 0): 0, ("a", 1): 2, ("b", 0): 7}, {("a", 0): 9, ("a", 1): 5, ("b", 0): 9}
    with pytest.raises(RowsLost, match="offsets 0 to 1 of topic 'a', partition 1"):
        positions.check_holes({("a", 0): 5}, beginnings, ends)
    assert positions.past_lost({("a", 0): 5}, beginnings, ends) == {("a", 0): 5, ("a", 1): 2}
    positions.check_holes({("a", 0): 5}, beginnings | {("a", 1): 0}, ends)


@pytest.mark.parametrize(("offset", "stable"), [(3, True), (4, False)])
def test_a_position_inside_an_open_transaction_is_named(offset: int, stable: bool) -> None:
    ends = {("a", 0): 3, ("a", 1): 9}
    if stable:
        positions.check_stable({("a", 0): offset}, ends)
        return
    with pytest.raises(
        SourceInvalid, match="partition 0 from offset 4 on, but a transaction is open there since offset 3"
    ):
        positions.check_stable({("a", 0): offset}, ends)


def test_a_deleted_partition_is_named() -> None:
    with pytest.raises(SourceInvalid, match="partition 1 of topic 'a' is gone"):
        positions.check_holes({("a", 1): 5}, {("a", 0): 0}, {("a", 0): 9})


@pytest.mark.parametrize("offset", [10, 100])
def test_the_first_and_the_last_offset_are_no_hole(offset: int) -> None:
    positions.check_holes({("a", 0): offset}, {("a", 0): 10}, {("a", 0): 100})


@pytest.mark.parametrize("offset", [10, 55, 100])
def test_a_cursor_without_a_loss_stays_as_it_is(offset: int) -> None:
    """A partition that was added and lost nothing is not in it: a cursor that differs would mean a loss."""
    wanted = {("a", 0): offset}
    assert positions.past_lost(wanted, {("a", 0): 10, ("a", 1): 0}, {("a", 0): 100, ("a", 1): 9}) == wanted


@pytest.mark.parametrize(("offset", "fits"), [(4, False), (5, True), (50, True), (51, False)])
def test_a_configured_start_outside_of_the_topic_is_named_with_the_topics_range(offset: int, fits: bool) -> None:
    begin, end = {("a", 0): 5, ("a", 1): 0}, {("a", 0): 50, ("a", 1): 0}
    chosen = {("a", 0): offset, ("a", 1): 0}
    if fits:
        positions.check_start(chosen, begin, end)
        return
    with pytest.raises(StartOutOfRange) as caught:
        positions.check_start(chosen, begin, end)
    expected = {"topic": "a", "partition": 0, "start": offset, "beginning": 5, "end": 50}
    assert caught.value.context == expected
