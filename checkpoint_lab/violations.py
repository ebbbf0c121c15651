"""Verdicts of the oracles: one error class per oracle (section 1 of the recovery literature's common model)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from checkpoint_lab.world import Choice
from checkpoint_protocols.machine import ProtocolViolation


class Violation(AssertionError):
    """An oracle's verdict. The schedule adds `seed` and `trace`, with which the failure can be reproduced."""

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
    """A message in transit across a line is lost: it is on no channel, in no log and in no replay."""

    ORACLE = "O2"


class WrongEffect(Violation):
    """The effect differs from that of a run without failures."""

    ORACLE = "O3"


class NotMaximal(Violation):
    """The recovery did not take a usable line that undoes less."""

    ORACLE = "O4"


class LineMovedBack(Violation):
    """A committed line was undone."""

    ORACLE = "O5"


class NotDurable(Violation):
    """The process announced something before it was durable."""

    ORACLE = "O6"


class Incomplete(Violation):
    """A checkpoint was called complete without the record of every process."""

    ORACLE = "O7"


class ReusedId(Violation):
    """A number was used twice or decreased."""

    ORACLE = "O8"


class StaleDelivery(Violation):
    """A message was delivered although its send was undone."""

    ORACLE = "O9"


class NoEnd(Violation):
    """Without faults and under fair scheduling, some work never ends."""

    ORACLE = "O10"


class TooEarly(Violation):
    """A sink published output that can still be undone."""

    ORACLE = "O11"


class ErasedTooEarly(Violation):
    """An erased record is needed by the next failure."""

    ORACLE = "O12"


class Acausal(Violation):
    """A cut of full vector clocks is not closed under happened-before."""

    ORACLE = "O13"


class ShownTwice(Violation):
    """A sink published a row again."""

    ORACLE = "O14"


class ShownOutOfOrder(Violation):
    """A sink published a row before one that precedes it."""

    ORACLE = "O15"


class WrongOutput(Violation):
    """A sink never published a row that the inputs demand, or a process published rows that it must not publish."""

    ORACLE = "O16"


class NeverErased(Violation):
    """A record stays although no recovery can need it any more."""

    ORACLE = "O17"


class NotFenced(Violation):
    """A replaced incarnation still wrote."""

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
"""Verdict classes by their number in the literature."""


def ensure(holds: bool, oracle: str, detail: object) -> None:
    """Raise the oracle's violation unless `holds`.

    A name of no oracle stands for a rule of the host: `ProtocolViolation`.
    """
    if holds:
        return
    if oracle not in BY_ORACLE:
        raise ProtocolViolation(f"{oracle}: {detail}")
    raise BY_ORACLE[oracle](str(detail))
