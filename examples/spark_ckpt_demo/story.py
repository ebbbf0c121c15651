"""The demo from beginning to end: prepare, kill, restart, prove, read state, restore."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import pandas as pd
import pyarrow as pa

from spark_ckpt.connector import Json
from spark_ckpt.epochs.recovery import plan
from spark_ckpt.errors import CkptError
from spark_ckpt.store.store import Store
from spark_ckpt.wording import counted
from spark_ckpt_demo import flights, oracle
from spark_ckpt_demo.display import Display
from spark_ckpt_demo.driver import OPERATOR
from spark_ckpt_demo.drivers import DemoJob, committed, run_and_kill, run_to_the_end
from spark_ckpt_demo.options import DemoOptions, working_folder
from spark_ckpt_demo.oracle import Comparison
from spark_ckpt_demo.places import DemoPlaces, FilesAndDelta
from spark_ckpt_demo.topics import KafkaTopics


@dataclass(frozen=True, slots=True)
class Killed:
    """The kill: the driver's process, committed epochs with their flights, and rows that a reader saw afterwards."""

    pid: int
    exit_code: int
    epochs: int
    flights: int
    visible: int


@dataclass(slots=True)
class DemoReport:
    """Results, filled while the demo runs."""

    flights: int = 0
    killed: Killed | None = None
    lives: int = 0
    restored_epoch: int = 0
    newest_epoch: int = 0
    checks: dict[str, Comparison] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    folder: str | None = None

    @property
    def exact(self) -> bool:
        """True if every check was made and holds."""
        return bool(self.checks) and all(check.exact for check in self.checks.values())

    def fields(self) -> dict[str, Json]:
        """Return the fields of `demo --json`."""
        checks: Mapping[str, Json] = {
            name: {**asdict(check), "exact": check.exact} for name, check in self.checks.items()
        }
        return {
            "exact": self.exact,
            "flights": self.flights,
            "killed": asdict(self.killed) if self.killed else None,
            "lives": self.lives,
            "newest_epoch": self.newest_epoch,
            "restored_epoch": self.restored_epoch,
            "checks": checks,
            "seconds": {name: round(value, 1) for name, value in self.seconds.items()},
            "folder": self.folder,
        }


_STATE = ["departures", "delay_minutes", "late_chain", "longest_late_chain"]


def whole_output(expected: pd.DataFrame, found: pd.DataFrame) -> Comparison:
    """Check that the output has every flight once, with the aircraft's right figures as of this flight."""
    return oracle.compare(expected, found)


def some_output(expected: pd.DataFrame, found: pd.DataFrame) -> Comparison:
    """Check that the output has a prefix of each aircraft's flights, each once, with the right figures."""
    # an aircraft's rows become visible in their order, so n visible ones have to be its first n
    count = expected["tailnum"].map(found["tailnum"].value_counts()).fillna(0)
    return oracle.compare(expected[expected["flights"] <= count], found)


def state(expected: pd.DataFrame, found: pd.DataFrame, flights: int) -> Comparison:
    """Check that each aircraft's state follows some prefix of its flights, and that the prefixes add up to `flights`.

    `found`: tailnum, flights and the state's other columns. A wrong sum counts as one row that differs.
    """
    reached = expected.merge(found[["tailnum", "flights"]], on=["tailnum", "flights"])
    result = oracle.compare(reached, found, ["tailnum", "flights"], _STATE)
    counted = int(found["flights"].sum())
    if counted == flights:
        return result
    why = f"different: {counted:,} flights in the state, {flights:,} in the epochs up to this one"
    return Comparison(
        result.expected,
        result.found,
        result.missing,
        result.duplicated,
        result.unexpected,
        result.different + 1,
        [*result.examples, why],
    )


def output_after(expected: pd.DataFrame, at_restore: pd.DataFrame, found: pd.DataFrame) -> Comparison:
    """Check that the output has exactly the flights after the restored state, each once, with the right figures."""
    done = expected["tailnum"].map(at_restore.set_index("tailnum")["flights"]).fillna(0)
    return oracle.compare(expected[expected["flights"] > done], found)


def frame(state_table: pa.Table) -> pd.DataFrame:
    """Return state as a frame; an empty state has the columns, too."""
    columns = ["tailnum", "flights", *_STATE]
    if not state_table.num_rows:
        return pd.DataFrame({name: pd.Series(dtype="object" if name == "tailnum" else "int64") for name in columns})
    found: pd.DataFrame = state_table.select(columns).to_pandas()
    return found


FIGURES, AGAIN = "figures", "figures-again"
AIRCRAFT = "N725MQ"
"""The aircraft with the most flights."""


@dataclass(frozen=True, slots=True)
class _Scene:
    """Objects that every part needs."""

    display: Display
    report: DemoReport
    job: DemoJob
    store: Store
    expected: pd.DataFrame

    @property
    def places(self) -> DemoPlaces:
        return self.job.places

    @contextmanager
    def part(self, name: str, title: str) -> Iterator[None]:
        """Run a part of the story and measure its time in seconds."""
        self.display.step(title)
        begun_s = time.monotonic()
        yield
        self.report.seconds[name] = time.monotonic() - begun_s

    def check(self, name: str, claim: str, comparison: Comparison) -> None:
        """Record a check and show its outcome."""
        self.report.checks[name] = comparison
        self.display.say(f"{'ok  ' if comparison.exact else 'WRONG'} {claim}: {comparison}")
        for example in comparison.examples:
            self.display.say(f"      {example}")


def play(options: DemoOptions, display: Display) -> DemoReport:
    """Run the demo.

    Removes only its own things: its topics always, a temporary folder unless an error or a wrong result makes it
    useful.
    """
    folder = working_folder(options.folder)
    report = DemoReport(folder=str(folder))
    begun_s = time.monotonic()
    try:
        _play_at(options, folder, display, report)
    # a folder that the user named stays in any case
    except BaseException as error:
        if options.folder is None and not _worth_keeping(folder, error):
            shutil.rmtree(folder, ignore_errors=True)
        elif isinstance(error, CkptError):
            error.context.setdefault("folder", folder)
        raise
    report.seconds["all"] = time.monotonic() - begun_s
    if options.folder is None and report.exact:
        shutil.rmtree(folder, ignore_errors=True)
        report.folder = None
    _conclude(display, report)
    return report


def _worth_keeping(folder: Path, error: BaseException) -> bool:
    # a user who stopped the demo (`KeyboardInterrupt`, `SystemExit`) needs no logs
    return isinstance(error, Exception) and any(folder.glob("driver-*.log"))


def _play_at(options: DemoOptions, folder: Path, display: Display, report: DemoReport) -> None:
    places: DemoPlaces = KafkaTopics(options.kafka) if options.kafka else FilesAndDelta(folder)
    try:
        _play(display, report, DemoJob(places, folder, options.progress), options.percent())
    finally:
        places.remove()


def _play(display: Display, report: DemoReport, job: DemoJob, percent: float) -> None:
    scene = _prepare(display, report, job)
    _first_life(scene, percent)
    _second_life(scene)
    epoch = _look_inside(scene)
    _go_back(scene, epoch)


def _prepare(display: Display, report: DemoReport, job: DemoJob) -> _Scene:
    display.step("Preparing: every flight that left New York City in 2013, in order of scheduled departure")
    begun_s = time.monotonic()
    rows = flights.load()
    report.flights = len(rows)
    with display.watching("flights written", len(rows)) as watch:
        job.places.fill(rows, lambda done: watch(done, ""))
    expected = oracle.expected()
    aircraft = rows["tailnum"].nunique()
    display.say(f"{len(rows):,} flights of {aircraft:,} aircraft; the job goes from {job.places.kind}")
    report.seconds["prepare"] = time.monotonic() - begun_s
    return _Scene(display, report, job, job.store(), expected)


def _first_life(scene: _Scene, percent: float) -> None:
    """Kill the driver; a reader then sees a prefix of every aircraft's flights."""
    total = scene.report.flights
    with scene.part("first life", "First run: the driver works until it is killed"):
        with scene.display.watching("flights in committed epochs", total) as watch:
            pid, code = run_and_kill(scene.job, scene.store, int(total * percent / 100), watch)
        log_state = scene.store.log.state()
        visible = scene.places.read(FIGURES)
        done = committed(log_state)
        scene.report.killed = Killed(pid, code, len(log_state.by_id), done, len(visible))
        taken = f"{counted(done, 'flight')} in {counted(len(log_state.by_id), 'epoch')}"
        scene.display.say(f"SIGKILL to driver {pid} and its JVM after {taken}")
        scene.display.say(f"a reader of the output sees {len(visible):,} flights")
        claim = "what was visible is the beginning of every aircraft's flights"
        scene.check("output after the kill", claim, some_output(scene.expected, visible))


def _second_life(scene: _Scene) -> None:
    with scene.part("second life", "Second run: started again, it continues from the last committed epoch"):
        with scene.display.watching("flights in committed epochs", scene.report.flights) as watch:
            run_to_the_end(scene.job, scene.store, "2", FIGURES, "latest", watch)
        found = scene.places.read(FIGURES)
        claim = "output against a recomputation with plain pandas"
        scene.check("output", claim, whole_output(scene.expected, found))


def _look_inside(scene: _Scene) -> int:
    """Show epochs and state. Return the epoch to restore."""
    with scene.part("look inside", "Looking inside: epochs, and state at any of them, without Spark"):
        log_state = scene.store.log.state()
        scene.display.epochs(scene.store.log)
        epoch = _earlier_epoch(scene)
        scene.report.newest_epoch, scene.report.restored_epoch = log_state.latest, epoch
        scene.display.say(f"Aircraft {AIRCRAFT} in epoch {epoch} and in the newest, {log_state.latest}:")
        _show_aircraft(scene, [epoch, log_state.latest])
        for name, number in (("earlier state", epoch), ("newest state", log_state.latest)):
            _check_state(scene, name, number)
    return epoch


def _earlier_epoch(scene: _Scene) -> int:
    """Return the epoch of the current lineage that is nearest to the middle of the year's flights."""
    log_state, half = scene.store.log.state(), scene.report.flights // 2
    sums = {brief.epoch: _flights_up_to(scene, brief.epoch) for brief in log_state.lineage() if brief.rows_in}
    return min(sums, key=lambda epoch: abs(sums[epoch] - half))


def _flights_up_to(scene: _Scene, epoch: int) -> int:
    return sum(brief.rows_in for brief in scene.store.log.state().lineage(epoch))


def _show_aircraft(scene: _Scene, epochs: list[int]) -> None:
    rows = []
    columns = ["flights", "departures", "delay_minutes", "late_chain", "longest_late_chain"]
    for epoch in epochs:
        found = frame(scene.store.state(OPERATOR).read(epoch))
        for state in found[found["tailnum"] == AIRCRAFT][columns].to_dict("records"):
            rows.append((epoch, *(int(state[name]) for name in columns)))
    scene.display.table(["epoch", *columns], rows)


def _check_state(scene: _Scene, name: str, epoch: int) -> None:
    found = frame(scene.store.state(OPERATOR).read(epoch))
    comparison = state(scene.expected, found, _flights_up_to(scene, epoch))
    scene.check(name, f"state of every aircraft in epoch {epoch}", comparison)


def _go_back(scene: _Scene, epoch: int) -> None:
    with scene.part("restore", f"Restore: the job is started with restore={epoch}"):
        before = frame(scene.store.state(OPERATOR).read(epoch))
        _explain(scene, epoch)
        with scene.display.watching("flights in committed epochs", scene.report.flights) as watch:
            # to a second output: a sink cannot retract rows that readers have seen
            run_to_the_end(scene.job, scene.store, "3", AGAIN, str(epoch), watch)
        found = scene.places.read(AGAIN)
        claim = f"'{AGAIN}' has exactly the flights after epoch {epoch}"
        scene.check("output after the restore", claim, output_after(scene.expected, before, found))
        log_state = scene.store.log.state()
        scene.report.lives = log_state.incarnation
        _check_state(scene, "state after the restore", log_state.latest)
        unchanged = whole_output(scene.expected, scene.places.read(FIGURES))
        scene.check("first output after the restore", f"'{FIGURES}' is as it was", unchanged)


def _explain(scene: _Scene, epoch: int) -> None:
    planned = plan(scene.store.log.state(), epoch, scene.store.log.manifest, scene.store.verify)
    again = sum(sink.again_rows for sink in planned.sinks)
    scene.display.say(
        f"{again:,} flights after epoch {epoch} are in '{FIGURES}' already, and a sink cannot retract rows that "
        f"readers have seen: the restored job writes the repeated rows to a second output, '{AGAIN}'"
    )


def _conclude(display: Display, report: DemoReport) -> None:
    killed = report.killed
    if not report.exact or killed is None:
        wrong = [name for name, check in report.checks.items() if not check.exact]
        display.step(f"WRONG: {', '.join(wrong)}. Everything is still in {report.folder}")
        return
    display.step("In short")
    display.say(
        f"The driver was killed with {killed.flights:,} of {report.flights:,} flights committed, and started again."
    )
    display.say("Every flight is in the output exactly once, every figure is right: plain pandas says the same.")
    display.say(
        f"Restoring epoch {report.restored_epoch} gave the same result again. {report.seconds['all']:.0f} s in all."
    )
    if report.folder:
        display.say(f"Look around: spark-ckpt list {report.folder}/store")
