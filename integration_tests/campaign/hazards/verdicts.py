"""The judge of one trial: the output is exact, or a typed error stops the job and its recovery advice leads to the exact output.

The judge follows the advice: it searches the error's text for an action of the scene, does it, and starts the job again.
"""

from __future__ import annotations

import random
import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum

from spark_ckpt.errors import CkptError

Rows = Counter[tuple[object, ...]]
MOST_ACTIONS = 3
"""Advice that needs more actions in a row, each named by the previous error, counts as advice that does not work."""
_RAW = re.compile(r"\b[\w.]+(?:Error|Exception)\b|\bpyarrow\.lib\.")
"""A library's own exception, which does not help an operator."""
_UNNAMED = ("CKPT_RUN_FAILED", "CKPT_QUERY_FAILED")


class Verdict(Enum):
    """The result of a trial. `RIGHT` and `RECOVERED` keep the promise."""

    RIGHT = "right"
    RECOVERED = "recovered"
    WRONG = "different"
    UNTYPED = "untyped"
    NO_WAY = "advice fails"


class Unnoticed(Exception):
    """A command on the damaged store answers that all is intact."""


@dataclass(frozen=True)
class Way:
    """One action that recovery advice may name.

    `says`: words of the error's text, as a regular expression. `follow` does the action and runs the job again; it raises the
    errors of that run.
    """

    name: str
    says: str
    follow: Callable[[CkptError, re.Match[str]], None]

    def named_by(self, error: CkptError) -> re.Match[str] | None:
        """The place where the error's text names the action."""
        return re.search(self.says, " ".join(str(error).split()), re.IGNORECASE)


class Scene(ABC):
    """One trial: a job, an event, and the output that the job must have."""

    kind: str

    @abstractmethod
    def act(self) -> None:
        """Run the job and let the event happen. Raises the job's error."""

    @abstractmethod
    def wanted(self) -> Rows:
        """The exact output."""

    def required(self) -> Rows:
        """The least output, if the advice leaves a choice. Otherwise `wanted`."""
        return self.wanted()

    def tolerated(self) -> Rows:
        """Rows that readers may see while the job is refused."""
        return self.wanted()

    @abstractmethod
    def visible(self) -> Rows:
        """The rows that readers see now."""

    @abstractmethod
    def ways(self) -> Sequence[Way]:
        """Actions of this scene, in the order of their effort."""

    def close(self) -> None:  # noqa: B027 - few scenes change anything outside of their folder
        """Undo the scene's changes outside of its folder."""


@dataclass(frozen=True)
class Judgement:
    """A verdict, the reason if the promise is broken, the counts of rows, and the actions that were followed."""

    verdict: Verdict
    why: str = ""
    counts: dict[str, float] = field(default_factory=dict)
    followed: tuple[str, ...] = ()

    @property
    def figures(self) -> dict[str, float]:
        """Figures for the results file."""
        return {self.verdict.value: 1, **self.counts}


def judged(scene: Scene, draw: random.Random) -> Judgement:
    """Play the scene and follow its errors' advice. `draw` chooses between actions if an error names several."""
    followed: list[str] = []
    conditions: list[str] = []
    error = raised_by(scene.act)
    while error is not None:
        if isinstance(error, Unnoticed):
            return Judgement(Verdict.WRONG, str(error), followed=tuple(followed))
        if why := untyped(error):
            return Judgement(Verdict.UNTYPED, _after(followed, why), followed=tuple(followed))
        assert isinstance(error, CkptError)
        conditions.append(error.condition)
        if why := _wrong_rows(scene):
            return Judgement(Verdict.WRONG, _after(followed, f"{why}; refused: {error}"), followed=tuple(followed))
        named = [(way, found) for way in scene.ways() if (found := way.named_by(error)) is not None]
        if not named or len(followed) == MOST_ACTIONS:
            return Judgement(
                Verdict.NO_WAY, _after(followed, f"no known action is named in: {error}"), followed=tuple(followed)
            )
        way, found = draw.choice(named)
        followed.append(f"{conditions[-1]}: {way.name}")
        error = raised_by(_following(way, error, found))
    return _compared(scene, tuple(followed))


def _following(way: Way, error: CkptError, found: re.Match[str]) -> Callable[[], None]:
    return lambda: way.follow(error, found)


def untyped(error: BaseException) -> str:
    """The reason why an error does not help an operator; empty if it is typed."""
    if not isinstance(error, CkptError):
        return f"{type(error).__name__}: {error}"[:1500]
    if error.condition in _UNNAMED and _RAW.search(error.what):
        return f"a library's exception inside: {error}"[:1500]
    return ""


def raised_by(act: Callable[[], None]) -> BaseException | None:
    """The exception that ends `act`."""
    try:
        act()
    except Exception as error:  # noqa: BLE001 - an exception of any kind is the result of the trial
        return error
    return None


def _wrong_rows(scene: Scene) -> str:
    """Rows that are visible although the job is refused."""
    try:
        found = scene.visible()
    except Exception as error:  # noqa: BLE001
        return f"the output cannot be read: {type(error).__name__}: {error}"[:500]
    extra = found - scene.tolerated()
    return f"{extra.total()} rows are visible that must not be: {sorted(extra, key=str)[:3]}" if extra else ""


def _compared(scene: Scene, followed: tuple[str, ...]) -> Judgement:
    try:
        found = scene.visible()
    except Exception as error:  # noqa: BLE001
        why = f"the output cannot be read: {type(error).__name__}: {error}"[:1000]
        return Judgement(Verdict.WRONG, _after(followed, why), followed=followed)
    wanted = scene.wanted()
    lost, extra = scene.required() - found, found - wanted
    twice = sum(times for row, times in extra.items() if row in wanted)
    counts: dict[str, float] = {"records": wanted.total()}
    if not lost and not extra:
        return Judgement(Verdict.RECOVERED if followed else Verdict.RIGHT, "", counts, followed)
    counts |= {"lost": lost.total(), "duplicated": twice, "wrong": extra.total() - twice}
    why = f"lost {sorted(lost.items(), key=str)[:4]}, too many {sorted(extra.items(), key=str)[:4]}"
    return Judgement(Verdict.WRONG, _after(followed, why), counts, followed)


def _after(followed: Sequence[str], why: str) -> str:
    return f"after {'; '.join(followed)}: {why}" if followed else why
