"""`spark-ckpt trace`: a trace of a job with `trace_dir`, as a story, replayed against the rules of this version."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from pydantic import JsonValue

import checkpoint_lab as sim
from checkpoint_lab.cli.simulate import VIOLATED, Everything, Picture, check_picture, write_picture
from checkpoint_lab.world import Moment
from spark_ckpt.cli.options import AsJson
from spark_ckpt.cli.output import print_facts, print_json, print_line
from spark_ckpt.trace.reading import Recorded, read_traces
from spark_ckpt.trace.replay import Difference, differences
from spark_ckpt.wording import counted

# -- A recorded trace as moments, for the stories and diagrams of simulated runs.


DRIVER, LOG = "driver", "log"
_BARRIER = 2
"""`coordination.markers.BARRIER`, the kind of a marker that ends an epoch."""
_TIMERS = ("IntervalElapsed", "TimeoutElapsed", "PauseElapsed", "RetryElapsed", "AcksDue")
"""Events that answer `ArmTimer`."""

Said = tuple[str, str, str]
"""Process, kind, label."""


def moments_of(traces: Sequence[Recorded]) -> list[Moment]:
    """Return the moments of recorded incarnations, a step per line.

    An incarnation without an end was killed or replaced, unless its trace is cut.
    """
    found: list[Moment] = []
    step = 0
    for recorded in traces:
        said = [_begun(recorded), *(list(_handled(line.event, line.effects)) for line in recorded.lines)]
        if not recorded.cut and not _has_ended(recorded):
            said.append([(DRIVER, "crash", f"incarnation {recorded.incarnation}")])
        for each in said:
            step += 1
            found += [Moment(step, *what) for what in each]
    return found


def _begun(recorded: Recorded) -> list[Said]:
    point = recorded.begun.point
    return [(DRIVER, "recover", f"incarnation {point.incarnation} from epoch {point.manifest.epoch}")]


def _has_ended(recorded: Recorded) -> bool:
    return any(effect.get("kind") == "End" for line in recorded.lines for effect in line.effects)


def _handled(event: Mapping[str, JsonValue], effects: Sequence[Mapping[str, JsonValue]]) -> Iterator[Said]:
    yield from _of_event(event)
    for effect in effects:
        yield from _asked(effect)


def _of_event(event: Mapping[str, JsonValue]) -> Iterator[Said]:
    match event:
        case {"kind": "BatchDone", "batch": batch}:
            yield DRIVER, "read", f"batch {batch}"
        case {"kind": "EpochCommitted", "manifest": {"epoch": epoch}}:
            yield LOG, "complete", f"epoch {epoch}"
        case {"kind": "CommitFenced", "epoch": epoch}:
            yield LOG, "failed", f"epoch {epoch}: a newer incarnation"
        case {"kind": "CommitOverdue", "epoch": epoch}:
            yield LOG, "failed", f"epoch {epoch}: no answer"
        case {
            "kind": "PublishEnded",
            "sink": str(sink),
            "epoch": epoch,
            "error": None,
            "rows": int(rows),
            "replayed": before,
        }:
            yield sink, "publish", f"epoch {epoch}, {counted(rows, 'row')}" + (", has them" if before else "")
        case {"kind": "PublishEnded", "sink": str(sink), "epoch": epoch, "error": {"condition": condition}}:
            yield sink, "failed", f"epoch {epoch}: {condition}"
        case {"kind": str(kind)} if kind in _TIMERS:
            yield DRIVER, "timer", kind
        case {"kind": "StopRequested"}:
            yield DRIVER, "stop", "asked for"
        case {"kind": "EpochRequested", "name": name}:
            yield DRIVER, "savepoint", str(name)


def _asked(effect: Mapping[str, JsonValue]) -> Iterator[Said]:
    match effect:
        case {"kind": "OfferMarker", "marker": {"kind": kind, "epoch": epoch}} if kind == _BARRIER:
            yield DRIVER, "inject", f"epoch {epoch}"
        case {"kind": "CommitEpoch", "manifest": {"epoch": epoch, "reason": reason}}:
            yield DRIVER, "decide", f"epoch {epoch}, {reason}"
        case {"kind": "TakeEpoch", "index": index}:
            yield DRIVER, "decide", f"takes an epoch for index {index}"
        case {"kind": "SayIndex", "epoch": epoch, "index": index}:
            yield DRIVER, "decide", f"epoch {epoch} serves index {index}, too"
        case {"kind": "ReleaseEpochs", "epoch": epoch}:
            yield DRIVER, "decide", f"sinks publish up to epoch {epoch}"
        case {"kind": "SayAborted", "epoch": epoch, "why": why}:
            yield DRIVER, "aborted", f"epoch {epoch}: {why}"
        case {"kind": "End", "outcome": outcome}:
            yield DRIVER, "ended", str(outcome)


Recording = Annotated[Path, typer.Argument(metavar="FILE", help="A file that trace_dir got, or the folder of all.")]


def trace(file: Recording, diagram: Picture = None, everything: Everything = False, as_json: AsJson = False) -> None:
    """Replay recorded traces and compare this version's answers with the recorded ones. Exit code 1 if they differ."""
    check_picture(diagram)
    traces = read_traces(file)
    found = differences(traces)
    moments = moments_of(traces)
    told = sim.story(moments, everything)
    if diagram is not None:
        write_picture(diagram, moments, str(file), told)
    if as_json:
        print_json(
            {
                "accepted": not found,
                "incarnations": [_facts(each) for each in traces],
                "differences": [
                    {"file": each.name, "line": each.line, "event": each.event, "recorded": each.recorded,
                     "replayed": each.replayed}
                    for each in found
                ],
            }
        )  # fmt: skip
    else:
        print_line(f"{told}\n{sim.chart(moments)}")
        print_facts({"verdict": _verdict(traces, found), "diagram": str(diagram) if diagram else None})
        for each in found:
            print_line(str(each))
    if found:
        raise typer.Exit(VIOLATED)


def _facts(recorded: Recorded) -> dict[str, str | int | bool]:
    return {
        "file": recorded.name,
        "incarnation": recorded.incarnation,
        "events": len(recorded.lines),
        "torn": recorded.torn,
        "cut": recorded.cut,
    }


def _verdict(traces: list[Recorded], found: list[Difference]) -> str:
    incarnations = counted(len(traces), "incarnation")
    if found:
        return f"the rules answer otherwise in {len(found)} of {incarnations}"
    return (
        f"the rules answer as recorded: {counted(sum(len(each.lines) for each in traces), 'event')} in {incarnations}"
    )
