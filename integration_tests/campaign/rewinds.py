"""Plain queries rewound, and the rewind undone, by a command that is killed at every step.

After each kill every query is tested for a start: none may be able to start, unless all or nothing is done. Then the same command
runs to its end, and the queries run with fixed code. The tables are judged from the input alone.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from integration_tests.campaign.trial import Results
from integration_tests.rewind.small_lake import ExportingLake, SmallLake, checkpoints, history
from integration_tests.rewind.small_spark import Refused
from spark_ckpt import failpoints
from spark_ckpt.errors import CkptError
from spark_ckpt.failpoints import Failpoint
from spark_rewind.applying import ApplySettings, apply, undo
from spark_rewind.declared import Declared
from spark_rewind.journal import read_plan
from spark_rewind.plan import RewindPlan
from spark_rewind.planning import RewindRequest, plan_rewind

POINTS = tuple(point.name for point in Failpoint if point.name.startswith("REWIND_"))
REPEATED = (
    "REWIND_FENCED",
    "REWIND_COPIED",
    "REWIND_TABLE_COMMITTED",
    "REWIND_SWAPPED",
    "REWIND_KEPT",
    "REWIND_FILE_MOVED",
    "REWIND_UNFENCED",
)
"""Points that are hit once per query or commit."""

NEVER_HIT = 0
"""Exit code of a command that survived, because the drawn moment came too late."""

_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(["integration_tests.campaign.rewinds"])


class Broken(AssertionError):
    """A promise was broken."""


@dataclass
class Trial:
    """One history, one plan. `verb`: the command to kill. `deaths`: failpoints, one for each kill."""

    root: Path
    seed: int
    verb: str
    deaths: tuple[str, ...]

    def __post_init__(self) -> None:
        exporting = self.seed % 2 == 1
        kind, steps = (ExportingLake, 20) if exporting else (SmallLake, 12)
        self.lake, good = history(self.root / "lake", self.seed, steps=steps, kind=kind)
        folders = [str(path) for path in checkpoints(self.lake)]
        declared = Declared.model_validate(self.lake.declared())
        self.plan = plan_rewind(RewindRequest(folders, f"ingest@{good}", [str(self.lake.root)], declared), 0)
        self.file = self.root / "plan.json"
        self.file.write_text(self.plan.model_dump_json())
        self.never = self.lake.moved_to(self.root / "never", broken=True)
        self.original = contents(self.lake)
        if self.verb == "undo":
            apply(self.plan, settings_for(self.plan))
        self.before = world(self.lake)

    def run(self) -> int:
        """Kill the command as often as drawn, check the state each time, then let it finish; return the number of kills."""
        died, seen = 0, []
        for death in self.deaths:
            code = carried_out(self.verb, self.file, death)
            if code == NEVER_HIT:
                break
            require(code == -signal.SIGKILL, f"the command ended with {code} instead of dying at {death}")
            died += 1
            seen.append((death, world(self.lake), startable(self.lake)))
        require(carried_out(self.verb, self.file, "") == 0, "the command failed after a death")
        after = world(self.lake)
        for death, there, able in seen:
            whole = there in (self.before, after)
            require(
                whole or not able, f"after a death at {death}, {able} can start, and it is neither as before nor done"
            )
        require(set(startable(self.lake)) == {path.name for path in checkpoints(self.lake)}, "a query stays fenced")
        self._judge()
        return died

    def _judge(self) -> None:
        left = [
            path.name
            for path in (self.lake.root / "checkpoints").iterdir()
            if "rewinding" in path.name or "undoing" in path.name
        ]
        require(not left, f"{left} is left over")
        if self.verb == "apply":
            self._judge_kept()
            mended = type(self.lake)(self.lake.root)
            mended.settle()
            compare(mended.held(), mended.wanted())
        else:
            for lake in (self.lake, self.never):
                lake.settle()
            compare(self.lake.held(), self.never.held())

    def _judge_kept(self) -> None:
        """Every replaced checkpoint is kept unchanged."""
        for path in (self.lake.root / "checkpoints").glob("*.before-rewind-*"):
            name = path.name.partition(".before-rewind-")[0]
            require(files_of(path) == self.original[name], f"what is kept of {name} is not what it was")


def settings_for(plan: RewindPlan) -> ApplySettings:
    return ApplySettings(lambda: None, 1_700_000_000_000, "spark-ckpt/campaign", [each.name for each in plan.queries])


def carried_out(verb: str, plan: Path, death: str) -> int:
    """Run the command in its own process; return its exit code, negative for a signal."""
    process = _SERVER.Process(target=_carry_out, args=(verb, plan, death))
    process.start()
    process.join(120)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise Broken("the command hangs")
    return process.exitcode


def _carry_out(verb: str, file: Path, death: str) -> None:
    failpoints.arm(death)
    plan = read_plan(file)
    try:
        (apply if verb == "apply" else undo)(plan, settings_for(plan))
    except CkptError as error:
        print(error, flush=True)
        raise SystemExit(error.exit_code) from None


def startable(lake: SmallLake) -> list[str]:
    """Queries that could be started now."""
    found = []
    for path in checkpoints(lake):
        try:
            lake.queries[path.name].start()
            found.append(path.name)
        except Refused:
            pass
    return found


World = Mapping[str, object]


def world(lake: SmallLake) -> World:
    """All that queries read, without fences: logs of the checkpoints, and versions of the tables. Hidden files do not count."""
    found: dict[str, object] = {name: table.newest() for name, table in lake.tables.items()}
    found |= {f"files of {folder.name}": shown_in(folder) for folder in lake.folders}
    for path in checkpoints(lake):
        logs = {
            each: text
            for each, text in files_of(path).items()
            if each.split("/")[0] in ("offsets", "commits", "sources")
        }
        found[path.name] = {
            each: text
            for each, text in logs.items()
            if not text.startswith(b"spark-ckpt rewind ") and not each.split("/")[-1].startswith(".")
        }
    return found


def shown_in(folder: Path) -> dict[str, bytes]:
    """All that readers read: the log, and files whose folders are not hidden."""
    there = {Path(each).parts: text for each, text in files_of(folder).items()}
    return {
        "/".join(parts): text
        for parts, text in there.items()
        if parts[0] == "_spark_metadata" or not parts[0].startswith((".", "_"))
    }


def contents(lake: SmallLake) -> dict[str, dict[str, bytes]]:
    return {path.name: files_of(path) for path in checkpoints(lake)}


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Broken(what)


def compare(held: Mapping[str, list[int]], wanted: Mapping[str, list[int]]) -> None:
    for name, ids in wanted.items():
        require(
            held[name] == ids,
            f"{name} holds {len(held[name])} rows, {len(set(ids) - set(held[name]))} of {len(ids)} are lost",
        )


def deaths(draw: Random, number: int) -> tuple[str, ...]:
    """Every failpoint in turn, at its first hits; every fourth at a random moment; a third has another kill in the recovery."""
    if number % 4 == 3:
        first = f"REWIND_PREPARING:kill:1:{draw.randint(1, 120)}"
    else:
        point = POINTS[(number - number // 4) % len(POINTS)]
        first = f"{point}:kill:{draw.randint(1, 3) if point in REPEATED else 1}"
    second = f"{draw.choice(POINTS)}:kill:{draw.randint(1, 3)}"
    return (first, second) if draw.random() < 1 / 3 else (first,)


def rewinds(folder: Path, trials: int, seed: int, results: Results) -> None:
    """Kill `apply` in two of three trials, and `undo` in the third."""
    draw = Random(seed)
    for number in range(trials):
        verb = "undo" if number % 3 == 2 else "apply"
        drawn = deaths(draw, number)
        results.add(*_tried(folder / str(number), draw.randrange(10**6), verb, drawn))


def _tried(root: Path, seed: int, verb: str, drawn: tuple[str, ...]) -> tuple[str, Mapping[str, float], str]:
    kind = f"{verb}, {'random moment' if drawn[0].count(':') > 2 else drawn[0].partition(':')[0]}"
    root.mkdir(parents=True)
    try:
        died = Trial(root, seed, verb, drawn).run()
    except (AssertionError, RuntimeError, CkptError) as error:
        return kind, {}, f"seed {seed}, {drawn}: {error}"
    for path in _files(root):
        path.unlink()
    return kind, {"deaths": died}, ""


def _files(root: Path) -> Iterator[Path]:
    yield from [path for path in root.rglob("*") if path.is_file() or path.is_symlink()]
