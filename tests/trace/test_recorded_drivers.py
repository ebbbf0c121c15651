"""A trace has the events and effects of the rules: it replays, and a change of either is found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, fields, replace

import pytest

import checkpoint_lab as sim
from checkpoint_lab.cli.trace import moments_of
from checkpoint_protocols.machine import Event, InvalidTransition
from spark_ckpt.connector import StagedFile
from spark_ckpt.coordination.job_shape import EdgeShape, JobShape, Limits, SinkPlace
from spark_ckpt.coordination.manifests import stamped
from spark_ckpt.coordination.messages import BatchDone, EpochCommitted, PublishEnded, QueryStarting, SourcesPinned
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.coordination.reports import EDGE, Report
from spark_ckpt.coordination.stage_process import Between, StageProcess
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import ConfigInvalid, EpochDamaged, PublishFailed, TraceInvalid
from spark_ckpt.trace import recorder
from spark_ckpt.trace.lines import EVENTS, STAGE_EVENTS, Begun, asked_for, event_of, handled, line_of
from spark_ckpt.trace.reading import read_traces, recorded_of
from spark_ckpt.trace.recorder import RecordedRules, TraceFile, file_of, recorded
from spark_ckpt.trace.replay import differences, replayed
from tests.trace.recording import Recording, whole

SECRET = "s3cr3t-and-a-row"
NOTE = Report("input", 0, 0, "rows", {"rows_in": 3, "note": SECRET})


def recording(seed):
    made = Recording()
    assert sim.run_spark(seed, made.core_of, awaits_lines=seed % 4 == 3).ok
    return made.traces()


def busy():
    """An incarnation of several batches."""
    traces = (trace for seed in range(20) for trace in recording(seed))
    return next(each for each in traces if sum(line.event["kind"] == "BatchDone" for line in each.lines) > 3)


def test_traces_of_simulated_drivers_replay_with_all_faults():
    traces = [trace for seed in range(40) for trace in recording(seed)]
    kinds = {line.event["kind"] for trace in traces for line in trace.lines}
    assert kinds == {each.__name__ for each in EpochProtocol.EVENTS}
    assert sum(len(trace.lines) for trace in traces) > 1_000
    assert differences(traces) == []


def test_a_missing_effect_is_found_at_its_line():
    trace = busy()
    number = next(number for number, line in enumerate(trace.lines) if line.event["kind"] == "BatchDone")
    line = trace.lines[number]
    lines = [*trace.lines[:number], line.model_copy(update={"effects": line.effects[1:]}), *trace.lines[number + 1 :]]

    found = replayed(replace(trace, lines=lines))
    assert found is not None
    assert (found.line, found.event["kind"]) == (number + 2, "BatchDone")
    assert found.replayed["kind"] == "CountBatch"


def test_an_event_out_of_order_is_found():
    trace = busy()
    first, second = [number for number, line in enumerate(trace.lines) if line.event["kind"] == "BatchDone"][:2]
    lines = list(trace.lines)
    lines[first], lines[second] = lines[second], lines[first]
    assert replayed(replace(trace, lines=lines)) is not None


def test_rules_that_raise_are_recorded_and_raise_again(tmp_path):
    core, rules, _ = recorded(tmp_path, *made_with())
    with pytest.raises(InvalidTransition):
        rules.handle(Event(), 1.0)
    rules.close()
    [trace] = read_traces(tmp_path)
    assert trace.lines[0].raised == "InvalidTransition"
    assert core.open_epoch is None


# -- on disk -----------------------------------------------------------------------------------------------------------


def made_with(incarnation=1):
    shape = JobShape(
        "job", ("rows",), {"out": SinkPlace(f"s3://{SECRET}", {"key": SECRET})}, (), Limits(), store="store"
    )
    base = Manifest(job="job", epoch=0, incarnation=0, attempt="initial", created_ms=0, reason="initial")
    return shape, RecoveryPoint(incarnation, base, 0, "latest"), None, {}, StageProcess(Between.INDEPENDENT, 1000)


def run_rules(rules, staged_path="k=" + SECRET + "/ckpt-out.parquet"):
    rules.handle(SourcesPinned({}), 1.0)
    rules.handle(QueryStarting(True), 2.0)
    file = StagedFile(staged_path, 1, 3, 0, 0, 0, 0, {"k": SECRET}, json.dumps({"minValues": {"k": SECRET}}), "")
    body = {field.name: getattr(file, field.name) for field in fields(file)}
    rules.handle(BatchDone(0, {"rows": {"n": 3}}, 0, 2, (Report("tap", 0, 0, "out", body), NOTE)), 3.0)


def test_what_an_operator_confirmed_about_sources_is_read_as_it_was_recorded():
    standing = Standing(
        fresh=frozenset({"new"}), dropped=frozenset({"old"}), skipped={"in": {"orders": {"0": 812, "1": [1, None]}}}
    )
    shape, point, *_ = made_with()
    begun = line_of(Begun.of(shape, point, standing, {}).text())
    assert isinstance(begun, Begun)
    assert begun.standing == standing


def test_a_trace_has_no_rows_and_secrets_and_replays_without_them(tmp_path):
    _, rules, _ = recorded(tmp_path, *made_with())
    run_rules(rules)
    rules.close()
    text = file_of(tmp_path, "job", 1).read_text()
    assert "ckpt-out.parquet" in text
    assert SECRET not in text
    assert differences(read_traces(tmp_path)) == []


def test_a_trace_has_an_errors_fields_that_the_rules_read_and_not_its_text():
    damaged = EpochDamaged(SECRET, file=SECRET, expected=SECRET, found=SECRET)
    for error in (damaged, PublishFailed(SECRET)):
        line = handled(PublishEnded("out", 1, error=error), 1.0, [])
        assert SECRET not in line.text()
        again = event_of(line_of(line.text()), {}).error
        assert (type(again), again.retriable) == (type(error), error.retriable)
        assert ("file" in again.context) == ("file" in error.context)


def test_a_batch_of_an_older_trace_lacks_later_fields(tmp_path):
    _, rules, _ = recorded(tmp_path, *made_with())
    run_rules(rules)
    rules.close()
    [trace] = read_traces(tmp_path)
    [batch] = [line for line in trace.lines if line.event["kind"] == "BatchDone"]
    older = {name: value for name, value in batch.event.items() if name not in ("taken", "drained", "duration_ms")}
    assert event_of(batch.model_copy(update={"event": older}), {}).taken == {}


def test_rows_of_edges_are_recorded_and_replay(tmp_path):
    shape, *rest = made_with()
    _, rules, _ = recorded(tmp_path, replace(shape, edges=(EdgeShape("loop", "k int"),)), *rest)
    rules.handle(SourcesPinned({"rows": {"n": 0}}), 1.0)
    [asked] = asked_for(read_traces(tmp_path)[0].lines[0]).values()
    rules.handle(EpochCommitted(stamped(asked, "a", 1)), 1.0)
    rules.handle(QueryStarting(True), 2.0)
    for batch in range(3):
        segment = Report("tap", 0, 0, f"{EDGE}loop", asdict(StagedFile(f"b{batch}", 1, 3, 0, batch, 0, 0)))
        taken = {"loop": batch}
        rules.handle(BatchDone(batch, {"rows": {"n": batch}}, 0, 2, (segment,), taken=taken), 3.0 + batch)
    rules.close()
    [trace] = read_traces(tmp_path)
    assert '"edge":"loop"' in file_of(tmp_path, "job", 1).read_text()
    assert differences([trace]) == []


KILLED = """
import os, signal, sys
from pathlib import Path
from tests.trace.test_recorded_drivers import made_with, run_rules
from spark_ckpt.trace.recorder import recorded
_, rules, _ = recorded(Path(sys.argv[1]), *made_with())
run_rules(rules)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_process_has_recorded_all_effects_of_its_rules(tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], env=os.environ, check=False)
    assert done.returncode == -signal.SIGKILL
    [trace] = read_traces(tmp_path)
    assert [line.event["kind"] for line in trace.lines] == ["SourcesPinned", "QueryStarting", "BatchDone"]
    assert not trace.torn


@pytest.mark.parametrize("missing", [1, 2, 50])
def test_a_torn_last_line_is_skipped(tmp_path, missing):
    _, rules, _ = recorded(tmp_path, *made_with())
    run_rules(rules)
    rules.close()
    text = file_of(tmp_path, "job", 1).read_bytes()
    trace = recorded_of("torn", text[:-missing])
    assert trace.torn
    assert [line.event["kind"] for line in trace.lines] == ["SourcesPinned", "QueryStarting"]
    assert differences([trace]) == []


def test_a_line_that_is_damaged_in_the_middle_is_named(tmp_path):
    _, rules, _ = recorded(tmp_path, *made_with())
    run_rules(rules)
    rules.close()
    path = file_of(tmp_path, "job", 1)
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], lines[1][:-10], *lines[2:]]))
    with pytest.raises(TraceInvalid, match="line 2"):
        read_traces(tmp_path)


@pytest.mark.parametrize(
    "text",
    [b"", b"no json\n", b'{"line":"handled","now_ms":1,"event":{}}\n', b'{"line":"begun","format":9}\n', b"[]\n"],
)
def test_a_file_that_is_no_trace_is_refused_or_empty(text):
    if not text:
        assert recorded_of("empty", text) is None
        return
    with pytest.raises(TraceInvalid, match="line 1"):
        recorded_of("other", text)


def test_a_trace_of_an_older_format_is_refused_with_both_formats(tmp_path):
    recorded(tmp_path, *made_with())[1].close()
    path = file_of(tmp_path, "job", 1)
    path.write_text(path.read_text().replace('"format":4', '"format":3'))
    with pytest.raises(TraceInvalid, match=r"line 1: .*format 3.*reads format 4"):
        read_traces(tmp_path)


@pytest.mark.parametrize(
    "event",
    [{}, {"kind": "Nothing"}, {"kind": "BatchDone", "batch": "x"}, {"kind": "StopRequested", "more": 1},
     {"kind": "PauseElapsed", "timer": "x"}, {"kind": "EpochCommitted", "manifest": {"epoch": 1}}],
)  # fmt: skip
def test_an_event_that_is_none_is_refused(event):
    line = line_of(json.dumps({"line": "handled", "now_ms": 1.0, "event": event}))
    with pytest.raises(TraceInvalid):
        event_of(line, {})


def test_a_trace_ends_at_its_bound_and_says_so(tmp_path):
    core, _, _ = recorded(None, *made_with())
    _, first, _ = recorded(tmp_path, *made_with())
    first.close()
    begins = file_of(tmp_path, "job", 1).read_text()
    path = tmp_path / "small-i00000002.jsonl"
    file = TraceFile(path, most_bytes=len(begins) + 300)
    file.write(line_of(begins))
    run_rules(RecordedRules(core, file))
    [trace] = read_traces(path)
    assert trace.cut
    assert [line.event["kind"] for line in trace.lines] == ["SourcesPinned"]
    assert path.stat().st_size <= len(begins) + 330


def test_a_job_keeps_its_newest_incarnations_only(tmp_path, monkeypatch):
    monkeypatch.setattr(recorder, "MOST_FILES", 3)
    for incarnation in range(1, 6):
        recorded(tmp_path, *made_with(incarnation))[1].close()
    assert [each.incarnation for each in read_traces(tmp_path)] == [3, 4, 5]


def test_an_incarnation_is_never_written_over(tmp_path):
    recorded(tmp_path, *made_with())[1].close()
    with pytest.raises(ConfigInvalid, match="exists"):
        recorded(tmp_path, *made_with())


def test_a_disk_that_fails_ends_the_recording_and_not_the_rules(tmp_path, monkeypatch, caplog):
    core, rules, _ = recorded(tmp_path, *made_with())

    def full(file, text):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    run_rules(rules)
    monkeypatch.undo()
    assert core.open_epoch is not None
    assert any("No space left" in each.getMessage() for each in caplog.records)


def test_traces_are_recorded_on_request_only(tmp_path):
    _, rules, _ = recorded(None, *made_with())
    run_rules(rules)
    rules.close()
    assert list(tmp_path.iterdir()) == []


def test_every_event_of_the_rules_can_be_read_again():
    modules = {f"spark_ckpt.coordination.{name}" for name in ("messages", "stage_process")}
    known = {each.__name__ for each in _all(Event) if each.__module__ in modules}
    assert known == {each.__name__ for each in (*EpochProtocol.EVENTS, *STAGE_EVENTS)} == set(EVENTS)


def _all(kind):
    return {each for below in kind.__subclasses__() for each in {below} | _all(below)}


# -- as a story --------------------------------------------------------------------------------------------------------


def test_a_trace_has_a_story_like_simulated_runs():
    seed = next(seed for seed in range(50) if len(recording(seed)) > 2)
    moments = moments_of(recording(seed))
    kinds = {moment.kind for moment in moments}
    assert kinds >= {"recover", "read", "inject", "decide", "complete", "publish"}
    assert "epoch 1, initial" in sim.story(moments)
    assert "D" in sim.chart(moments)
    assert sim.svg(moments).startswith("<svg")


def test_an_incarnation_without_an_end_is_shown_as_killed():
    trace = recording(0)[0]
    killed = whole(1, [trace.begun.text(), *(line.text() for line in trace.lines[:4])])
    assert moments_of([killed])[-1].kind == "crash"
