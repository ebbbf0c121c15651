"""Mutants of many modules, a slice at a time: what was tried is kept, so that the score adds up over runs.

`mutants.jsonl` has a line for each mutant that was tried: `module`, `source` (a digest of the module, so that results of an
older text do not count), `operator` and `occurrence` (which mutant), `line`, `outcome` (`killed`, `survived`,
`incompetent`), and for a survivor that changes nothing `verdict`, written by hand: why it is equivalent.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic

from integration_tests.proof.mutants import copy_to, settings_of
from integration_tests.survival.process import ROOT

RESULTS = Path(__file__).with_name("mutants.jsonl")
PACKAGES = ("protocol", "host", "store")
SURVIVED = "survived"


@dataclass(frozen=True)
class Mutant:
    """One that was tried."""

    module: str
    source: str
    operator: str
    occurrence: int
    line: int
    outcome: str
    verdict: str | None = None

    @property
    def name(self) -> tuple[str, str, int]:
        """Which one of its module's it is."""
        return self.module, self.operator, self.occurrence


@dataclass(frozen=True)
class Score:
    """Of all that were tried on the present text of their modules."""

    tried: int
    killed: int
    equivalent: int
    survivors: tuple[Mutant, ...]
    """Without a verdict."""

    @property
    def share(self) -> float:
        """Killed, of those that change something."""
        return self.killed / (self.tried - self.equivalent) if self.tried > self.equivalent else 1.0


def targets(root: Path = ROOT) -> dict[str, list[str]]:
    """Modules that have unit tests of their own name, and these."""
    found: dict[str, list[str]] = {}
    for package in PACKAGES:
        for module in sorted((root / "spark_ckpt" / package).rglob("*.py")):
            tests = root / "tests" / package / f"test_{module.stem}.py"
            if tests.exists():
                found[str(module.relative_to(root))] = [str(tests.relative_to(root))]
    return found


def digest_of(module: str, root: Path = ROOT) -> str:
    """Of the module's text."""
    return hashlib.sha256((root / module).read_bytes()).hexdigest()[:16]


def kept(results: Path = RESULTS, root: Path = ROOT) -> list[Mutant]:
    """Results for the present text of each module; a mutant that was tried again counts as it ended last."""
    lines = results.read_text().splitlines() if results.exists() else []
    found: dict[tuple[str, str, int], Mutant] = {}
    for line in lines:
        mutant = Mutant(**json.loads(line))
        if (root / mutant.module).exists() and mutant.source == digest_of(mutant.module, root):
            found[mutant.name] = mutant
    return list(found.values())


def score(tried: Iterable[Mutant]) -> Score:
    """All of them together."""
    everybody = list(tried)
    alive = [each for each in everybody if each.outcome == SURVIVED]
    equivalent = [each for each in alive if each.verdict]
    return Score(
        len(everybody),
        len(everybody) - len(alive),
        len(equivalent),
        tuple(each for each in alive if not each.verdict),
    )


def run(seconds: float, chosen: Mapping[str, Sequence[str]], results: Path = RESULTS) -> None:
    """Try what has no result yet, module by module, for so long.

    Raises `CalledProcessError` if a module's tests fail without a mutant.
    """
    until = monotonic() + seconds
    for module, tests in chosen.items():
        done = {each.name for each in kept(results) if each.module == module}
        left = until - monotonic()
        if left <= 0:
            return
        for mutant in _slice(module, tests, done, left):
            with results.open("a") as file:
                file.write(json.dumps(asdict(mutant)) + "\n")


def _slice(module: str, tests: Sequence[str], done: set[tuple[str, str, int]], seconds: float) -> Iterator[Mutant]:
    source = digest_of(module)
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_to(tree)
        (tree / "mutants.toml").write_text(settings_of(tree, [module], tests))
        _cosmic_ray(tree, "init", "mutants.toml", "all.sqlite")
        if not _skip(tree / "all.sqlite", module, done):
            return
        _cosmic_ray(tree, "baseline", "mutants.toml")
        _exec(tree, seconds)
        for work, result in map(json.loads, _cosmic_ray(tree, "dump", "all.sqlite").splitlines()):
            if result is not None and result["worker_outcome"] != "skipped":
                yield _mutant(module, source, work["mutations"][0], result["test_outcome"])


def _mutant(module: str, source: str, mutation: Mapping[str, object], outcome: str) -> Mutant:
    start = mutation["start_pos"]
    assert isinstance(start, Sequence)
    operator = str(mutation["operator_name"]).removeprefix("core/")
    return Mutant(module, source, operator, int(str(mutation["occurrence"])), int(start[0]), outcome)


def _skip(session: Path, module: str, done: set[tuple[str, str, int]]) -> int:
    """Mark what has a result, and what is in an annotation; how many are left."""
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    annotations = list(annotations_of((ROOT / module).read_text()))
    with use_db(str(session), WorkDB.Mode.open) as database:
        for item in database.pending_work_items:
            mutation = item.mutations[0]
            place = (mutation.start_pos[0], mutation.start_pos[1])
            known = (module, mutation.operator_name.removeprefix("core/"), mutation.occurrence) in done
            if known or any(first <= place < last for first, last in annotations):
                database.set_result(item.job_id, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
        return len(list(database.pending_work_items))


Place = tuple[int, int]
"""Line and column."""


def annotations_of(source: str) -> Iterator[tuple[Place, Place]]:
    """Where annotations begin and end: every module here postpones them, so nothing evaluates what a mutant makes of them."""
    for node in ast.walk(ast.parse(source)):
        for found in (getattr(node, "annotation", None), getattr(node, "returns", None)):
            if isinstance(found, ast.expr):
                yield (found.lineno, found.col_offset), (found.end_lineno or 0, found.end_col_offset or 0)


def _exec(tree: Path, seconds: float) -> None:
    """As many as there is time for; what runs then is killed with its tests, and has no result."""
    process = subprocess.Popen([_command(), "exec", "mutants.toml", "all.sqlite"], cwd=tree, start_new_session=True)
    with suppress(subprocess.TimeoutExpired):
        process.wait(seconds)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _cosmic_ray(tree: Path, *arguments: str) -> str:
    return subprocess.run([_command(), *arguments], cwd=tree, capture_output=True, text=True, check=True).stdout


def _command() -> str:
    return str(Path(sys.executable).with_name("cosmic-ray"))
