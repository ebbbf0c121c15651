"""`spark-ckpt simulate` and `compare`: repeatable stories, verdicts, diagrams, mistakes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

import checkpoint_lab as sim
from checkpoint_protocols.menu import MENU
from spark_ckpt.cli.app import exit_code

Captured = pytest.CaptureFixture[str]

SOUND = [name for name, protocol in MENU.items() if protocol.sound]


def out(capsys: Captured, *arguments: str, code: int = 0) -> str:
    assert exit_code(arguments) == code
    return capsys.readouterr().out


@pytest.mark.parametrize("protocol", ["lease", "spark", *SOUND])
def test_every_protocol_prints_its_story_and_survives_a_crash(capsys: Captured, protocol: str) -> None:
    victim = {"lease": "b", "spark": "driver"}.get(protocol, "a")
    graph = () if protocol in ("lease", "spark") else ("--graph", "diamond")

    text = out(capsys, "simulate", "-p", protocol, *graph, "--no-faults", "--crash", f"{victim}@12")

    assert " crash" in text
    assert text.splitlines()[2].startswith("verdict: ")
    assert "exactly as without failures" in text


def test_the_same_arguments_give_the_same_bytes(capsys: Captured, tmp_path: Path) -> None:
    arguments = ("simulate", "-p", "epochs", "-g", "two_back_edges", "--seed", "5", "--everything")
    first = out(capsys, *arguments, "--diagram", str(tmp_path / "run.html"))
    page = (tmp_path / "run.html").read_bytes()

    assert out(capsys, *arguments, "--diagram", str(tmp_path / "run.html")) == first
    assert (tmp_path / "run.html").read_bytes() == page


def test_json_holds_a_trace_that_replays(capsys: Captured) -> None:
    fields = json.loads(out(capsys, "simulate", "-p", "index-based", "-g", "cycle", "--seed", "3", "--json"))
    world = sim.Scenario("index-based", "cycle", 3).world().watch()

    for choice in fields["trace"]:
        world.perform(tuple(choice))

    assert [[each.step, each.process, each.kind, each.label] for each in world.moments or ()] == fields["moments"]


def test_a_diagram_is_a_drawing_with_a_line_per_process(capsys: Captured, tmp_path: Path) -> None:
    out(capsys, "simulate", "-p", "markers", "-g", "join", "--diagram", str(tmp_path / "run.svg"))

    texts = [each.text for each in ElementTree.parse(tmp_path / "run.svg").iter("{http://www.w3.org/2000/svg}text")]
    assert {"s", "t", "j", "k"} <= set(texts)


def failing_seed() -> int:
    return next(seed for seed in range(200) if not sim.Scenario("wall-clock", "pipeline", seed).run().ok)


def test_the_counter_example_is_found_and_minimized(capsys: Captured) -> None:
    text = out(capsys, "simulate", "-p", "wall-clock", "--graph", "pipeline", "--seed", str(failing_seed()), code=1)

    assert "the same failure in " in text
    assert "verdict" in text


def test_many_schedules_are_summed_up_and_failures_named(capsys: Captured) -> None:
    good = json.loads(out(capsys, "simulate", "-p", "markers", "--schedules", "50", "--json"))
    bad = json.loads(
        out(capsys, "simulate", "-p", "wall-clock", "--graph", "pipeline", "--schedules", "200", "--json", code=1)
    )

    assert (good["schedules"], good["failed"]) == (50, 0)
    assert bad["failed_seeds"][0] == failing_seed()


@pytest.mark.parametrize("protocol", ["lease", "spark"])
def test_protocols_with_words_of_their_own_have_campaigns_too(capsys: Captured, protocol: str) -> None:
    report = json.loads(out(capsys, "simulate", "-p", protocol, "--schedules", "5", "--json"))

    assert (report["protocol"], report["schedules"], report["failed"]) == (protocol, 5, 0)


@pytest.mark.parametrize("protocol", ["lease", "drivers", "markers"])
def test_a_run_of_no_steps_is_the_calm_alone(capsys: Captured, protocol: str) -> None:
    trace = json.loads(out(capsys, "simulate", "-p", protocol, "--steps", "0", "--json"))["trace"]
    many = json.loads(out(capsys, "simulate", "-p", protocol, "--steps", "0", "--schedules", "3", "--json"))

    assert trace[0] == ["calm"]
    assert many.get("crash", 0) == 0


@pytest.mark.parametrize("protocol", ["lease", "spark", "markers"])
def test_many_schedules_without_faults_have_none(capsys: Captured, protocol: str) -> None:
    calm = json.loads(out(capsys, "simulate", "-p", protocol, "--schedules", "8", "--no-faults", "--json"))
    rough = json.loads(out(capsys, "simulate", "-p", protocol, "--schedules", "8", "--json"))

    assert calm.get("crash", 0) == 0 < rough["crash"]


@pytest.mark.parametrize(
    "named",
    [("epochs", "a@5"), ("epochs", "a@150"), ("spark", "driver@5"), ("lease", "b@5"), ("drivers", "a@5"),
     ("operated", "driver@5"), ("outbox", "driver@5")],
)  # fmt: skip
def test_named_crashes_happen_in_each_of_many_schedules(capsys: Captured, named: tuple[str, str]) -> None:
    protocol, crash = named
    arguments = ("simulate", "-p", protocol, "--no-faults", "--crash", crash, "--schedules", "6", "--json")

    assert json.loads(out(capsys, *arguments))["crash"] == 6


def test_a_named_crash_of_a_process_that_has_ended_is_reported(capsys: Captured) -> None:
    scenario = ("-p", "operated", "--no-faults", "--crash", "driver@9999", "--json")

    assert json.loads(out(capsys, "simulate", *scenario))["counts"]["named crashes that never happened"] == 1


@pytest.mark.parametrize("protocol", ["lease", "markers", "drivers"])
def test_a_seed_of_many_is_the_run_of_that_seed_alone(protocol: str) -> None:
    scenario = sim.Scenario(protocol, sim.graphs_of(protocol)[0])
    alone = [replace(scenario, seed=seed).run().counts for seed in range(4)]

    assert sim.many(scenario, 4).counts == sum(map(Counter, alone), Counter())


def compared(capsys: Captured, *arguments: str) -> dict[str, dict[str, float]]:
    return {row["protocol"]: row for row in json.loads(out(capsys, "compare", "--json", *arguments))}


def test_compare_has_a_row_for_every_protocol_that_can_run(capsys: Captured) -> None:
    rows = compared(capsys, "--runs", "3")

    assert list(rows) == [*MENU]
    assert rows["wall-clock"]["lost"] > 0
    assert rows["synchronous-logging"]["control messages"] == 0
    assert rows["snapshots"]["held ms"] > rows["epochs"]["held ms"] == 0
    assert rows["synchronous-logging"]["shown after ms"] < rows["snapshots"]["shown after ms"]


def test_every_column_of_the_comparison_distinguishes_sound_protocols(capsys: Captured) -> None:
    rows = compared(capsys, "--runs", "2")

    for column in set(rows["markers"]) - {"protocol"}:
        assert len({rows[name][column] for name in SOUND}) > 2, column


def test_failures_under_skewed_clocks_are_a_result(capsys: Captured) -> None:
    rows = compared(capsys, "--runs", "5", "--skew-ms", "20")
    text = out(capsys, "compare", "--runs", "5", "--skew-ms", "20")

    assert rows["wall-clock"]["orphans"] > 0
    assert rows["wall-clock"]["ended early"] > 0
    assert "runs could not go on" in text


def test_bytes_hold_the_state_that_checkpoints_store(capsys: Captured) -> None:
    none, some = (compared(capsys, "--runs", "2", "--state-bytes", size) for size in ("0", "1000"))

    for name in ("snapshots", "uncoordinated"):
        checkpoints = (some[name]["state bytes"] - none[name]["state bytes"]) / 1000
        assert checkpoints >= 3
        assert some[name]["log bytes"] == none[name]["log bytes"] > 0


def test_a_killed_coordinator_costs_time_where_there_is_one(capsys: Captured) -> None:
    killed = compared(capsys, "--runs", "3", "--crash", "coordinator@250")

    assert killed["snapshots"]["recovery ms"] > 0
    assert killed["synchronous-logging"]["recovery ms"] == 0


def test_a_named_crash_that_meets_a_dead_process_is_counted_in_the_comparison(capsys: Captured) -> None:
    arguments = ("--runs", "1", "--crash", "a@250", "--crash", "a@251")
    rows, text = compared(capsys, *arguments), out(capsys, "compare", *arguments)

    assert rows["snapshots"]["named crashes that never happened"] == 1
    assert "named crashes that never happened, a run: " in text
    assert "never happened" not in out(capsys, "compare", "--runs", "1")


def test_a_failing_sound_protocol_is_reported_without_a_traceback(
    capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(MENU, "markers", replace(MENU["wall-clock"], name="markers", sound=True))

    assert exit_code(("compare",)) == 1
    text = capsys.readouterr().err
    assert "[CKPT_PROTOCOL_CONDEMNED] markers on diamond, seed" in text
    assert "Traceback" not in text


def graph_file(folder: Path, **fields: object) -> str:
    path = folder / "mine.json"
    path.write_text(json.dumps(fields))
    return str(path)


def test_a_graph_of_a_file_is_compared(capsys: Captured, tmp_path: Path) -> None:
    graph = graph_file(tmp_path, processes=["s", "a", "k"], channels=[["s", "a"], ["a", "a"], ["a", "k"]])

    rows = compared(capsys, "--runs", "1", "--graph", graph)

    assert set(rows) == {name for name, protocol in MENU.items() if not protocol.needs.acyclic}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"processes": ["s", "k"]}, "channels: Field required"),
        ({"processes": ["s", "k"], "channels": [["s", "k"]], "sinks": []}, "sinks: Extra inputs are not permitted"),
        ({"processes": ["s", "k"], "channels": [["s", "z"]]}, "channels name z, which processes lacks"),
        ({"processes": ["s", "k", "l"], "channels": [["s", "k"]]}, "no channel of l"),
        ({"processes": ["a", "b"], "channels": [["a", "b"], ["b", "a"]]}, "no source reaches"),
        ({"processes": ["s", "k"], "channels": [["s", "k"], ["s", "k"]]}, "edges are empty or repeat"),
        ({"processes": ["s", "a.b"], "channels": [["s", "a.b"]]}, "should match pattern"),
        ({"processes": ["s", "coordinator"], "channels": [["s", "coordinator"]]}, "the protocol's own process"),
        (
            {
                "processes": list("abcdefghijkl"),
                "channels": [[a, b] for a in "abcdefghijkl" for b in "abcdefghijkl" if a < b],
            },
            "more than 1000 ways",
        ),
    ],
)
def test_the_error_of_an_invalid_graph_file_names_the_defect(
    capsys: Captured, tmp_path: Path, fields: dict[str, object], text: str
) -> None:
    assert exit_code(("compare", "--graph", graph_file(tmp_path, **fields))) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("command", ["simulate", "compare"])
def test_more_inputs_than_a_graph_has_memory_for_are_refused(capsys: Captured, tmp_path: Path, command: str) -> None:
    """With 1,000 inputs the bits of 512 paths take 16 GB."""
    names = "abcdefghij"
    channels = [[a, b] for a in names for b in names if a < b]
    graph = graph_file(tmp_path, processes=list(names), channels=channels)

    assert exit_code((command, "--graph", graph, "--inputs", "1000")) == 2

    text = capsys.readouterr().err
    assert "1,000 inputs on 512 ways would fill the memory" in text
    assert "--inputs of at most 97" in text


def test_protocols_that_need_no_loops_are_not_compared_on_one(capsys: Captured) -> None:
    rows = json.loads(out(capsys, "compare", "--graph", "cycle", "--runs", "1", "--json"))

    assert "snapshots" not in {row["protocol"] for row in rows}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("simulate", "-p", "paxos"), "there are: spark, operated, outbox, outbox-overlap"),
        (("simulate", "-p", "snapshots", "-g", "cycle"), "snapshots does not run on a graph 'cycle'"),
        (("simulate", "-p", "markers", "--crash", "z@3"), "has no process 'z'"),
        (("simulate", "-p", "spark", "--crash", "log@3"), "has no process 'log'"),
        (("simulate", "-p", "outbox", "--crash", "operator@3"), "has no process 'operator'"),
        (("simulate", "-p", "markers", "--crash", "z@3", "--schedules", "2"), "has no process 'z'"),
        (("simulate", "-p", "markers", "--crash", "a"), "is not PROCESS@STEP"),
        (("simulate", "--diagram", "run.png"), "neither .svg nor .html"),
        (("simulate", "--diagram", "/no/such/folder/run.svg"), "No such file or directory"),
        (("compare", "-g", "ring"), "there are: pipeline"),
        (("compare", "--crash", "a"), "is not PROCESS@MS"),
        (("compare", "--crash", "z@5"), "no process 'z'"),
        (("compare", "-g", "/no/such/graph.json"), "No such file or directory"),
        (("compare", "--option", "speed=1"), "no protocol has an option 'speed'"),
        (("compare", "--option", "overlap=0"), "not a whole number from 1 on"),
        (("simulate", "-p", "markers", "--option", "overlap=1"), "markers has no option 'overlap'"),
        (("simulate", "-p", "uncoordinated", "--option", "forcing=much"), "none, hmnr"),
        (("simulate", "-p", "barrier"), "barrier runs inside a job: simulate spark"),
        (("simulate", "--option", "overlap=1"), "spark takes no graph, inputs, times or options"),
        (("simulate", "-p", "lease", "--interval-ms", "5"), "lease takes no graph, inputs, times or options"),
        (("simulate", "-g", "cycle"), "spark takes no graph, inputs, times or options"),
        (("simulate", "--inputs", "9", "--schedules", "2"), "spark takes no graph, inputs, times or options"),
    ],
)
def test_the_errors_of_mistakes_list_the_valid_values(capsys: Captured, arguments: tuple[str, ...], text: str) -> None:
    assert exit_code(arguments) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("--inputs", "100", "--interval-ms", "1"), "take a longer --interval-ms or --timeout-ms"),
        (("--timeout-ms", "1"), "take a longer --interval-ms or --timeout-ms"),
        (("--skew-ms", "1000000"), "take a smaller --skew-ms"),
    ],
)
def test_times_that_let_no_checkpoint_end_are_refused(
    arguments: tuple[str, ...], hint: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("checkpoint_lab.timed.STEPS_MAX", 5_000)
    assert exit_code(("compare", "--runs", "1", *arguments)) == 2
    told = capsys.readouterr().err
    assert "makes no progress with these times" in told
    assert hint in told


COORDINATED = [name for name in SOUND if MENU[name].coordinator]


@pytest.mark.parametrize("protocol", COORDINATED)
def test_the_coordinator_can_be_killed(capsys: Captured, protocol: str) -> None:
    arguments = ("simulate", "-p", protocol, "-g", "diamond", "--no-faults", "--crash", "coordinator@12", "--json")

    fields = json.loads(out(capsys, *arguments))

    assert fields["counts"]["crash"] == 1
    assert ["coordinator", "crash"] in [moment[1:3] for moment in fields["moments"]]


@pytest.mark.parametrize("protocol", SOUND)
def test_every_protocol_runs_on_a_graph_of_a_file(capsys: Captured, tmp_path: Path, protocol: str) -> None:
    edges = [["s", "a"], ["s", "b"], ["a", "k"], ["b", "k"], ["b", "l"]]
    graph = graph_file(tmp_path, processes=["s", "a", "b", "k", "l"], channels=edges)

    text = out(capsys, "simulate", "-p", protocol, "-g", graph, "--crash", "b@12")
    report = json.loads(out(capsys, "simulate", "-p", protocol, "-g", graph, "--schedules", "5", "--json"))

    assert f"{protocol} on mine, seed 0" in text
    assert (report["graph"], report["failed"]) == ("mine", 0)


@pytest.mark.parametrize("protocol", [name for name in SOUND if MENU[name].needs.acyclic])
def test_protocols_without_loops_refuse_a_self_loop_by_name(capsys: Captured, tmp_path: Path, protocol: str) -> None:
    graph = graph_file(tmp_path, processes=["s", "a", "k"], channels=[["s", "a"], ["a", "a"], ["a", "k"]])

    assert exit_code(("simulate", "-p", protocol, "-g", graph)) == 2
    assert f"{protocol} does not run on mine, which loops at a->a" in capsys.readouterr().err


def test_a_longer_interval_costs_less_and_shows_later(capsys: Captured) -> None:
    often, rarely = (compared(capsys, "--runs", "2", "--interval-ms", str(ms)) for ms in (100, 400))

    for name in ("markers", "snapshots"):
        assert rarely[name]["state bytes"] < often[name]["state bytes"]
        assert rarely[name]["shown after ms"] > often[name]["shown after ms"]


def test_an_option_reaches_the_protocol_that_has_it_and_no_other(capsys: Captured) -> None:
    usual, forced = (compared(capsys, "--runs", "2", *more) for more in ((), ("--option", "forcing=hmnr")))

    assert forced["uncoordinated"] != usual["uncoordinated"]
    assert {name for name in usual if usual[name] != forced[name]} == {"uncoordinated"}


@pytest.mark.parametrize(
    ("protocol", "option"),
    [
        (name, f"{key}={word}")
        for name in SOUND
        for key, each in MENU[name].options.items()
        for word in each.words or "12"
    ],
)
def test_every_value_of_an_option_keeps_the_promise(capsys: Captured, protocol: str, option: str) -> None:
    report = json.loads(out(capsys, "simulate", "-p", protocol, "--option", option, "--schedules", "40", "--json"))

    assert report["failed"] == 0


def test_settings_change_the_schedule(capsys: Captured) -> None:
    usual, patient = (
        json.loads(out(capsys, "simulate", "-p", "snapshots", *more, "--json"))["trace"]
        for more in ((), ("--timeout-ms", "1"))
    )

    assert usual != patient


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("-p", "lease"), "has no machine for messages"),
        (("-p", "markers", "--schedules", "2"), "--on-spark and --schedules"),
        (("-p", "markers", "--record", "run.jsonl"), "--on-spark and --record"),
        (("-p", "markers", "--crash", "nobody@3"), "has no process 'nobody'"),
    ],
)
def test_a_protocol_that_cannot_run_on_spark_is_refused_before_a_session_starts(
    capsys: Captured, tmp_path: Path, arguments: tuple[str, ...], hint: str
) -> None:
    tables = tmp_path / "tables"

    assert exit_code(["simulate", *arguments, "--on-spark", str(tables)]) != 0

    text = capsys.readouterr()
    assert hint in text.out + text.err
    assert not tables.exists()


def test_tables_of_a_run_on_spark_are_not_mixed_with_others(capsys: Captured, tmp_path: Path) -> None:
    assert exit_code(["simulate", "-p", "markers", "--on-spark", str(tmp_path)]) != 0

    assert "it exists" in capsys.readouterr().err
