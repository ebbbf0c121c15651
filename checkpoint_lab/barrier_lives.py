"""O9 for the shipped machines: an epoch is a pair (incarnation, epoch), and earlier incarnations are rejected.

Numbers come again: an uncommitted epoch leaves its number to the next incarnation. So a message of an earlier
incarnation may carry the number of the epoch that is open now, and only the incarnation tells them apart.
"""

from __future__ import annotations

from typing import Any

from checkpoint_lab.barrier_storage import ensure
from checkpoint_lab.picture import canonical
from checkpoint_protocols.machine import Drop, Effect, Event, Machine, ProtocolViolation


def turned_away(machine: Machine[Any], event: Event) -> list[Effect]:
    """Hand in an event of an earlier incarnation: the machine must not change and must only drop it.

    Raises `StaleDelivery`.
    """
    before = canonical(machine)
    effects: list[Effect] = []
    try:
        effects = machine.handle(event)
        taken = canonical(machine) != before or not all(isinstance(effect, Drop) for effect in effects)
    except ProtocolViolation:
        taken = True
    ensure(not taken, "O9", f"{type(machine).__name__} of incarnation {machine.incarnation} takes {event}")
    return effects
