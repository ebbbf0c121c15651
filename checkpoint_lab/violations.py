"""Verdicts of the oracles: one error class per oracle (section 1 of the recovery literature's common model)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from checkpoint_lab.world import Choice


class Violation(AssertionError):
    """An oracle's verdict. The schedule adds `seed` and `trace`, with which it can be seen again."""

    ORACLE: ClassVar[str] = "O?"

    def __init__(self, what: str, processes: Sequence[str] = (), messages: Sequence[str] = ()) -> None:
        self.what = what
        self.processes = tuple(processes)
        self.messages = tuple(messages)
        self.seed: int | None = None
        self.trace: tuple[Choice, ...] = ()
        super().__init__(f"{self.ORACLE}: {what}")


class Orphan(Violation):
    """A message is received and its send is undone."""

    ORACLE = "O1"


class Lost(Violation):
    """A message in transit across a line is nowhere any more."""

    ORACLE = "O2"


class WrongEffect(Violation):
    """The effect is not that of a run without failures."""

    ORACLE = "O3"


class NotMaximal(Violation):
    """A usable line that undoes less was not taken."""

    ORACLE = "O4"


class LineMovedBack(Violation):
    """A committed line was undone."""

    ORACLE = "O5"


class NotDurable(Violation):
    """Something was announced before it was durable."""

    ORACLE = "O6"


class Incomplete(Violation):
    """A checkpoint was called complete without everybody's record."""

    ORACLE = "O7"


class ReusedId(Violation):
    """A number was used twice or went backwards."""

    ORACLE = "O8"


class StaleDelivery(Violation):
    """A message was delivered although its send was undone."""

    ORACLE = "O9"


class NoEnd(Violation):
    """Without faults and under fair scheduling something remains open."""

    ORACLE = "O10"


class TooEarly(Violation):
    """Output was shown that can still be undone."""

    ORACLE = "O11"


class ErasedTooEarly(Violation):
    """A record was erased that the next failure needs."""

    ORACLE = "O12"


class Acausal(Violation):
    """A cut of full vector clocks is not closed under happened-before."""

    ORACLE = "O13"


class ShownTwice(Violation):
    """A sink showed a row again."""

    ORACLE = "O14"


class ShownOutOfOrder(Violation):
    """A sink showed a row before one that comes before it."""

    ORACLE = "O15"


class WrongOutput(Violation):
    """The inputs demand a row that is never shown, or somebody showed what nobody asked for."""

    ORACLE = "O16"


class NeverErased(Violation):
    """A record stays that no recovery can need any more."""

    ORACLE = "O17"


class NotFenced(Violation):
    """A life that has been replaced still wrote."""

    ORACLE = "P4"


BY_ORACLE: dict[str, type[Violation]] = {
    each.ORACLE: each
    for each in (
        Orphan,
        Lost,
        WrongEffect,
        NotMaximal,
        LineMovedBack,
        NotDurable,
        Incomplete,
        ReusedId,
        StaleDelivery,
        NoEnd,
        TooEarly,
        ErasedTooEarly,
        Acausal,
        ShownTwice,
        ShownOutOfOrder,
        WrongOutput,
        NeverErased,
        NotFenced,
    )
}
"""Verdicts by their number in the literature."""
