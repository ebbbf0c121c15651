"""Partial-order reduction: steps that affect no other process are taken first, in one order only.

Once nothing can fail, two kinds of steps of a process touch only its own state:

- Its part of a recovery, if it waits for it and has nothing under way. No event reaches it before, so no step of
  another process can come between. It returns messages to the heads of its channels, and others append to the tails.
- The rows that its sink has still to show, if its machine gets no answer from the sink.

Each is a persistent set of one choice: any other step leads to the same state before it as after it. A step that
changes the state by which others are judged (`public`) does not qualify. While anything can fail there is no such set,
because a failure depends on the current state of every process.
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
"""Notes at which the durable records of every process are judged."""


def enough(world: MessageWorld, choices: Sequence[Choice]) -> Sequence[Choice]:
    """Return one choice that need not be tried in every order with the others; all choices if there is none."""
    # a coming recovery reads the state of every process
    if world.alarm or can_fail(world):
        return choices
    for process in world.everybody:
        first = _first(world, process)
        if first is not None and first in choices:
            return [first]
    return choices


def can_fail(world: MessageWorld) -> bool:
    """Return True if a fault may still happen or end."""
    spent = replace(world.budget, staggered=False) == NO_FAULTS
    return not spent or bool(world.zombies or world.network.cut) or any(each.paused for each in world.everybody)


def public(world: MessageWorld) -> Hashable:
    """Return the state by which others are judged: valid durable records, and the number of judgements."""
    standing = tuple(tuple(records_of(process, world.table)) for process in world.everybody)
    return standing, tuple(world.count.get(what, 0) for what in JUDGED_AT)


def _first(world: MessageWorld, process: Process) -> Choice | None:
    if process.frozen or process.machine is None:
        return None if process.writes or process.publishing else ("restore", process.name)
    told = SinkReplied in process.machine.EVENTS
    return ("publish", process.name) if process.publishing and not told else None
