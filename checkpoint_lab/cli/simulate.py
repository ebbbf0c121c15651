"""`spark-ckpt simulate`: one run of a protocol under failures, as a story and a space-time diagram; or many runs."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

import checkpoint_lab as sim
from checkpoint_lab import executed_world
from checkpoint_lab.recorded import INPUTS_MAX, Recording, difference, read_recording, recording
from checkpoint_lab.scripted import WORLDS
from checkpoint_protocols.graph import COORDINATOR, Graph
from checkpoint_protocols.machine import ProtocolViolation
from checkpoint_protocols.menu import MENU
from spark_ckpt.cli.command_session import spark_for
from spark_ckpt.cli.options import AsJson, Interval, ProtocolOptions, Timeout, pairs, process_at
from spark_ckpt.cli.output import print_facts, print_json, print_line, write_file
from spark_ckpt.connector import Json
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.wording import complaint, counted

# -- Graphs by name, or from a JSON file: `{"processes": ["s", "a", "k"], "channels": [["s", "a"], ["a", "k"]]}`.


WAYS_MAX = 1_000
"""Maximal number of paths from sources to processes, loops once around. Each row becomes a message for each path."""

LINEAGES_MAX = 50_000
"""Maximal number of rows of all sources times their paths. A run keeps one bit for each, and masks of them: this
number takes 160 MB, and ten times as many take a hundred times as much."""

BYTES_MAX = 100_000

ProcessName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]{0,30}$")]


class GraphFile(BaseModel):
    """Content of a graph file. Sources are processes without inputs, sinks are processes without outputs."""

    model_config = ConfigDict(extra="forbid", strict=True)

    processes: list[ProcessName] = Field(min_length=2, max_length=50)
    channels: list[Annotated[list[ProcessName], Field(min_length=2, max_length=2)]] = Field(min_length=1)

    @model_validator(mode="after")
    def _agree(self) -> GraphFile:
        named = {name for channel in self.channels for name in channel}
        if len(set(self.processes)) < len(self.processes):
            raise ValueError("a process is named twice")
        if unknown := sorted(named - set(self.processes)):
            raise ValueError(f"channels name {', '.join(unknown)}, which processes lacks")
        if alone := sorted(set(self.processes) - named):
            raise ValueError(f"no channel of {', '.join(alone)}")
        if COORDINATOR in self.processes:
            raise ValueError(f"{COORDINATOR} is the protocol's own process")
        return self


def chosen_graph(named: str, inputs: int) -> Graph:
    """Return a graph by name, or from a file if the name ends in `.json`. Raises `ConfigInvalid`.

    `inputs`: rows that each source will have.
    """
    if named.endswith(".json"):
        return _read(Path(named), inputs)
    if named not in sim.GRAPHS:
        there = ", ".join(sim.GRAPHS)
        raise ConfigInvalid(f"no graph {named!r}", hint=f"there are: {there}; or name a file that ends in .json")
    return sim.GRAPHS[named]


def _read(path: Path, inputs: int) -> Graph:
    try:
        with path.open("rb") as file:
            # one byte more tells that the file is too large, without the rest of it in memory
            text = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise ConfigInvalid(f"graph {path}: {error.strerror}", hint="name a file that can be read") from error
    if len(text) > BYTES_MAX:
        raise ConfigInvalid(f"graph {path} has more than {BYTES_MAX} bytes", hint="describe a smaller graph")
    try:
        described = GraphFile.model_validate_json(text)
        graph = Graph(path.stem, tuple((source, target) for source, target in described.channels))
    except ValidationError as error:
        raise _invalid(path, complaint(error, "the file")) from error
    except ProtocolViolation as error:
        raise _invalid(path, error.what) from error
    refuse_many_ways(str(path), graph, inputs)
    return graph


def _invalid(name: object, what: str) -> ConfigInvalid:
    hint = 'write {"processes": ["s", "a", "k"], "channels": [["s", "a"], ["a", "k"]]}'
    return ConfigInvalid(f"graph {name}: {what}", hint=hint)


def refuse_many_ways(name: str, graph: Graph, inputs: int) -> None:
    """Raise `ConfigInvalid` for a graph on which the lineages of so many inputs per source would fill the memory."""
    ways, new = 0, deque((source, 0) for source in graph.sources)
    while new:
        at, hops = new.popleft()
        ways += 1
        # within the loop: the number of ways can double with each process
        if ways > WAYS_MAX:
            raise _invalid(name, f"more than {WAYS_MAX} ways lead from the sources to the processes")
        looped = ((graph.ends[channel][1], hops + (channel in graph.back_edges)) for channel in graph.outputs[at])
        # one round of each loop, as in the run's `GraphApplication.routes`
        new.extend(each for each in looped if each[1] <= 1)
    if ways * inputs > LINEAGES_MAX:
        raise ConfigInvalid(
            f"graph {name}: {counted(inputs, 'input')} on {counted(ways, 'way')} would fill the memory",
            hint=f"give --inputs of at most {LINEAGES_MAX // ways}, or describe a graph with fewer ways",
        )


# -- `simulate --record` and `--replay`: a simulated run as a file.


OWN_OPTIONS = frozenset({"replay", "diagram", "everything", "as_json"})


def write_recording(file: Path, scenario: sim.Scenario, outcome: sim.ScheduleOutcome) -> None:
    """Write every choice of the run and its moments to a file. Raises `ConfigInvalid`."""
    try:
        write_file(file, recording(scenario, outcome.trace).as_text())
    except OSError as error:
        raise ConfigInvalid(f"--record {file}: {error.strerror}", hint="name a file in a folder that exists") from error


def refuse_other_options(context: typer.Context) -> None:
    """Refuse options that the recorded file already determines. Raises `ConfigInvalid`."""
    given = [name for name in context.params if name not in OWN_OPTIONS and _is_given(context, name)]
    if given:
        option = given[0].replace("_", "-")
        raise ConfigInvalid(f"--replay and --{option}", hint=f"the file says what --{option} was: leave it out")


def _is_given(context: typer.Context, name: str) -> bool:
    source = context.get_parameter_source(name)
    return source is not None and source.name == "COMMANDLINE"


def read_replay(file: Path) -> tuple[Recording, str | None]:
    """Return a recorded run and the first difference of its replay, if any.

    Raises `TraceInvalid`, `ConfigInvalid` for a graph with too many paths, `NotOnTheMenu`.
    """
    recorded = read_recording(file)
    # A graph in a file is bounded wherever it comes from: a row becomes a message for each path.
    scenario = recorded.begun.scenario
    if scenario.own is not None:
        refuse_many_ways(str(file), scenario.own, scenario.inputs)
    return recorded, difference(recorded)


VIOLATED = 1
"""Exit code: an oracle or a machine condemned the run."""

T = TypeVar("T")

ProtocolName = Annotated[str, typer.Option("--protocol", "-p", metavar="NAME", help=f"One of: {', '.join(sim.NAMES)}.")]
GraphName = Annotated[
    str | None,
    typer.Option("--graph", "-g", metavar="NAME", help="A name or FILE.json; the protocol's first if left out."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Draw every choice from this number.")]
Steps = Annotated[int | None, typer.Option("--steps", min=0, help="Steps before the calm, on average.")]
Inputs = Annotated[int, typer.Option("--inputs", min=1, max=INPUTS_MAX, help="Give each source so many rows.")]
Crashes = Annotated[
    list[str] | None,
    typer.Option("--crash", metavar="PROCESS@STEP", help="Kill a process at a step; may be repeated."),
]
RandomFaults = Annotated[bool, typer.Option("--faults/--no-faults", help="Add random faults to the named crashes.")]
Schedules = Annotated[
    int, typer.Option("--schedules", min=1, help="Run so many seeds, one after the other; print no story.")
]
Processes = Annotated[int, typer.Option("--processes", min=1, help="Share the schedules among so many processes.")]
Picture = Annotated[
    Path | None,
    typer.Option(
        "--diagram", metavar="FILE", help="Write the space-time diagram there: .svg, or .html with the story."
    ),
]
Record = Annotated[Path | None, typer.Option("--record", metavar="FILE", help="Write every step there, as JSON lines.")]
Replay = Annotated[
    Path | None, typer.Option("--replay", metavar="FILE", help="Run what was recorded; 1 if it goes another way now.")
]
OnSpark = Annotated[
    Path | None,
    typer.Option(
        "--on-spark",
        metavar="FOLDER",
        help="For study and comparison: run the processes as Spark queries; their tables stay in the new folder.",
    ),
]
Everything = Annotated[bool, typer.Option("--everything", help="Print timers, receipts and stores, too.")]


def simulate(
    context: typer.Context,
    protocol: ProtocolName = sim.SPARK,
    graph: GraphName = None,
    seed: Seed = 0,
    steps: Steps = None,
    inputs: Inputs = 3,
    crash: Crashes = None,
    faults: RandomFaults = True,
    schedules: Schedules = 1,
    processes: Processes = 1,
    interval_ms: Interval = None,
    timeout_ms: Timeout = None,
    option: ProtocolOptions = None,
    diagram: Picture = None,
    everything: Everything = False,
    record: Record = None,
    replay: Replay = None,
    on_spark: OnSpark = None,
    as_json: AsJson = False,
) -> None:
    """Run a protocol under failures and judge it. The same arguments give the same run, byte for byte."""
    check_picture(diagram)
    if replay is not None:
        refuse_other_options(context)
        _again(replay, diagram, everything, as_json)
        return
    graph = graph or asked(lambda: sim.graphs_of(protocol))[0]
    own = chosen_graph(graph, inputs) if graph.endswith(".json") else None
    crashes = tuple(sim.Crash(*process_at(each, "STEP", "a@20")) for each in crash or ())
    scenario = sim.Scenario(
        protocol,
        own.name if own else graph,
        seed,
        steps,
        inputs,
        crashes,
        faults,
        own,
        interval_ms,
        timeout_ms,
        pairs(option, "--option"),
    )
    refuse_together(schedules, record, diagram, on_spark)
    if on_spark is not None:
        print_outcome(scenario, _run_on_spark(scenario, on_spark), diagram, everything, as_json)
    elif schedules > 1:
        _many(scenario, schedules, processes, as_json)
    else:
        _one(scenario, diagram, everything, record, as_json)


def asked(question: Callable[[], T]) -> T:
    """Return the simulator's answer. Raises `ConfigInvalid` for a name that the simulator does not have."""
    try:
        return question()
    except sim.NotOnTheMenu as error:
        raise ConfigInvalid(error.what, hint=f"there are: {', '.join(error.options)}") from error


def _one(scenario: sim.Scenario, diagram: Path | None, everything: bool, record: Path | None, as_json: bool) -> None:
    outcome = asked(scenario.run)
    if record is not None:
        write_recording(record, scenario, outcome)
    print_outcome(scenario, outcome, diagram, everything, as_json, smallest=True)


def refuse_together(schedules: int, record: Path | None, diagram: Path | None, folder: Path | None) -> None:
    """Refuse options that exclude each other, and a `folder` for tables that exists. Raises `ConfigInvalid`."""
    if schedules > 1 and record is not None:
        raise ConfigInvalid("--record and --schedules", hint="record one seed: a file holds one run")
    if schedules > 1 and diagram is not None:
        raise ConfigInvalid("--diagram and --schedules", hint="draw one seed: a picture shows one run")
    if folder is None:
        return
    if schedules > 1 or record is not None:
        other = "--record" if record is not None else "--schedules"
        raise ConfigInvalid(f"--on-spark and {other}", hint="run one seed on Spark, and record it without --on-spark")
    if folder.exists():
        raise ConfigInvalid(f"--on-spark {folder}: it exists", hint="name a folder that does not exist yet")


def _run_on_spark(scenario: sim.Scenario, folder: Path) -> sim.ScheduleOutcome:
    """Run the scenario in streaming queries of one session. Raises `ConfigInvalid`, `EnvironmentUnfit`."""
    world = asked(lambda: executed_world.prepared(scenario))
    with spark_for("simulate") as session:
        from checkpoint_lab.spark_executor import SparkExecutor  # only this run needs pandas and PySpark

        executor = SparkExecutor(session(), folder)
        try:
            return asked(lambda: world.run(executor))
        finally:
            executor.close()


def print_outcome(
    scenario: sim.Scenario,
    outcome: sim.ScheduleOutcome,
    diagram: Path | None,
    everything: bool,
    as_json: bool,
    smallest: bool = False,
) -> None:
    """Print a run as story or JSON. `smallest`: search the shortest run that fails in the same way, too.

    Raises `typer.Exit` if the run was condemned.
    """
    title = f"{scenario.protocol} on {scenario.graph}, seed {scenario.seed}"
    told = sim.story(outcome.moments, everything)
    if diagram is not None:
        write_picture(diagram, outcome.moments, title, told)
    if as_json:
        print_json(_fields(scenario, outcome))
    else:
        print_line(f"{title}\n\nverdict: {_verdict(scenario, outcome)}\n\n{told}\n{sim.chart(outcome.moments)}")
        print_facts({**outcome.counts, "diagram": str(diagram) if diagram else None})
        if not outcome.ok and smallest:
            _smallest(scenario, outcome)
    if not outcome.ok:
        raise typer.Exit(VIOLATED)


def _again(file: Path, diagram: Path | None, everything: bool, as_json: bool) -> None:
    """Print a recorded run and the difference of its replay, if any."""
    recorded, differs = asked(lambda: read_replay(file))
    error = recorded.judged.error
    told = sim.story(recorded.moments, everything)
    if diagram is not None:
        write_picture(diagram, recorded.moments, str(file), told)
    verdict = error or f"exactly as without failures; shown: {_promise(recorded.begun.scenario)}"
    if as_json:
        print_json({"steps": len(recorded.chosen), "verdict": verdict, "difference": differs})
    else:
        print_facts({"verdict": verdict, "replayed": differs or f"{len(recorded.chosen)} steps, all as recorded"})
        print_line(f"\n{told}\n{sim.chart(recorded.moments)}")
    if error or differs:
        raise typer.Exit(VIOLATED)


def _verdict(scenario: sim.Scenario, outcome: sim.ScheduleOutcome) -> str:
    if outcome.error is None:
        return f"exactly as without failures; shown: {_promise(scenario)}"
    return f"{type(outcome.error).__name__}: {str(outcome.error).splitlines()[0]}"


def _promise(scenario: sim.Scenario) -> str:
    """Return the promise that was judged at the sinks, or in the log."""
    world = WORLDS.get(scenario.protocol)
    return MENU[scenario.protocol].output.promise if world is None else world.promise


def _smallest(scenario: sim.Scenario, outcome: sim.ScheduleOutcome) -> None:
    """Print the shortest trace found that fails in the same way, as a story."""
    shrunk = sim.shrink(scenario.world, outcome.trace, trials_max=500)
    world = scenario.world().watch()
    with contextlib.suppress(Exception):  # the failure is the point of this run
        for choice in shrunk.trace:
            world.perform(choice)
    print_line(f"\nthe same failure in {len(shrunk.trace)} steps:\n\n{sim.story(world.moments or ())}")


def check_picture(diagram: Path | None) -> None:
    """Check the suffix of a diagram file. Raises `ConfigInvalid` unless it is `.svg` or `.html`."""
    if diagram is not None and diagram.suffix not in (".svg", ".html"):
        raise ConfigInvalid(f"--diagram {diagram.name} is neither .svg nor .html", hint="name the file so")


def write_picture(diagram: Path, moments: Sequence[sim.Moment], title: str, told: str) -> None:
    """Write the space-time diagram in the format of the file's suffix. Raises `ConfigInvalid`."""
    text = sim.svg(moments, title) if diagram.suffix == ".svg" else sim.html(moments, title, told)
    try:
        write_file(diagram, text)
    except OSError as error:
        raise ConfigInvalid(
            f"--diagram {diagram}: {error.strerror}", hint="name a file in a folder that exists"
        ) from error


def _fields(scenario: sim.Scenario, outcome: sim.ScheduleOutcome) -> dict[str, Json]:
    return {
        "protocol": scenario.protocol,
        "graph": scenario.graph,
        "seed": scenario.seed,
        "ok": outcome.ok,
        "verdict": _verdict(scenario, outcome),
        "counts": dict(outcome.counts),
        "trace": [list(choice) for choice in outcome.trace],
        "moments": [[each.step, each.process, each.kind, each.label] for each in outcome.moments],
    }


def _many(scenario: sim.Scenario, schedules: int, processes: int, as_json: bool) -> None:
    report = asked(lambda: sim.many(scenario, schedules, processes))
    failed = [outcome.seed for outcome in report.failures]
    facts: dict[str, Json] = {
        "protocol": report.protocol,
        "graph": report.graph,
        "schedules": report.schedules,
        "steps": report.steps,
        "schedules_per_cpu_second": round(report.rate),
        "cells_reached": round(report.coverage, 3),
        "failed": len(failed),
        "shown": None if failed else _promise(scenario),
        **{str(name): count for name, count in sorted(report.counts.items())},
    }
    if as_json:
        print_json(facts | {"failed_seeds": list(failed[:100])})
    elif failed:
        print_line(f"verdict: {len(failed)} of {report.schedules} failed; {_verdict(scenario, report.failures[0])}")
        print_line(f"see it with --seed {failed[0]} and without --schedules\n")
        print_facts(facts)
    else:
        print_line("verdict: every schedule exactly as without failures\n")
        print_facts(facts)
    if failed:
        raise typer.Exit(VIOLATED)
