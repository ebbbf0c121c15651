"""Partial-order reduction: steps that nothing else minds are taken first, and not in every order with everything else.

Once nothing can fail any more, two kinds of steps of one process meet only what is its own:

- its part of a recovery, if it waits for it and has nothing under way. Nothing is handed to it before, so no step of
  anybody else can come between; it puts what it was given back to the heads of its channels, and everybody else appends to
  their ends;
- what its sink has still to show, if its machine is not told.

Each is a persistent set of one choice: whatever else happens first leads to the same state as when it happens afterwards. A step
that changes what others are judged by (`public`) is no such step after all. As long as anything can fail there are none:
a failure makes everybody's state of that moment matter.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from checkpoint_lab.faults import NO_FAULTS
from checkpoint_lab.process import Process
from checkpoint_lab.recovering import records_of
from checkpoint_lab.world import Choice
from checkpoint_protocols.vocabulary import SinkReplied

if TYPE_CHECKING:
    from checkpoint_lab.message_world import MessageWorld

JUDGED_AT = ("complete", "shown")
"""Notes at which everybody's durable records are judged."""


def enough(world: MessageWorld, choices: Sequence[Choice]) -> Sequence[Choice]:
    """A choice that need not be tried in every order with the others, alone; all of them if there is none."""
    if world.alarm or can_fail(world):
        return choices
    for process in world.everybody:
        first = _first(world, process)
        if first is not None and first in choices:
            return [first]
    return choices


def can_fail(world: MessageWorld) -> bool:
    """Something may still go wrong, or end that did."""
    spent = replace(world.budget, staggered=False) == NO_FAULTS
    return not spent or bool(world.zombies or world.network.cut) or any(each.paused for each in world.everybody)


def public(world: MessageWorld) -> Hashable:
    """What others are judged by: durable records that are not undone, and how often they were judged."""
    standing = tuple(tuple(records_of(process, world.table)) for process in world.everybody)
    return standing, tuple(world.count.get(what, 0) for what in JUDGED_AT)


def _first(world: MessageWorld, process: Process) -> Choice | None:
    if process.frozen or process.machine is None:
        return None if process.writes or process.publishing else ("restore", process.name)
    told = SinkReplied in process.machine.EVENTS
    return ("publish", process.name) if process.publishing and not told else None
