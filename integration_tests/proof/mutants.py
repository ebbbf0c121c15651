"""Mutants of a module, each tried by the unit tests that keep it: cosmic-ray in a copy of the tree.

    python -m integration_tests.proof mutants spark_ckpt/protocol/transport.py tests/protocol/test_transport.py

Needs the extra `mutation`. A mutant takes as long as its tests take to start and to fail: a second or two.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from integration_tests.survival.process import ROOT

PARTS = ("spark_ckpt", "connectors", "tests")
SETTINGS = """[cosmic-ray]
module-path = {modules}
timeout = 30.0
test-command = "{command}"

[cosmic-ray.distributor]
name = "local"
"""


@dataclass(frozen=True)
class Mutants:
    """How many there were, and a line about each that no test killed."""

    tried: int
    survivors: tuple[str, ...]

    @property
    def score(self) -> float:
        """Share that was killed."""
        return 1 - len(self.survivors) / self.tried if self.tried else 1.0


def mutants(modules: Sequence[str], tests: Sequence[str]) -> Mutants:
    """Try all of them. Raises `CalledProcessError` if the tests fail without a mutant."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        copy_to(tree)
        (tree / "mutants.toml").write_text(settings_of(tree, modules, tests))
        _cosmic_ray(tree, "init", "mutants.toml", "all.sqlite")
        _cosmic_ray(tree, "baseline", "mutants.toml")
        _cosmic_ray(tree, "exec", "mutants.toml", "all.sqlite")
        return read(_cosmic_ray(tree, "dump", "all.sqlite"))


def copy_to(tree: Path) -> None:
    """What the tests need, in a folder where mutants may be made."""
    for part in PARTS:
        shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__"))


def settings_of(tree: Path, modules: Sequence[str], tests: Sequence[str]) -> str:
    """The tests run without this project's options: no workers, no timeouts of pytest's own."""
    pytest_of = f"{sys.executable} -m pytest -q -x -c /dev/null --rootdir {tree} -p no:cacheprovider"
    environment = f"env PYTHONPATH={tree}:{tree / 'connectors'} PYTHONDONTWRITEBYTECODE=1"
    return SETTINGS.format(modules=list(modules), command=f"{environment} {pytest_of} {' '.join(tests)}")


def read(dumped: str) -> Mutants:
    """What a session's dump says: a line of JSON for each mutant, its work and its result."""
    pairs = [json.loads(line) for line in dumped.splitlines()]
    done = [(work["mutations"][0], result) for work, result in pairs if result is not None]
    alive = [
        f"{mutation['module_path']}:{mutation['start_pos'][0]} {mutation['operator_name'].removeprefix('core/')}"
        for mutation, result in done
        if result["test_outcome"] == "survived"
    ]
    return Mutants(len(done), tuple(alive))


def _cosmic_ray(tree: Path, *arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("cosmic-ray")), *arguments]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True, check=True).stdout
