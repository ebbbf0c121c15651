"""Stages of one program, one of them killed in its own process: protocol x graph x point of the kill x stage.

The other stages run in this process and must not restart. Afterwards every table equals that of a run without failure. The numbers
of each key have no gap and no repetition. The states alone judge every line of the program, and the search for lines agrees with a
trial of every cut. The rules replay the trace of each stage, and TLC accepts all traces as a behaviour of
`specs/StageLines.tla`.
"""

from __future__ import annotations

import json
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow.parquet as pq
from deltalake import DeltaTable
from pyspark.sql import SparkSession

import spark_ckpt as ckpt
from integration_tests.campaign.trial import Results
from integration_tests.edges.stage_graphs import GRAPHS, Hop, described, parsed
from integration_tests.spark import connected_session
from integration_tests.survival.kills import Kill, at_point, at_random
from integration_tests.survival.process import Lives
from spark_ckpt.coordination.stage_process import Between
from spark_ckpt.epochs.lines import Line, Programs, greatest, lines
from spark_ckpt.errors import CkptError, EpochNotFound, WorkersNotStarted
from spark_ckpt.program_edges.line_stores import read_stores
from spark_ckpt.store.existing import existing_store
from spark_ckpt.store.store import Store
from spark_ckpt.trace.reading import Recorded, read_traces
from spark_ckpt.trace.replay import differences
from tests.edges.every_cut import brute_force
from tests.specs.recorded_lines import MODULE, recorded_run, runs_module
from tests.specs.tlc import check

PROGRAM = "integration_tests.edges.stage_graphs"
RANDOM = "random moment"
POINTS = {
    "STAGED": 1,
    "EPOCH_COMMITTING": 2,
    "EPOCH_COMMITTED": 3,
    "MARKER_READ": 1,
    "PRE_COMMIT": 1,
    "PUBLISH_COMMITTED": 1,
    "ACKED": 1,
    RANDOM: 1,
}
"""Failpoints of the kill, each with the hit that kills: the first epoch of a stage has no rows."""
KEYS, ROWS_A_FILE, FILES_MOST, ENOUGH_S = 5, 20, 25, 300.0
TRIED = 6
"""Number of newest epochs of each stage whose cuts are all tried."""


class Broken(AssertionError):
    """A promise was broken."""


@dataclass(frozen=True)
class Cell:
    """One cell of the matrix."""

    protocol: Between
    graph: str
    point: str
    victim: str

    @property
    def kind(self) -> str:
        """The cell in the results."""
        return f"{self.protocol}, {self.graph}, {self.victim}, {self.point}"


def cells() -> list[Cell]:
    """Every cell. A loop is refused with `aligned`."""
    return [
        Cell(protocol, name, point, victim)
        for protocol in Between
        for name, graph in GRAPHS.items()
        if (protocol, name) != (Between.ALIGNED, "loop")
        for point in POINTS
        for victim in graph.stages
    ]


def stage_kills(folder: Path, trials: int, seed: int, results: Results) -> None:
    """Try `trials` cells in an order drawn by `seed`, all cells if there are as many."""
    draw = random.Random(seed)
    chosen = draw.sample(cells(), min(trials, len(cells())))
    for spark in connected_session():
        for number, cell in enumerate(chosen):
            results.add(cell.kind, *tried(spark, folder / f"{number:03}", cell, draw))


def tried(spark: SparkSession, root: Path, cell: Cell, draw: random.Random) -> tuple[dict[str, float], str]:
    """Run one cell. Return its figures, and the broken promise, if any."""
    program = StagedProgram(spark, root, cell)
    try:
        return program.survive(draw), ""
    except (AssertionError, CkptError) as error:
        return {}, f"{type(error).__name__}: {error}"[:500]


@dataclass
class Overloads(ckpt.RunListener):
    """Counts, by job, the waits for a host that was too busy to start Spark's Python workers."""

    heard: Counter[str] = field(default_factory=Counter)

    def onOutage(self, event: ckpt.OutageEvent) -> None:
        """Count one more."""
        if event.condition == WorkersNotStarted.condition:
            self.heard[event.job] += 1


@dataclass
class StagedProgram:
    """The program of a cell, and its input."""

    spark: SparkSession
    root: Path
    cell: Cell
    files: int = 0
    runs: list[ckpt.StagesRun] = field(default_factory=list)
    overloads: Overloads = field(default_factory=Overloads)

    def __post_init__(self) -> None:
        (self.root / "in").mkdir(parents=True)
        self.graph = GRAPHS[self.cell.graph]
        self.given = ["--root", str(self.root), "--graph", self.cell.graph, "--protocol", self.cell.protocol]

    def survive(self, draw: random.Random) -> dict[str, float]:
        """Kill the victim while rows arrive, start it again, and judge the result."""
        self._write()
        lives = Lives(self.root / "lives", self.given, program=PROGRAM)
        try:
            self._start([stage for stage in self.graph.stages if stage != self.cell.victim])
            kill = self._kill(draw)
            with lives.start(self.cell.victim, environment=kill.environment) as driver:
                driver.wait_for_events("started", 1)
                with self._rows_arrive():
                    kill.strike(driver)
            self._start([self.cell.victim])
            self._write()
            self._wait_for_tables()
        finally:
            lives.end()
            self._stop()
        return self._judge()

    def run_undisturbed(self) -> dict[str, float]:
        """Run all stages in this process, without a kill, and judge the result."""
        self._write()
        try:
            self._start(list(self.graph.stages))
            self._write()
            self._wait_for_tables()
        finally:
            self._stop()
        return self._judge()

    def stores(self) -> dict[str, Store]:
        """The store of each stage."""
        return {stage: existing_store(str(self.root / "staged" / stage)) for stage in self.graph.stages}

    def _wait_for_tables(self) -> None:
        _wait_until(lambda: all(map(self._is_complete, self.graph.stages)), "every table is complete")

    def _stop(self) -> None:
        for run in self.runs:
            run.stop("60 seconds")

    def _judge(self) -> dict[str, float]:
        self._judge_tables()
        self._judge_incarnations()
        traces = read_traces(self.root / "trace")
        judge_traces(traces, self.cell.protocol)
        steps = judge_run(self.root.parent / f"tlc-{self.root.name}", traces) if self.cell.protocol.indexed else 0
        judge_search(read_stores(list(self.stores().values())).programs)
        return {"lines": judged(self.stores(), self.graph.hops, self.cell.protocol), "steps": steps, "wrong": 0}

    def _start(self, stages: list[str]) -> None:
        options = parsed([*self.given, "--events", str(self.root / "events")])
        job = described(self.spark, options)
        job.addListener(self.overloads)
        self.runs.append(job.start_stages(stages))

    def _kill(self, draw: random.Random) -> Kill:
        if self.cell.point == RANDOM:
            return at_random(draw)
        return at_point(self.cell.point, self.root, POINTS[self.cell.point])

    def _rows_arrive(self) -> _Arriving:
        return _Arriving(self._write)

    def _write(self) -> None:
        if self.files >= FILES_MOST:
            return
        numbers = range(self.files * ROWS_A_FILE, (self.files + 1) * ROWS_A_FILE)
        rows = [{"k": f"k{number % KEYS}", "v": number, "hop": 0, "number": 0, "wrong": 0} for number in numbers]
        hidden = self.root / "in" / f".{self.files:04}.json"
        hidden.write_text("".join(json.dumps(row) + "\n" for row in rows))
        hidden.rename(self.root / "in" / f"{self.files:04}.json")
        self.files += 1

    def _rows(self, stage: str) -> list[dict[str, object]]:
        table = self.root / f"of-{stage}"
        if not (table / "_delta_log" / f"{0:020}.json").exists():
            return []
        files = DeltaTable(str(table)).file_uris()
        return [row for file in files for row in pq.read_table(file, partitioning=None).to_pylist()]

    def _is_complete(self, stage: str) -> bool:
        return len(self._rows(stage)) >= self.files * ROWS_A_FILE * self.graph.rounds

    def _judge_tables(self) -> None:
        rounds = range(self.graph.rounds)
        expected = Counter(
            (f"k{value % KEYS}", value, hop) for value in range(self.files * ROWS_A_FILE) for hop in rounds
        )
        for stage in self.graph.stages:
            judge_table(stage, self._rows(stage), expected)

    def _judge_incarnations(self) -> None:
        """Only the victim has restarted. After a kill before its first commit, the log may lack a second incarnation."""
        judge_incarnations(
            {store.job: store.log.state().incarnation for store in self.stores().values()},
            self.stores()[self.cell.victim].job,
            self.overloads.heard,
        )


def judge_table(stage: str, rows: list[dict[str, object]], expected: Counter[tuple[object, ...]]) -> None:
    """Raise `Broken` if a row is missing or repeated, or if the numbers of a key have a gap."""
    found = Counter((row["k"], row["v"], row["hop"]) for row in rows)
    if found != expected:
        raise Broken(f"{stage} lacks {dict(expected - found)}, has too many of {dict(found - expected)}")
    if wrong := [row for row in rows if row["wrong"]]:
        raise Broken(f"{stage} has received rows out of order: {wrong[:3]}")
    numbers = {(row["k"], row["number"]) for row in rows}
    of_key = Counter(row["k"] for row in rows)
    if numbers != {(key, number + 1) for key, most in of_key.items() for number in range(most)}:
        raise Broken(f"the numbers in {stage} have a gap or a repetition")


def judge_incarnations(incarnations: Mapping[str, int], victim: str, overloads: Mapping[str, int]) -> None:
    """Raise `Broken` if a stage other than the victim restarted more often than the overloaded host made it restart."""
    for job, incarnation in incarnations.items():
        if job != victim and incarnation > 1 + overloads.get(job, 0):
            raise Broken(f"stage {job} restarted, too: incarnation {incarnation}")


def judged(stores: dict[str, Store], hops: tuple[Hop, ...], protocol: Between) -> int:
    """Return the number of lines. Raises `Broken` for a line that is no cut, or that is aligned and has rows in transit."""
    found = lines(read_stores(list(stores.values())).programs, 10_000)
    for line in found:
        states = {stage: _state(store, stage, line.epochs[store.job]) for stage, store in stores.items()}
        for hop in hops:
            judge_hop(line, hop, states, protocol is Between.ALIGNED and bool(line.number))
    return len(found)


def judge_traces(traces: Sequence[Recorded], protocol: Between) -> None:
    """Raise `Broken` if the rules answer differently from the trace, or if the traces lack the rules between the stages."""
    if found := differences(traces):
        raise Broken(str(found[0]))
    silent = [each.name for each in traces if (each.begun.stage is not None) is not protocol.indexed]
    if silent:
        raise Broken(f"{silent[0]} has another protocol between stages than {protocol}")


def judge_run(folder: Path, traces: Sequence[Recorded]) -> int:
    """Return the number of the stages' steps that TLC accepts as a behaviour of `StageLines`. Raises `Broken`.

    `folder`: a new one, for the checker's files.
    """
    run = recorded_run(traces)
    folder.mkdir()
    result = check(folder, MODULE, more=runs_module([run]), flags=())
    shutil.rmtree(folder)
    if not result.ok:
        # A violated invariant shows after its step; a step that no action allows is missing in the counterexample.
        wrong = run.steps[result.depth - 1 - (result.violated != "deadlock")]
        raise Broken(
            f"the specification objects ({result.violated}) to step {result.depth} of {len(run.steps)}: {wrong}"
        )
    return len(run.steps)


def judge_search(programs: Programs) -> None:
    """Compare the search for a line with every cut of the newest epochs. Raises `Broken`."""
    newest = {name: replace(program, epochs=program.epochs[-TRIED:]) for name, program in programs.items()}
    ends = [{}, *({name: each.epoch} for name, program in newest.items() for each in program.epochs)]
    for limits in ends:
        expected = brute_force(newest, limits)
        try:
            found = dict(greatest(newest, limits).epochs)
        except EpochNotFound:
            found = None
        if found != expected:
            raise Broken(f"within {limits} the search finds {found}, every cut tried gives {expected}")


def judge_hop(line: Line, hop: Hop, states: dict[str, dict[str, tuple[int, int]]], aligned: bool) -> None:
    """Compare the rows that the sender has sent with those that the reader has read, by key."""
    sent = {key: hop.sent(*counts) for key, counts in states[hop.sender].items()}
    read = {key: hop.read(*counts) for key, counts in states[hop.reader].items()}
    if orphans := {key: rows for key, rows in read.items() if rows > sent.get(key, 0)}:
        raise Broken(
            f"{line.name or line.epochs}: {hop.reader} has read rows that {hop.sender} has not sent: {orphans}"
        )
    if aligned and sent != read:
        raise Broken(f"{line.name} has rows in transit from {hop.sender} to {hop.reader}: {sent}, {read}")


def _state(store: Store, operator: str, epoch: int) -> dict[str, tuple[int, int]]:
    snapshot = store.log.manifest(epoch).operators.get(operator) if epoch else None
    if snapshot is None or not snapshot.files:
        return {}
    rows = store.state(operator).read(epoch).to_pylist()
    if wrong := [row for row in rows if row["wrong"]]:
        raise Broken(f"the state of {operator} in epoch {epoch} has met numbers out of order: {wrong[:3]}")
    return {row["k"]: (row["count"], row["first"]) for row in rows}


class _Arriving(threading.Thread):
    """Writes a file of rows each second, while its context lasts."""

    def __init__(self, write: Callable[[], None]) -> None:
        super().__init__(name="rows", daemon=True)
        self._write_file = write
        self._over = threading.Event()

    def run(self) -> None:
        while not self._over.wait(1.0):
            self._write_file()

    def __enter__(self) -> None:
        self.start()

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self.join()


def _wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline_s = time.monotonic() + ENOUGH_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise Broken(f"not within {ENOUGH_S:.0f} s: {what}")
        time.sleep(0.2)
