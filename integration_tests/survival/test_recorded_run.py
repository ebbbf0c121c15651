"""The trace of a job on Spark that is killed: the rules accept it, and so does the specification."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from integration_tests.survival.graph_feed import Feed, feeding
from integration_tests.survival.graphs import merges_output
from integration_tests.survival.kills import Kill
from integration_tests.survival.process import Driver
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.trace.lines import Begun, Handled
from spark_ckpt.trace.reading import Recorded, read_traces
from spark_ckpt.trace.replay import differences
from tests.specs.recorded_steps import MODULE, SOURCES, recorded_steps
from tests.specs.tla import Step, traces_module
from tests.specs.tlc import check

pytestmark = [pytest.mark.spark, pytest.mark.kill, pytest.mark.long]


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory, spark: SparkSession) -> Iterator[list[Recorded]]:
    """Traces of three drivers: killed after the commit of a manifest and before its notice, killed at work, drained."""
    folder = tmp_path_factory.mktemp("recorded")
    with feeding(folder, "merge", "rows", "others") as feed:
        feed.lives.arguments += ["--trace-dir", str(folder / "trace"), "--max-unpublished", "1"]
        for _ in range(4):
            feed.put()
        feed.killed(Kill("third commit", _dies, {"SPARK_CKPT_FAILPOINT": "EPOCH_COMMITTED:kill:3"}))
        feed.killed(Kill("at work", lambda driver: _killed_at_work(driver, feed)))
        feed.put()
        feed.lives.drain_on(spark)
        assert feed.shown() == merges_output(feed.keys["rows"], feed.keys["others"])
    yield read_traces(folder / "trace")


def _dies(driver: Driver) -> None:
    assert driver.wait_for_end() == -9, driver.log()


def _killed_at_work(driver: Driver, feed: Feed) -> None:
    driver.wait_for_events("committed", 1)
    feed.put()
    driver.kill()


def test_every_incarnation_of_a_killed_job_is_recorded_to_its_end(traces: list[Recorded]) -> None:
    assert [each.incarnation for each in traces] == [1, 2, 3]
    first, second, third = ([line.event["kind"] for line in each.lines] for each in traces)
    assert _asked_last(traces[0]) == "CommitEpoch", "the manifest whose commit was the driver's last action"
    assert min(kinds.count("BatchDone") for kinds in (first, second, third)) >= 1
    assert "PublishEnded" in second
    assert _effects(traces[2])[-1] == "End"
    assert not any(each.cut for each in traces)


def _asked_last(recorded: Recorded) -> object:
    return next(kind for kind in reversed(_effects(recorded)) if kind in ("CommitEpoch", "SayCommitted"))


def _effects(recorded: Recorded) -> list[object]:
    return [effect["kind"] for line in recorded.lines for effect in line.effects]


def test_the_trace_has_no_data_of_a_row(traces: list[Recorded]) -> None:
    text = "".join(json.dumps([line.event, line.effects]) for each in traces for line in each.lines)
    assert "sha256" in text
    assert '"k1"' not in text
    assert "minValues" not in text
    assert "storage_options" not in text


def test_the_rules_accept_the_trace_of_a_killed_job(traces: list[Recorded]) -> None:
    assert differences(traces) == []


def _left_out(trace: Recorded) -> Recorded:
    """Leave out an effect."""
    number = next(number for number, line in enumerate(trace.lines) if line.effects)
    return _with(trace, number, trace.lines[number].model_copy(update={"effects": trace.lines[number].effects[1:]}))


def _reordered(trace: Recorded) -> Recorded:
    """Move a batch before its predecessor."""
    batches = [number for number, line in enumerate(trace.lines) if line.event["kind"] == "BatchDone"]
    lines = list(trace.lines)
    lines[batches[0]], lines[batches[1]] = lines[batches[1]], lines[batches[0]]
    return replace(trace, lines=lines)


def _with(trace: Recorded, number: int, line: Handled) -> Recorded:
    return replace(trace, lines=[*trace.lines[:number], line, *trace.lines[number + 1 :]])


@pytest.mark.parametrize("change", [_left_out, _reordered])
def test_a_changed_recording_is_not_accepted(traces: list[Recorded], change: Callable[[Recorded], Recorded]) -> None:
    assert [found.name for found in differences([change(traces[0]), *traces[1:]])] == [traces[0].name]


def test_rules_with_a_planted_bug_do_not_accept_it(traces: list[Recorded]) -> None:
    def forgetful(begun: Begun) -> EpochProtocol:
        core = begun.core()
        end = core.cut.builder.end
        core.cut.builder.end = lambda epoch, cursors: end(epoch, begun.point.manifest.cursors)  # type: ignore[method-assign]
        return core

    assert [found.name for found in differences(traces, forgetful)] == [each.name for each in traces]


# -- the specification -------------------------------------------------------------------------------------------------


def _judged(folder: Path, steps: Sequence[Step]) -> Any:
    return check(folder, MODULE, more=traces_module("RecordedBarriers", [steps]), flags=())


def test_the_specification_accepts_the_trace_of_a_killed_job(traces: list[Recorded], tmp_path: Path) -> None:
    steps = recorded_steps(traces, "out")

    actions = [step.action for step in steps]
    assert actions.count("crash") == 2
    assert actions.count("decide") == actions.count("publish") >= 4
    assert {step.node for step in steps if step.action == "read"} == set(SOURCES)
    result = _judged(tmp_path, steps)
    assert result.ok, result.output


def _changed(trace: Recorded, change: Callable[[dict[str, Any]], bool]) -> Recorded:
    """Change the first line that `change` can change: it gets a copy of the line's fields."""
    for number, line in enumerate(trace.lines):
        fields = json.loads(line.text())
        if change(fields):
            return _with(trace, number, Handled.model_validate(fields))
    raise AssertionError("no line could be changed")


def _files(effect: Mapping[str, Any]) -> list[Any]:
    manifest = effect.get("manifest", {})
    return list(manifest.get("outputs", {}).get("out", {}).get("files", [])) if "outputs" in manifest else []


def _drop_a_file(fields: dict[str, Any]) -> bool:
    stored = [effect for effect in fields["effects"] if _files(effect)]
    for effect in stored[:1]:
        effect["manifest"]["outputs"]["out"]["files"].pop()
    return bool(stored)


def _publish_again(fields: dict[str, Any]) -> bool:
    attempts = [effect for effect in fields["effects"] if effect["kind"] == "Publish" and effect["output"]["files"]]
    for effect in attempts[:1]:
        effect["output"]["files"] *= 2
    return bool(attempts)


Traces = Sequence[Recorded]


def _left_out_rows(traces: Traces) -> Traces:
    """Remove a file from a manifest that its batches have staged."""
    return [traces[0], _changed(traces[1], _drop_a_file), *traces[2:]]


def _published_twice(traces: Traces) -> Traces:
    """Give a sink the rows of an epoch twice."""
    return [traces[0], _changed(traces[1], _publish_again), *traces[2:]]


def _decided_early(traces: Traces) -> Traces:
    """Commit a manifest before the batch that holds its barrier."""
    lines = list(traces[-1].lines)
    stored = [number for number, line in enumerate(lines) if line.event["kind"] == "EpochCommitted"][-1]
    ended = max(number for number in range(stored) if lines[number].event["kind"] == "BatchDone")
    asked = [effect for effect in lines[ended].effects if effect["kind"] == "CommitEpoch"]
    before = lines[ended].model_copy(update={"event": {"kind": "StopRequested"}, "effects": asked})
    lines[ended : stored + 1] = [before, lines[stored], *lines[ended:stored]]
    return [*traces[:-1], replace(traces[-1], lines=lines)]


def _read_again(traces: Traces) -> Traces:
    """Start a later driver at the sources' start, with the state of the newest epoch."""
    point = traces[1].begun.point
    starts = traces[0].lines[0].event["starts"]
    manifest = point.manifest.model_copy(update={"cursors": starts})
    begun = traces[1].begun.model_copy(update={"point": replace(point, manifest=manifest)})
    return [traces[0], replace(traces[1], begun=begun), *traces[2:]]


@pytest.mark.parametrize("plant", [_left_out_rows, _published_twice, _decided_early, _read_again])
def test_the_specification_rejects_a_run_that_is_wrong(
    traces: list[Recorded], tmp_path: Path, plant: Callable[[Traces], Traces]
) -> None:
    result = _judged(tmp_path, recorded_steps(plant(traces), "out"))

    assert result.violated == "deadlock", result.output
