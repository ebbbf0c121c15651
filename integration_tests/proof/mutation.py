"""Try a random sample of mutants with mutmut, in a copy of the tree; needs the extra `mutation`.

mutmut keeps all mutants of a module in one file, records the tests that reach each function, and tries each mutant in a fork of a
server that has loaded all modules and run nothing. A process that has used Delta tables and then forks fails on them, so every
mutant of the store would count as killed. Here a mutant gets the fastest tests that reach its function, for a limited time; a
survivor is tried once more with more of them. The folder is kept, and another run in it continues the last one.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from integration_tests.proof.mutants import PACKAGES, Mutant, added, digest_of, package_of, read, write
from integration_tests.survival.process import ROOT

MUTATED = ("spark_ckpt", "checkpoint_protocols")
ALSO = ("spark_rewind", "checkpoint_lab", "connectors", "examples", "docs", "specs")
COPIED = (*MUTATED, *ALSO, "tests")
SLOW = (
    "tests/coordination/test_branch_coverage.py",
    "tests/protocol/test_forcing.py",
    "tests/protocol/test_interval_graph.py",
    "tests/protocol/test_logging_schedules.py",
    "tests/protocol/test_many_schedules.py",
    "tests/protocol/test_recovery_line.py::test_it_agrees_with_vector_clocks",
    "tests/protocol/test_recovery_line.py::test_it_is_the_greatest_of_all_usable_lines",
    "tests/protocol/test_scopes_with_failures.py",
    "tests/simulator/test_determinism.py",
    "tests/simulator/test_drivers_world.py",
    "tests/simulator/test_exploration.py",
    "tests/simulator/test_reduction.py",
    "tests/simulator/test_spark_world.py::test_no_schedule_is_condemned_and_every_kind_of_fault_happens",
    "tests/simulator/test_spark_world.py::test_no_long_or_eager_schedule_of_a_job_is_condemned",
    "tests/store/test_crash_at_every_durable_step.py",
    "tests/store/test_damage_is_never_an_answer.py::test_a_damaged_log_file_is_reported_or_changes_nothing",
    "tests/store/test_damaged_logs_say_so.py::test_no_damage_of_any_file_of_the_log_changes_its_answer",
    "tests/store/test_epochs_are_committed_once.py::test_many_writers_lose_nothing_and_share_one_order",
    "tests/store/test_killed_drivers.py",
    "tests/store/test_long_lives.py",
    "tests/store/test_object_store.py",
    "tests/store/test_retention.py::TestNoKeptEpochLosesAFile",
    "tests/store/test_retention.py::test_logs_are_trimmed_and_savepoints_keep_their_version",
)
"""Tests of at least three seconds each."""
BROKEN = ("tests/store/test_full_and_failing_disks.py",)
"""Tests in which mutmut 3.8 loses its own context variable, even without a mutant."""
PLANTED = ("planted", "_bugs", "oracles_see", "wrong_surroundings", "literal_variant", "is_caught")
"""Tests of planted bugs: a mutant may hide the bug and fail them, which is no evidence about the mutant."""
OF_THE_TEXT = ("imports_nothing", "every_handler_is_reached", "sparks_host_sends", "interface_width")
"""Tests that read the source, which mutmut has rewritten."""
SETTINGS = """[tool.mutmut]
source_paths = {sources}
only_mutate = {mutated}
also_copy = {also}
pytest_add_cli_args = {arguments}
pytest_add_cli_args_test_selection = {tests}
track_dependencies = false
use_git_change_detection = false
timeout_multiplier = 15.0
timeout_constant = 30.0
process_isolation = "forkserver"

[tool.pytest.ini_options]
addopts = "--strict-markers --strict-config"
xfail_strict = true
timeout = 20
markers = ["spark: -", "kafka: -", "kill: -", "long: -"]
"""
OUTCOMES = {0: "survived", 5: "no tests", 33: "no tests", **dict.fromkeys((-24, -9, 24, 36, 152, 255), "timeout")}
"""Outcomes by the exit code of the tests; every other code is a kill. A test that hangs fails by pytest's own timeout: mutmut's
timeout over all tests only shows that the machine is slow."""


STATS = Path("mutants/mutmut-stats.json")
MEASURED = Path("measured.json")
"""The tests of each function and their durations, of all tests; mutmut reads its part for a round from `STATS`."""
REACHES = "tests_by_mangled_function_name"
TAKES = "duration_by_test"


def try_sample(folder: Path, size: int, seed: int, rounds: Sequence[float], again: bool = False) -> list[Mutant]:
    """Draw a sample, try mutants without a result (`again`: also survivors), and record the results; return all of the sample.

    Rounds: seconds of tests for each mutant; a survivor is also tried in the next round. Raises `CalledProcessError` if a test
    fails without a mutant.
    """
    prepare(folder)
    names = list(everything(folder))
    chosen, results = drawn(names, size, seed), read()
    samples = results.samples | {str(seed): max(size, results.samples.get(str(seed), 0))}
    write(replace(results, of=by_package(names), samples=samples))
    known = {each.name: each for each in results.kept()}
    left = [name for name in chosen if name not in known or (again and not known[name].dead)]
    found: dict[str, Mutant] = {}
    for seconds in rounds:
        found |= {each.name: each for each in tried(folder, left, seconds)}
        left = [name for name in left if not found[name].dead]
    results = read()
    write(replace(results, tried=tuple(added(results.tried, found.values()))))
    return [each for each in read().kept() if each.name in set(chosen)]


def by_package(names: Iterable[str]) -> dict[str, int]:
    """Number of mutants by package."""
    return dict(Counter(package_of(name) for name in names))


def prepare(folder: Path) -> None:
    """Copy the present tree, make its mutants, and measure the tests that reach each function; takes minutes in a new folder."""
    for part in COPIED:
        for copy in (folder / part, *([folder / "mutants" / part] if part not in MUTATED else [])):
            shutil.rmtree(copy, ignore_errors=True)
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "pyproject.toml").write_text(settings())
    if (folder / MEASURED).exists():
        shutil.copy(folder / MEASURED, folder / STATS)
    _mutmut(folder, ["spark_ckpt.coordination.markers.*"])
    shutil.copy(folder / STATS, folder / MEASURED)


def settings() -> str:
    """Settings for mutmut, and for pytest without this project's own options."""
    names = " and ".join(f"not {each}" for each in (*PLANTED, *OF_THE_TEXT))
    arguments = ["-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not long and not spark and not kafka", "-k", names]
    tests = [f"tests/{name}" for name in ("protocol", "coordination", "store", "simulator")] + [
        f"--deselect={each}" for each in (*SLOW, *BROKEN)
    ]
    return SETTINGS.format(
        sources=json.dumps(MUTATED),
        also=json.dumps(ALSO),
        mutated=json.dumps([f"{package.replace('.', '/')}/*" for package in PACKAGES.values()]),
        arguments=json.dumps(arguments),
        tests=json.dumps(tests),
    )


def everything(folder: Path) -> Iterator[str]:
    """Names of all mutants."""
    for file in sorted((folder / "mutants").rglob("*.meta")):
        yield from json.loads(file.read_text())["exit_code_by_key"]


def drawn(names: Iterable[str], size: int, seed: int) -> list[str]:
    """Each package's share. A larger sample contains the smaller one; a changed function leaves other draws unchanged."""
    everybody = sorted(names, key=lambda name: _rank(name, seed))
    chosen: list[str] = []
    for package, number in by_package(everybody).items():
        of_it = [name for name in everybody if package_of(name) == package]
        chosen += of_it[: round(size * number / len(everybody))]
    return chosen


def _rank(name: str, seed: int) -> str:
    return hashlib.sha256(f"{seed} {digest_of(name)} {name}".encode()).hexdigest()


def tried(folder: Path, names: Sequence[str], seconds: float) -> list[Mutant]:
    """Try each mutant with the fastest tests that reach it, for `seconds` seconds."""
    if not names:
        return []
    stats = json.loads((folder / MEASURED).read_text())
    stats[REACHES] = {name: fastest(tests, stats[TAKES], seconds) for name, tests in stats[REACHES].items()}
    (folder / STATS).write_text(json.dumps(stats))
    _mutmut(folder, names)
    return list(_outcomes(folder, names))


def fastest(tests: Iterable[str], takes: Mapping[str, float], seconds: float) -> list[str]:
    """As many tests as fit in the time, each at most a tenth of it; at least one."""
    left, chosen = seconds, list[str]()
    for test in sorted(tests, key=lambda name: (takes.get(name, 0.0), name)):
        taken = takes.get(test, 0.0)
        left -= taken
        if chosen and (left < 0 or taken > seconds / 10):
            break
        chosen.append(test)
    return chosen


def _outcomes(folder: Path, names: Sequence[str]) -> Iterator[Mutant]:
    codes = {}
    for file in (folder / "mutants").rglob("*.meta"):
        codes.update(json.loads(file.read_text())["exit_code_by_key"])
    for name in names:
        outcome = OUTCOMES.get(codes[name], "killed")
        change = "" if outcome == "killed" else _change(folder, name)
        yield Mutant(name, digest_of(name) or "", outcome, change)


def _change(folder: Path, name: str) -> str:
    shown = _run(folder, "show", name).splitlines()
    return "\n".join(line for line in shown if line[:1] in "+-" and line[:3] not in ("+++", "---"))


def _mutmut(folder: Path, names: Sequence[str]) -> None:
    _run(folder, "run", *names, "--max-children", "2")


def _run(folder: Path, *arguments: str) -> str:
    """Fix the random draws of tests and keep no database of examples, which `CI` tells hypothesis."""
    path = os.pathsep.join(str(folder / "mutants" / part) for part in (".", "connectors"))
    environment = {
        **os.environ,
        "CI": "true",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONPATH": path,
    }
    command = [str(Path(sys.executable).with_name("mutmut")), *arguments]
    return subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout
