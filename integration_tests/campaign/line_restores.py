"""Two running programs, restored to a line by a command that takes their leases, again and again. Some of the commands are killed
between two rows that they write. Then the same command runs to its end, and both programs continue.

After every ten restores both drain: their states must be those of a run without any restore, and every named line is judged.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from pyspark.sql import SparkSession

import spark_ckpt as ckpt
from integration_tests.campaign.line_kills import ROLES, Inbox, compare_state
from integration_tests.campaign.trial import Results
from integration_tests.edges.judged_lines import NoCut, judged_lines
from integration_tests.edges.two_programs import described, parsed
from integration_tests.spark import connected_session
from spark_ckpt.epochs.lines import Line, lines, through, to_target
from spark_ckpt.epochs.restore import RESTORING_LINE
from spark_ckpt.errors import CkptError, Fenced, RestoreUnderWay
from spark_ckpt.program_edges.line_stores import StoreLines, read_stores, restore_line
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.existing import existing_store

OF_A_PAIR, FILES_A_RESTORE, ENOUGH_S = 10, 2, 300.0
DEATHS = ("before the first row", "between the stores", "behind the last store", "between two releases")

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["integration_tests.campaign.line_restores"])


class Broken(AssertionError):
    """A promise was broken."""


def line_restores(folder: Path, trials: int, seed: int, results: Results) -> None:
    """Restore running programs `trials` times; three of eight commands are killed, and run again."""
    draw = Random(seed)
    for spark in connected_session():
        spark.sparkContext.setLogLevel("OFF")
        for begin in range(0, trials, OF_A_PAIR):
            _one_pair(spark, folder / f"pair-{begin}", min(OF_A_PAIR, trials - begin), draw, results)


@dataclass
class RunningPair:
    """Both programs in this process, and their stores."""

    spark: SparkSession
    root: Path
    runs: dict[str, ckpt.Run] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.inbox = Inbox(self.root / "in")

    def options(self, role: str, *more: str) -> argparse.Namespace:
        return parsed(
            [role, "--root", str(self.root), "--events", str(self.root / "events"), "--protocol", "index", *more]
        )

    def start(self) -> None:
        """Start both, the sender first, so that the reader finds its committed rows."""
        for role in ROLES:
            self.runs[role] = described(self.spark, self.options(role)).start()

    def stores(self) -> StoreLines:
        return read_stores([existing_store(str(self.root / role)) for role in ROLES])

    def check_progress(self) -> None:
        """Write new input until both programs have committed another epoch."""
        before = {role: self._last(role) for role in ROLES}
        for _ in range(FILES_A_RESTORE):
            self.inbox.write()
        self._wait(lambda: all(self._last(role) > before[role] for role in ROLES), "both programs commit an epoch more")

    def _last(self, role: str) -> int:
        return existing_store(str(self.root / role)).log.state().last

    def _wait(self, done: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + ENOUGH_S
        while not done():
            for role, run in self.runs.items():
                if run.awaitTermination("1ms"):
                    raise Broken(f"{role} ended before: {what}")
            if time.monotonic() > deadline_s:
                raise Broken(f"not within {ENOUGH_S:.0f} s: {what}")
            time.sleep(0.1)

    def check_fenced(self) -> None:
        """Wait until both runs end, and check their reasons."""
        for role, run in self.runs.items():
            try:
                if not run.awaitTermination(f"{ENOUGH_S:.0f} s"):
                    raise Broken(f"{role} still runs after the restore")
            except Fenced:
                continue
            except CkptError as error:
                # The reader may first find that its sender has undone rows that it has read.
                if error.condition != "CKPT_SOURCE_UNDONE":
                    raise Broken(f"{role} ends with {error}") from error
        self.runs = {}

    def drained(self) -> None:
        """Read all input, one program after the other."""
        for role in ROLES:
            described(self.spark, self.options(role)).start(availableNow=True).awaitTermination()


def _one_pair(spark: SparkSession, root: Path, restores: int, draw: Random, results: Results) -> None:
    pair = RunningPair(spark, root)
    pair.inbox.write()
    pair.drained()
    for _ in range(restores):
        pair.start()
        kind, why = "restored while they run", ""
        try:
            pair.check_progress()
            target = _drawn(pair.stores(), draw)
            death = draw.choice(DEATHS) if draw.random() < 3 / 8 else ""
            kind = f"killed {death}" if death else kind
            _restore(pair, target, death)
        except Broken as error:
            why = str(error)[:500]
            for run in pair.runs.values():
                run.stop()
        results.add(kind, why=why)
    pair.drained()
    _judge(pair, results)


def _restore(pair: RunningPair, target: str, death: str) -> None:
    line = to_target(pair.stores().programs, target)
    places = [str(pair.root / role) for role in ROLES]
    if death:
        code = carried_out(places, target, death)
        if code != -signal.SIGKILL:
            raise Broken(f"the restore to {target} ends with {code} instead of dying {death}")
        # The killed command has fenced the programs of these stores; the second command fences the others.
        _refused(pair, [role for role, place in zip(ROLES, places, strict=True) if restoring(place)])
    code = carried_out(places, target, "")
    if code != 0:
        raise Broken(f"the restore to {target} ends with {code}")
    pair.check_fenced()
    compare(pair.root, line)


def _refused(pair: RunningPair, half: list[str]) -> None:
    """Check that no program of an incomplete restore can start."""
    for role in half:
        try:
            run = described(pair.spark, pair.options(role)).start()
        except RestoreUnderWay:
            continue
        run.stop()
        raise Broken(f"{role} starts while the restore is incomplete")


def restoring(place: str) -> bool:
    """True if the store is in an incomplete restore of several stores."""
    known = existing_store(place).log.state()
    return not known.is_free and known.holder is not None and known.holder.name.startswith(RESTORING_LINE)


def compare(root: Path, line: Line) -> None:
    """Check that each store is at its epoch of the line."""
    for role in ROLES:
        at = existing_store(str(root / role)).log.state().latest
        if at != line.epochs[role]:
            raise Broken(f"{role} is at epoch {at}, the line has {line.epochs[role]}")


def _drawn(known: StoreLines, draw: Random) -> str:
    """A target that does not move while programs run: a named line, or an epoch of the sender that the reader has passed."""
    named = [line.name for line in lines(known.programs, 12) if line.number]
    orders, totals = (known.programs[role].epochs for role in ROLES)
    newest = totals[-1].epoch
    passed = [
        each.epoch for each in orders[-6:] if through(known.programs, "orders", each.epoch).epochs["totals"] < newest
    ]
    if passed and (not named or draw.random() < 0.3):
        return f"orders@{draw.choice(passed)}"
    return draw.choice(named)


def carried_out(places: list[str], target: str, death: str) -> int:
    """Run the command in its own process; return its exit code."""
    process = _SERVER.Process(target=_command, args=(places, target, death))
    process.start()
    process.join(ENOUGH_S)
    return process.exitcode if process.exitcode is not None else 1


def _command(places: list[str], target: str, death: str) -> None:
    """Restore the stores, and die at the drawn row."""
    if death:
        _arm(death)
    known = read_stores([existing_store(place) for place in places])
    restore_line(known, to_target(known.programs, target), target, fence=True)


def _arm(death: str) -> None:
    begin, release, hits = EpochLog.begin_incarnation, EpochLog.release, Counter[str]()

    def begun(self: EpochLog, *arguments: object, **named: object) -> object:
        _die_if(death == DEATHS[0])
        found = begin(self, *arguments, **named)  # type: ignore[arg-type]
        hits["begun"] += 1
        _die_if(death == DEATHS[1] and hits["begun"] == 1)
        _die_if(death == DEATHS[2] and hits["begun"] == len(ROLES))
        return found

    def released(self: EpochLog, *arguments: object, **named: object) -> None:
        release(self, *arguments, **named)  # type: ignore[arg-type]
        hits["released"] += 1
        # the first of these rows releases no lease: it says that all stores are restored
        _die_if(death == DEATHS[3] and hits["released"] == 2)

    EpochLog.begin_incarnation = begun  # type: ignore[method-assign, assignment]
    EpochLog.release = released  # type: ignore[method-assign, assignment]


def _die_if(it_is_time: bool) -> None:
    if it_is_time:
        os.kill(os.getpid(), signal.SIGKILL)


def _judge(pair: RunningPair, results: Results) -> None:
    compare_state(pair.root, pair.inbox.files, "rows compared after restores", results)
    try:
        found = judged_lines(pair.root / "orders", pair.root / "totals")
    except NoCut as error:
        results.add("lines judged after restores", {"wrong": 1}, str(error)[:500])
        return
    results.add("lines judged after restores", {"lines": found, "wrong": 0})
