"""The decision table of exactly-once output: publish, done, or refuse. Checked against a model of a lane's
history.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from spark_ckpt_kafka.marker import MarkerDecision, TopicMarker, Wanted, decide, decode, lane_is_new

from spark_ckpt.errors import Fenced, PublishConflict


def _marker(epoch: int, previous: int = 0, incarnation: int = 1, lanes: int = 1, before: int = 1) -> TopicMarker:
    return TopicMarker(epoch, previous, incarnation, rows=5, lanes=lanes, lanes_before=before)


def _wanted(epoch: int, previous: int, lane: int = 0, incarnation: int = 1) -> Wanted:
    return Wanted("store.out.0", lane, epoch, previous, incarnation)


def test_a_marker_survives_its_encoding() -> None:
    marker = _marker(42, 41, 3, 4, 2)

    assert decode(42, marker.encode(), "g") == marker
    assert decode(42, marker.encode() + "\0", "g") == marker, "librdkafka appends a NUL"
    assert len(_marker(2**62, 2**62, 2**40, 64, 64).encode()) < 4096


@pytest.mark.parametrize(
    ("offset", "metadata"),
    [
        (7, ""),
        (7, "{}"),
        (7, "[]"),
        (7, "null"),
        (8, _marker(7).encode()),
        (7, _marker(7).encode().replace('"v":1', '"v":2')),
        (7, _marker(7).encode().replace('"rows"', '"rowz"')),
    ],
)
def test_metadata_of_other_writers_is_not_a_marker(offset: int, metadata: str) -> None:
    with pytest.raises(PublishConflict, match="was not written by this sink"):
        decode(offset, metadata, "g")


@given(st.lists(st.integers(1, 3), min_size=1, max_size=8), st.data())
def test_publishing_any_epoch_of_a_history_at_any_time_repeats_nothing(gaps: list[int], data: st.DataObject) -> None:
    """Epochs grow with gaps; for any last published epoch, a request for an older one or the same is done."""
    epochs = [sum(gaps[: n + 1]) for n in range(len(gaps))]
    at = data.draw(st.integers(0, len(epochs)), label="epochs published")
    marker = _marker(epochs[at - 1]) if at else None
    asked = data.draw(st.integers(0, len(epochs) - 1), label="epoch asked for")
    wanted = _wanted(epochs[asked], epochs[asked - 1] if asked else 0)

    if asked < at:
        assert decide(marker, wanted) is MarkerDecision.DONE
    elif asked == at:
        assert decide(marker, wanted) is MarkerDecision.PUBLISH
    else:
        with pytest.raises(PublishConflict):
            decide(marker, wanted)


def test_an_older_incarnation_is_fenced_unless_its_epoch_is_there() -> None:
    newer = _marker(5, incarnation=3)

    assert decide(newer, _wanted(5, 4, incarnation=2)) is MarkerDecision.DONE
    with pytest.raises(Fenced, match="incarnation 3"):
        decide(newer, _wanted(6, 5, incarnation=2))


def test_a_sink_that_published_nothing_needs_no_marker_but_one_that_did_does() -> None:
    assert decide(None, _wanted(9, 0)) is MarkerDecision.PUBLISH
    with pytest.raises(PublishConflict, match="there is no marker"):
        decide(None, _wanted(9, 8))


@pytest.mark.parametrize(("found", "publishes"), [(4, False), (5, True), (6, True), (7, True)])
def test_diverged_epochs_may_be_published_or_not(found: int, publishes: bool) -> None:
    """5 is acknowledged, 6 and 7 were committed and dropped, 8 is next; 4 would mean that 5 was lost."""
    wanted = Wanted("g", 0, 8, 5, 1, dropped=(6, 7))

    if publishes:
        assert decide(_marker(found), wanted) is MarkerDecision.PUBLISH
    else:
        with pytest.raises(PublishConflict):
            decide(_marker(found), wanted)


def test_a_dropped_epoch_does_not_prove_a_later_lost_one() -> None:
    with pytest.raises(PublishConflict):
        decide(_marker(6), Wanted("g", 0, 9, 8, 1, dropped=(6, 7)))


def test_a_marker_above_every_committed_epoch_is_a_conflict_unless_a_newer_driver_wrote_it() -> None:
    wanted = Wanted("g", 0, 5, 4, 1, newest=6)

    assert decide(_marker(6), wanted) is MarkerDecision.DONE
    with pytest.raises(PublishConflict, match="none above 6"):
        decide(_marker(7), wanted)
    with pytest.raises(Fenced):
        decide(_marker(7, incarnation=2), wanted)


def test_an_epoch_published_for_a_lost_commit_is_not_taken_for_this_one() -> None:
    """The log loses its newest epoch after the publish and uses its number again, for other rows."""
    found = replace(_marker(5), decision="a" * 32)

    assert decide(found, replace(_wanted(5, 4), decision="a" * 32)) is MarkerDecision.DONE
    assert decide(_marker(5), replace(_wanted(5, 4), decision="b" * 32)) is MarkerDecision.DONE, (
        "declared by an operator"
    )
    with pytest.raises(PublishConflict, match="another commit of that number"):
        decide(found, replace(_wanted(5, 4), decision="b" * 32))


def test_only_lanes_beyond_the_first_can_be_new() -> None:
    assert decide(None, _wanted(9, 8, lane=1)) is MarkerDecision.ASK_FIRST_LANE
    assert decide(_marker(3), _wanted(9, 8, lane=2)) is MarkerDecision.ASK_FIRST_LANE


@pytest.mark.parametrize(
    ("first", "new"),
    [
        (None, False),
        (_marker(8, lanes=1), True),
        (_marker(8, lanes=2), False),
        (_marker(9, lanes=2, before=1), True),
        (_marker(9, lanes=2, before=2), False),
        (_marker(7, lanes=1), False),
        (_marker(10, lanes=1, before=1), False),
    ],
)
def test_a_lane_is_new_if_the_epoch_before_had_fewer(first: TopicMarker | None, new: bool) -> None:
    assert lane_is_new(first, _wanted(9, 8, lane=1)) is new


@pytest.mark.parametrize(
    ("first", "new"),
    [
        (_marker(9, lanes=4, before=2), True),
        (_marker(9, lanes=2, before=4), True),
        (_marker(9, lanes=4, before=4), False),
        (_marker(8, lanes=2, before=4), True),
        (_marker(8, lanes=4, before=2), False),
    ],
)
def test_a_lane_without_its_first_epoch_after_a_crash_and_a_restore_is_new(first: TopicMarker, new: bool) -> None:
    """8 is acknowledged; 9 was published by lane 0 only and then dropped; 10 is next."""
    wanted = replace(_wanted(10, 8, lane=3), dropped=(9,))
    assert decide(None, wanted) is MarkerDecision.ASK_FIRST_LANE
    assert lane_is_new(first, wanted) is new


@pytest.mark.parametrize(("found", "publishes"), [(None, True), (3, True), (7, True), (8, False)])
def test_a_replaced_topic_may_have_any_earlier_marker(found: int | None, publishes: bool) -> None:
    """It replaced another topic after epoch 7; 9 is its first. 8 was committed for it, but not acknowledged: a contradiction."""
    wanted = Wanted("g", 1, 9, 0, 1, begun_after=7)

    if publishes:
        assert decide(None if found is None else _marker(found), wanted) is MarkerDecision.PUBLISH
    else:
        assert decide(_marker(8), wanted) is MarkerDecision.ASK_FIRST_LANE
        with pytest.raises(PublishConflict):
            decide(_marker(8), replace(wanted, lane=0))
