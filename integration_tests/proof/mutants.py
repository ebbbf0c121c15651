"""Results of mutants of protocols, coordination and store: they add up over runs, and count only for the code that was mutated.

`mutants.json` has a line for each mutant that was tried. `verdict` and `why` are written by hand for mutants that survived at
first: `equivalent` (no visible difference), `text` (only the words of a message differ), `hole` (killed since, by the test that
`why` names) or `open`. `python -m integration_tests.proof mutants` tries more.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from integration_tests.survival.process import ROOT

RESULTS = Path(__file__).with_name("mutants.json")
PACKAGES = {
    "protocols": "checkpoint_protocols",
    "coordination": "spark_ckpt.coordination",
    "epochs": "spark_ckpt.epochs",
    "store": "spark_ckpt.store",
}
"""Mutated packages, by their names on the page."""
VERDICTS = ("equivalent", "text", "hole", "open")
Z = 1.96
"""Quantile of an interval that contains the true share in 95 of 100 samples."""


@dataclass(frozen=True)
class Mutant:
    """A mutant that was tried."""

    name: str
    """Its module, its function and its number there, as mutmut writes them."""
    function: str
    """Digest of the function's code, without docstrings and comments."""
    outcome: str
    """`killed`, `survived`, `timeout`: the time was too short, `no tests`: no test reaches the function."""
    change: str = ""
    """Lines that differ; only of mutants that were not killed at once."""
    verdict: str | None = None
    why: str = ""

    @property
    def package(self) -> str:
        """Name in `PACKAGES` of its package."""
        return package_of(self.name)

    @property
    def dead(self) -> bool:
        """True if a test failed."""
        return self.outcome == "killed"


@dataclass(frozen=True)
class Score:
    """Score of some mutants."""

    tried: int
    dead: int
    verdicts: dict[str, int]

    def share(self, *without: str, first: bool = False) -> tuple[float, float, float]:
        """Killed share of the mutants without `equivalent` ones and these verdicts, its interval; `first`: before new tests."""
        of = self.tried - sum(self.verdicts[name] for name in ("equivalent", *without))
        return interval(self.dead - self.verdicts["hole"] * first, of)


def interval(hits: int, of: int) -> tuple[float, float, float]:
    """A share and both ends of Wilson's interval for it, 95 percent."""
    if not of:
        return 1.0, 0.0, 1.0
    share = hits / of
    middle = (share + Z**2 / (2 * of)) / (1 + Z**2 / of)
    half = Z / (1 + Z**2 / of) * (share * (1 - share) / of + Z**2 / (4 * of**2)) ** 0.5
    return share, middle - half, middle + half


def score(tried: Iterable[Mutant]) -> Score:
    """Score of all mutants together. A survivor without a verdict is `open`."""
    everybody = list(tried)
    verdicts = [each.verdict or "open" for each in everybody if each.verdict or not each.dead]
    return Score(
        len(everybody), sum(each.dead for each in everybody), {name: verdicts.count(name) for name in VERDICTS}
    )


@dataclass(frozen=True)
class Results:
    """All known results."""

    of: dict[str, int]
    """Number of mutants by package, when the last sample was drawn."""
    samples: dict[str, int]
    """The size of each sample, by its seed."""
    tried: tuple[Mutant, ...]

    def kept(self, root: Path = ROOT) -> list[Mutant]:
        """Results for the present text of each function."""
        return [each for each in self.tried if each.function == digest_of(each.name, root)]


def read(results: Path = RESULTS) -> Results:
    """Read the results; empty without a file."""
    if not results.exists():
        return Results({}, {}, ())
    found = json.loads(results.read_text())
    return Results(found["of"], found["samples"], tuple(Mutant(**each) for each in found["tried"]))


def write(known: Results, results: Path = RESULTS) -> None:
    """Write a line for each mutant, in the order of their names."""
    lines = [json.dumps(asdict(each), ensure_ascii=False) for each in sorted(known.tried, key=lambda each: each.name)]
    head = f'{{"of": {json.dumps(known.of)},\n"samples": {json.dumps(known.samples)},\n"tried": [\n'
    results.write_text(head + ",\n".join(lines) + "\n]}\n")


def added(old: Iterable[Mutant], new: Iterable[Mutant]) -> list[Mutant]:
    """Results including the new ones. A verdict stays as long as the function is the same."""
    known = {each.name: each for each in old}
    for each in new:
        before = known.get(each.name)
        same = before is not None and before.function == each.function
        known[each.name] = _again(before, each) if same and before else each
    return list(known.values())


def _again(before: Mutant, now: Mutant) -> Mutant:
    if before.dead and not before.verdict:
        return now
    verdict = "hole" if now.dead else before.verdict
    return replace(now, change=before.change, verdict=verdict, why=before.why)


def package_of(name: str) -> str:
    """Return the name in `PACKAGES` of a mutant's package."""
    return next(label for label, package in PACKAGES.items() if name.startswith(f"{package}."))


def digest_of(name: str, root: Path = ROOT) -> str | None:
    """Digest of the text of a mutant's function; None if the function no longer exists."""
    module, _, function = name.partition("__mutmut_")[0].rpartition(".")
    path = root / module.replace(".", "/")
    for found in (path.with_suffix(".py"), path / "__init__.py"):
        if found.exists():
            return _digests(found.read_text()).get(function)
    return None


@lru_cache(maxsize=256)
def _digests(source: str) -> dict[str, str]:
    return {
        name: hashlib.sha256(_code_of(node).encode()).hexdigest()[:12]
        for name, node in _functions(ast.parse(source).body)
    }


def _code_of(function: ast.FunctionDef) -> str:
    """Return the code of a function; a new docstring or comment changes no mutant."""
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(function)


def _functions(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Functions and methods by mutmut's names."""
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield f"x_{node.name}", node
        elif isinstance(node, ast.ClassDef):
            methods = (each for each in node.body if isinstance(each, ast.FunctionDef))
            yield from ((f"xǁ{node.name}ǁ{each.name}", each) for each in methods)
