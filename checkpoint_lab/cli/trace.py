"""`spark-ckpt trace`: a trace of a job with `trace_dir`, as a story, replayed against the rules of this version."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import checkpoint_lab as sim
from checkpoint_lab.cli.simulate import VIOLATED, Everything, Picture, check_picture, write_picture
from checkpoint_lab.trace_moments import moments_of
from spark_ckpt.cli.options import AsJson
from spark_ckpt.cli.output import print_facts, print_json, print_line
from spark_ckpt.trace.reading import Recorded, read_traces
from spark_ckpt.trace.replay import Difference, differences
from spark_ckpt.wording import counted

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
