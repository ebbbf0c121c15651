"""Explains an error condition: for `spark-ckpt explain` and the page of all errors.

An error's message says what happened, to which epoch, table and operator. Causes and cures are in
`spark_ckpt.explained.causes`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module

from spark_ckpt.errors import CkptError, ConfigInvalid
from spark_ckpt.explained.causes import CAUSES, ErrorCause

HOMES = (
    "spark_ckpt.errors",
    "spark_ckpt.api.elsewhere",
    "spark_ckpt.tasks.failures",
    "spark_ckpt.plan.stateless",
    "spark_ckpt.driver.query.failures",
)
"""Modules that define errors, the core first: the others load much, and only on demand."""

_FOREIGN = ErrorCause(
    "A connector or the program itself raised it: it is no error of spark_ckpt.",
    "Do what the last line of the message (`next:`) says, or what the connector's page says.",
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Explanation of one condition. `meaning` is the docstring of the error class."""

    condition: str
    name: str
    meaning: str
    cause: str
    cure: str
    retriable: bool
    exit_code: int

    @property
    def retry(self) -> str:
        """Reaction of a running job."""
        return "a running job retries" if self.retriable else "a running job does not retry"


def explanation_of(kind: type[CkptError]) -> Explanation:
    """Return the explanation of one error class. Without an entry in the causes, it is the docstring of the class."""
    told = CAUSES.get(kind.condition, _FOREIGN)
    meaning = " ".join((inspect.getdoc(kind) or "").split())
    name, retriable, code = kind.__name__, kind.retriable, kind.exit_code
    return Explanation(kind.condition, name, meaning, told.cause, told.cure, retriable, code)


def explained(condition: str) -> Explanation:
    """Return the explanation of a condition in the form of a message. Raises `ConfigInvalid` for an unknown one.

    Brackets, `CKPT_` and capitals may be left out.
    """
    wanted = condition.strip("[] \t").upper()
    wanted = wanted if wanted.startswith("CKPT_") else f"CKPT_{wanted}"
    # The other modules import PySpark, which takes longer than all the rest of the command.
    known: Mapping[str, type[CkptError]] = _defined_in(HOMES[0])
    if wanted not in known:
        known = conditions()
    if wanted in known:
        return explanation_of(known[wanted])
    near = get_close_matches(wanted, known, n=1)
    meant = f"did you mean {near[0]}?" if near else "`spark-ckpt explain` lists all conditions"
    raise ConfigInvalid(f"there is no condition '{condition}'", hint=meant)


def conditions() -> Mapping[str, type[CkptError]]:
    """Return every error class of spark_ckpt by its condition, in alphabetical order."""
    found = {condition: kind for home in HOMES for condition, kind in _defined_in(home).items()}
    return dict(sorted(found.items()))


def _defined_in(home: str) -> dict[str, type[CkptError]]:
    return {kind.condition: kind for kind in _errors_of(home) if "condition" in vars(kind) and kind is not CkptError}


def _errors_of(home: str) -> Iterator[type[CkptError]]:
    for value in vars(import_module(home)).values():
        if isinstance(value, type) and issubclass(value, CkptError) and value.__module__ == home:
            yield value
