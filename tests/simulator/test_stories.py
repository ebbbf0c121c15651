"""Stories, charts and diagrams show all events, on one page without external resources."""

from __future__ import annotations

from itertools import pairwise
from xml.etree import ElementTree

import pytest

import checkpoint_lab as sim
from checkpoint_lab.schedules import ScheduleOutcome
from checkpoint_lab.story import FOLD
from checkpoint_lab.world import Moment
from tests.simulator import markers

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def eventful() -> ScheduleOutcome:
    """A run with a crash after a complete checkpoint."""
    runs = (sim.run(markers.protocol(), sim.GRAPHS["diamond"], seed, story=True) for seed in range(500))
    return next(
        run
        for run in runs
        if any(moment.kind == "recover" and not moment.label.endswith("from 0") for moment in run.moments)
        and any(moment.kind == "drop" for moment in run.moments)
        and any(moment.kind == "replay" for moment in run.moments)
    )


def marks(document: ElementTree.Element, kind: str) -> int:
    """Number of drawn elements of a class, without the legend."""
    legend = {each for group in document.findall(f"{SVG}g") for each in group.iter()}
    drawn = [each for each in document.iter() if each.get("class", "").split(" ")[0] == kind and each not in legend]
    return len(drawn)


def count(outcome: ScheduleOutcome, kind: str) -> int:
    return sum(moment.kind == kind for moment in outcome.moments)


def test_a_diagram_draws_every_checkpoint_crash_restore_and_recovery(eventful: ScheduleOutcome) -> None:
    document = ElementTree.fromstring(sim.svg(eventful.moments, "diamond"))

    assert marks(document, "checkpoint") == count(eventful, "capture")
    assert marks(document, "crash") == count(eventful, "crash")
    assert marks(document, "restore") == count(eventful, "restore")
    assert marks(document, "moment") == marks(document, "line") == count(eventful, "recover")
    assert marks(document, "replay") == count(eventful, "replay") > 0
    assert marks(document, "lane") == 5


def test_the_recovery_line_is_drawn_through_the_restored_checkpoints(eventful: ScheduleOutcome) -> None:
    document = ElementTree.fromstring(sim.svg(eventful.moments))
    lines = [each.get("points", "").split() for each in document.iter(f"{SVG}polyline")]
    rectangles = [each for each in document.iter(f"{SVG}rect") if each.get("class") == "checkpoint"]
    squares = {(int(each.get("x", "")) + 5, int(each.get("y", "")) + 5) for each in rectangles}
    through = [tuple(map(int, point.split(","))) in squares for line in lines for point in line]

    assert any(len(line) == 5 for line in lines)
    assert sum(through) >= 4


def test_every_message_is_an_arrow_or_a_stub(eventful: ScheduleOutcome) -> None:
    document = ElementTree.fromstring(sim.svg(eventful.moments))
    arrows = sum(marks(document, kind) for kind in ("row", "control", "dropped"))
    received = {moment.message for moment in eventful.moments if moment.kind == "receive"}

    assert arrows == count(eventful, "receive")
    assert marks(document, "pending") == count(eventful, "send") - len(received)
    assert marks(document, "dropped") > 0


def test_a_diagram_has_no_external_resources_and_both_color_schemes(eventful: ScheduleOutcome) -> None:
    page = sim.html(eventful.moments, "<title> & more", sim.story(eventful.moments))

    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert "<script" not in page
    assert "prefers-color-scheme: dark" in page
    assert "&lt;title&gt; &amp; more" in page


def test_a_story_has_a_line_per_moment_in_order(eventful: ScheduleOutcome) -> None:
    lines = sim.story(eventful.moments, everything=True).splitlines()
    steps = [int(line.split()[0]) for line in lines]

    assert len(lines) == len(eventful.moments)
    assert steps == sorted(steps)
    assert any("crash" in line for line in lines)
    assert len(sim.story(eventful.moments).splitlines()) < len(lines)


def test_a_chart_wraps_and_has_a_legend() -> None:
    moments = [
        Moment(0, "s", "begin"),
        Moment(3, "s", "read", "s.0"),
        Moment(7, "k", "crash"),
        Moment(9, "", "recover"),
    ]

    chart = sim.chart(moments, width=5).splitlines()

    assert chart[0] == "s ---r-"
    assert chart[5] == "k --X-|"
    assert chart[-1] == "r read  X crash  | recover"


def test_the_story_of_a_job_follows_a_barrier_to_the_output() -> None:
    """Seed 001: the initiator sends a barrier, the epoch commits, every sink publishes; after a crash the rest is replayed."""
    run = sim.Scenario(sim.SPARK, "job", 10, steps=60, faults=False, crashes=(sim.Crash("driver", 70),)).run()
    events = [(moment.process, moment.kind) for moment in run.moments]
    crashed = events.index(("driver", "crash"))
    steps = [("driver", "inject"), ("log", "complete"), ("out", "publish"), ("tap", "publish")]
    document = ElementTree.fromstring(sim.svg(run.moments))

    assert run.ok
    assert ("driver", "recover") in events[crashed:]
    after = [events.index(step, crashed) for step in steps if step != ("log", "complete")]
    assert after == sorted(after)
    assert all(events.count(step) > 3 for step in steps)
    assert marks(document, "crash") == 1


def test_runs_without_a_story_keep_no_events() -> None:
    assert sim.run(markers.protocol(), sim.GRAPHS["pair"], 1).moments == ()


def test_a_story_names_the_receiver_of_a_message() -> None:
    moments = [
        Moment(1, "s", "send", "s.0>a", 1),
        Moment(2, "a", "receive", "app", 1),
        Moment(3, "a", "send", "vote", 2),
        Moment(4, "k", "send", "vote", 3),
        Moment(5, "c", "lose", "vote", 3),
    ]

    lines = sim.story(moments).splitlines()

    assert "send     s.0>a to a [1]" in lines[0]
    assert "send     vote to no process: it stays in flight [2]" in lines[1]
    assert "send     vote to c [3]" in lines[2]


def test_a_long_run_is_wrapped_without_a_cut() -> None:
    run = sim.run(markers.protocol(), sim.GRAPHS["nested_cycle"], 3, steps=200, story=True)
    document = ElementTree.fromstring(sim.svg(run.moments))
    bands = [each for each in document.iter(f"{SVG}svg") if each.get("class") == "band"]
    views = [[int(number) for number in each.get("viewBox", "").split()] for each in bands]
    last = max(int(each.get("x2", "0")) for each in document.iter(f"{SVG}line"))

    assert int(document.get("width", "")) <= FOLD
    assert len(bands) > 1
    assert all(before[0] + before[2] == after[0] for before, after in pairwise(views))
    assert views[-1][0] + views[-1][2] >= last
    assert marks(document, "checkpoint") == sum(moment.kind == "capture" for moment in run.moments)


def test_every_band_names_its_processes() -> None:
    run = sim.run(markers.protocol(), sim.GRAPHS["pair"], 3, steps=200, story=True)
    document = ElementTree.fromstring(sim.svg(run.moments))
    bands = sum(each.get("class") == "band" for each in document.iter(f"{SVG}svg"))
    names = [each.text for each in document.findall(f"{SVG}text")]

    assert bands > 1
    assert names.count("k") == bands


def test_a_named_crash_that_is_not_possible_yet_delays_no_other_one() -> None:
    crashes = (sim.Crash("a", 1), sim.Crash("a", 2), sim.Crash("k", 3))
    run = sim.Scenario("markers", "pipeline", faults=False, crashes=crashes).run()

    assert [choice for choice in run.trace[:4] if choice[0] == "crash"] == [("crash", "a"), ("crash", "k")]
