"""Parts of a record's time: with scripted progress they add up to its whole time, and no moment counts twice."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.report.lines import Line
from benchmarks.side_by_side.accounting import (
    UNEXPLAINED,
    Passage,
    Records,
    Span,
    in_turn,
    passage_of,
    seconds_by_part,
    values_of,
)
from benchmarks.side_by_side.campaign import is_for
from benchmarks.side_by_side.parts import answered
from benchmarks.side_by_side.program_records import passages
from benchmarks.side_by_side.trial import Failed
from benchmarks.systems import systems
from benchmarks.systems.telling import listener
from spark_ckpt.events.listener import EpochEvent, ProgressEvent

T = 1_700_000_000.0
"""A point in time; spans are relative to it."""


def stamp(seconds):
    return f"2023-11-14T22:13:{20 + seconds:06.3f}Z"


def batch(ends, began, phases_ms, ours_ms=None):
    """A batch event of spark_ckpt. Phases are in the order of Spark, parts of the action in ours."""
    names = ("latestOffset", "walCommit", "getBatch", "queryPlanning", "addBatch", "commitOffsets", "triggerExecution")
    took_ms = dict(zip(names, phases_ms, strict=True))
    if ours_ms is not None:
        took_ms |= dict(zip(("fetch", "operator", "snapshot", "staging"), ours_ms, strict=True)) | {
            "batch": sum(ours_ms)
        }
    cursor = {str(partition): end for partition, end in ends.items()}
    progress = {"triggerTimestamp": stamp(began), "durationMs": took_ms, "sources": {"records": {"topic": cursor}}}
    return json.dumps({"at": 0, "what": "batch", "progress": progress})


def sparks_own(ends, began, phases_ms):
    progress = json.loads(batch(ends, began, phases_ms))["progress"]
    (cursor,) = progress["sources"].values()
    progress |= {"timestamp": progress.pop("triggerTimestamp"), "sources": [{"endOffset": cursor}]}
    return json.dumps({"at": 0, "what": "batch", "progress": progress})


def decided(epoch, ends, at, took_ms):
    cursors = {"records": {"topic": {str(partition): end for partition, end in ends.items()}}}
    event = {"at": 0, "what": "decided", "epoch": epoch, "ends": cursors}
    return json.dumps(event | {"began_ms": (T + at) * 1000, "decision_ms": took_ms})


def published(epoch, at, took_ms, **parts_ms):
    event = {"at": T + at, "what": "published", "epoch": epoch, "duration_ms": took_ms}
    return json.dumps(event | ({"parts_ms": parts_ms} if parts_ms else {}))


def records(*each):
    """Records of one partition: (offset, created, came), times relative to T."""
    offset, created, came = (np.array(column, float) for column in zip(*each, strict=True))
    return Records(T + created, T + came, np.zeros(len(each), int), offset.astype(int))


def parts_ms_of(some, lines):
    """Parts of each record with a duration above zero, in ms."""
    spent = seconds_by_part(some, passages(lines))
    return [
        {part: round(seconds[at] * 1000) for part, seconds in spent.items() if seconds[at] > 1e-4}
        for at in range(len(some))
    ]


TWO_BATCHES_ONE_EPOCH = (
    batch({0: 10}, 0.0, (10, 20, 5, 65, 400, 30, 550), (100, 200, 0, 50)),
    batch({0: 20}, 0.6, (10, 20, 5, 65, 400, 30, 550), (100, 150, 50, 50)),
    decided(1, {0: 20}, 1.1, 30),
    published(1, 1.3, 160, init=0, verify=10, send=40, commit=60),
)
"""The second batch's action ends at 0.6 + 0.55 - 0.03 - 0.4 + 0.35 = 1.07 s."""


def test_a_record_of_an_earlier_batch_waits_for_the_one_with_the_barrier():
    early, late = parts_ms_of(records((3, -0.4, 1.35), (15, 0.2, 1.35)), TWO_BATCHES_ONE_EPOCH)
    around = {"offsets": 10, "log": 20, "planning": 70, "fetch": 100, "operator": 200, "staging": 50}
    behind = {
        "decision": 30,
        "publish": 50,
        "publish_verify": 10,
        "publish_send": 40,
        "publish_commit": 60,
        "visible": 50,
    }
    assert early == {"wait": 400, **around, "barrier": 600, **behind, UNEXPLAINED: 60}
    assert late == {"wait": 400, **around, "operator": 150, "snapshot": 50, **behind, UNEXPLAINED: 60}


def test_the_parts_of_every_record_are_its_whole_time():
    rng = np.random.default_rng(1)
    created = rng.uniform(-1, 0.6, 1000)
    some = Records(T + created, T + created + rng.uniform(0.5, 3, 1000), np.zeros(1000, int), rng.integers(0, 40, 1000))
    spent = seconds_by_part(some, passages(TWO_BATCHES_ONE_EPOCH))
    assert np.allclose(sum(spent.values()), some.came - some.created)
    assert all(seconds.min() >= 0 for seconds in spent.values())


def test_means_of_parts_are_a_result_line_that_adds_up():
    values = values_of(seconds_by_part(records((3, -0.4, 1.35), (15, 0.2, 1.35)), passages(TWO_BATCHES_ONE_EPOCH)))
    exact = {"rate": 1.0, "duplicates": 0.0, "missing": 0.0, "wrong": 0.0}
    line = Line(measure="parts", values=values | exact)
    assert line.number("mean_ms") == pytest.approx((1750 + 1150) / 2)
    assert line.number("barrier_mean_ms") == pytest.approx(300)


def test_a_record_read_before_its_publish_event_has_no_wait_after_it():
    (seen,) = parts_ms_of(records((15, 0.2, 1.28)), TWO_BATCHES_ONE_EPOCH)
    assert "visible" not in seen
    assert seen["publish_commit"] == 40


def test_a_record_that_comes_while_spark_plans_did_not_wait_for_a_batch():
    (late,) = parts_ms_of(records((15, 0.605, 1.35)), TWO_BATCHES_ONE_EPOCH)
    assert "wait" not in late
    assert late["offsets"] == 5


def test_plain_sparks_output_is_read_while_its_action_runs():
    lines = [sparks_own({0: 10}, 0.0, (10, 20, 5, 65, 400, 30, 550))]
    (seen,) = parts_ms_of(records((3, -0.4, 0.4)), lines)
    assert seen == {"wait": 400, "offsets": 10, "log": 20, "planning": 70, "action": 280, UNEXPLAINED: 20}


def test_a_record_that_nobody_tells_of_is_unexplained_as_a_whole():
    (unknown,) = parts_ms_of(records((99, 0.0, 2.0)), TWO_BATCHES_ONE_EPOCH)
    assert unknown == {UNEXPLAINED: 2000}


def test_an_epoch_that_was_decided_and_not_yet_published_leaves_the_rest_unexplained():
    (open_end,) = parts_ms_of(records((15, 0.2, 2.0)), TWO_BATCHES_ONE_EPOCH[:3])
    assert open_end["decision"] == 30
    assert open_end[UNEXPLAINED] == 20 + 30 + 870, "before the action, before the decision, after it"


@pytest.mark.parametrize(("unanswered", "keeps_up"), [(0, True), (1, True), (2, False), (100, False)])
def test_a_system_that_does_not_keep_up_fails_instead_of_having_a_mean_without_its_slowest(unanswered, keeps_up):
    came = np.ones(100)
    came[:unanswered] = np.inf
    due = Records(np.zeros(100), came, np.zeros(100, int), np.arange(100))
    if keeps_up:
        assert len(answered(due)) == 100 - unanswered
    else:
        with pytest.raises(Failed, match=f"did not keep up: {unanswered} of 100"):
            answered(due)


def test_each_partition_has_its_own_ends():
    two = Records(np.zeros(3), np.ones(3), np.array([0, 1, 1]), np.array([5, 5, 6]))
    found = passage_of(two, [Passage({0: 6, 1: 0}, ()), Passage({0: 6, 1: 6}, ())])
    assert found.tolist() == [0, 1, -1]


def test_overlapping_spans_would_count_a_moment_twice_and_are_found():
    """`in_turn` prevents it: the planted fault is a passage made without it."""
    twice = (Span("wait", T, T + 1), Span("action", T + 0.5, T + 2))
    some = records((0, 0.0, 2.0))
    with pytest.raises(ValueError, match=r"exceed its time by 0\.500 s"):
        seconds_by_part(some, [Passage({0: 1}, twice)])
    assert in_turn(twice) == (Span("wait", T, T + 1), Span("action", T + 1, T + 2))
    assert seconds_by_part(some, [Passage({0: 1}, in_turn(twice))])[UNEXPLAINED].tolist() == [0]


def test_parts_are_measured_of_systems_that_report_them():
    measured = {name for name, system in systems().items() if is_for(system, "parts")}
    assert measured == {"spark_ckpt-builtin", "spark_ckpt-every-batch", "pyspark-native"}
    assert is_for(systems()["flink_sql"], "latency")


def test_passages_are_computed_from_the_listeners_lines(tmp_path):
    """The names on both sides: of the library's events, and of the measurement."""
    path = str(tmp_path / "lines.jsonl")
    listening = listener(path)
    for line in TWO_BATCHES_ONE_EPOCH[:2]:
        listening.onPhases(ProgressEvent("job", 1, 0, json.loads(line)["progress"]))
    manifest = SimpleNamespace(created_ms=round((T + 1.1) * 1000), cursors={"records": {"topic": {"0": 20}}})
    listening.onEpochCommitted(
        EpochEvent("job", 1, 1, {"parts_ms": {"barrier": 1, "snapshot": 2, "decision": 30}}, manifest)
    )
    listening.onEpochPublished(EpochEvent("job", 1, 1, {"sink": "out", "duration_ms": 160, "parts_ms": {"send": 40}}))
    lines = (tmp_path / "lines.jsonl").read_text().splitlines()

    assert [json.loads(line)["what"] for line in lines] == ["batch", "batch", "decided", "published"]
    first, _ = passages(lines)
    assert {span.part for span in first.spans} >= {"wait", "operator", "barrier", "decision", "publish", "publish_send"}
