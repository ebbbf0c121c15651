"""Everything there is to say about an error: for `spark-ckpt explain` and the page of all of them.

An error's message says what happened, to which epoch, table and operator. Causes and cures are in `spark_ckpt.explained.causes`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module

from spark_ckpt.errors import CkptError, ConfigInvalid
from spark_ckpt.explained.causes import CAUSES, Cause

HOMES = (
    "spark_ckpt.errors",
    "spark_ckpt.api.elsewhere",
    "spark_ckpt.tasks.failures",
    "spark_ckpt.plan.stateless",
    "spark_ckpt.driver.query_failures",
)
"""Modules that define errors, the tree first: the others load much, and only when they are asked for."""

_FOREIGN = Cause(
    "A connector or the program itself raised it: it is no error of spark_ckpt.",
    "Do what the last line of the message (`next:`) says, or what the connector's page says.",
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """One condition. `meaning` is the error class's own docstring."""

    condition: str
    name: str
    meaning: str
    cause: str
    cure: str
    retriable: bool
    exit_code: int

    @property
    def retry(self) -> str:
        """What a running job does about it."""
        return "a running job tries again by itself" if self.retriable else "not tried again"


def explanation_of(kind: type[CkptError]) -> Explanation:
    """Of one error class; of one that nobody has explained, what its docstring says."""
    told = CAUSES.get(kind.condition, _FOREIGN)
    meaning = " ".join((inspect.getdoc(kind) or "").split())
    name, retriable, code = kind.__name__, kind.retriable, kind.exit_code
    return Explanation(kind.condition, name, meaning, told.cause, told.cure, retriable, code)


def explained(condition: str) -> Explanation:
    """Of a condition as a message shows it; brackets, `CKPT_` and capitals may be left out. Raises `ConfigInvalid`."""
    wanted = condition.strip("[] \t").upper()
    wanted = wanted if wanted.startswith("CKPT_") else f"CKPT_{wanted}"
    known: Mapping[str, type[CkptError]] = _defined_in(HOMES[0])
    if wanted not in known:
        known = conditions()
    if wanted in known:
        return explanation_of(known[wanted])
    near = get_close_matches(wanted, known, n=1)
    meant = f"did you mean {near[0]}?" if near else "`spark-ckpt explain` lists all conditions"
    raise ConfigInvalid(f"there is no condition '{condition}'", hint=meant)


def conditions() -> Mapping[str, type[CkptError]]:
    """Every error class of spark_ckpt by its condition, in alphabetical order."""
    found = {condition: kind for home in HOMES for condition, kind in _defined_in(home).items()}
    return dict(sorted(found.items()))


def _defined_in(home: str) -> dict[str, type[CkptError]]:
    return {kind.condition: kind for kind in _errors_of(home) if "condition" in vars(kind) and kind is not CkptError}


def _errors_of(home: str) -> Iterator[type[CkptError]]:
    for value in vars(import_module(home)).values():
        if isinstance(value, type) and issubclass(value, CkptError) and value.__module__ == home:
            yield value
