"""Decisions of `apply` and `undo` after earlier, interrupted calls. Pure rules, no I/O.

Before `decided` is on disk nothing counts, and a call removes all leftovers. After it, a call only continues.
"""

from __future__ import annotations

from enum import StrEnum

PLAN_AGAIN = "plan again, and apply that plan; nothing was changed"
"""Advice to a user whose plan no longer fits its queries and tables."""

WOULD_BE_LOST = "what has been done since would be lost: plan a rewind instead; nothing was changed"
"""Advice to a user whose queries or tables have moved on since the rewind that is to be undone."""

KEEP = (
    "keep the rewind; or bring back what is missing from a backup, and run the same command again; nothing was changed"
)
"""Advice to a user who undoes a rewind whose earlier state lacks something: an undo has no other target."""


class Phase(StrEnum):
    """Progress of a rewind. Each phase is durable before an action of the next phase."""

    PREPARING = "preparing"
    DECIDED = "decided"
    PUBLISHED = "published"
    DONE = "done"


class Move(StrEnum):
    """The next action of a call."""

    BEGIN = "begin"
    CLEAN_UP_AND_BEGIN = "take away what an earlier try left, and begin"
    CLEAN_UP = "take away what an earlier try left"
    GO_ON = "execute the decided plan"
    FINISH = "take the fences away"
    NOTHING = "nothing is left to do"
    APPLY_FIRST = "the rewind has to be carried out first"
    UNDO_FIRST = "an undo is under way and has to be over first"
    PLAN_AGAIN = "it was undone: this needs a new plan"


_FORWARD = {
    None: Move.BEGIN,
    Phase.PREPARING: Move.CLEAN_UP_AND_BEGIN,
    Phase.DECIDED: Move.GO_ON,
    Phase.PUBLISHED: Move.FINISH,
}


def on_apply(applied: Phase | None, undone: Phase | None) -> Move:
    """Return the next action of `apply`, given the phases of the rewind and of its undo."""
    # an undone plan is used up: its digests describe logs that have changed since
    if undone is Phase.DONE:
        return Move.PLAN_AGAIN
    if undone is not None:
        return Move.UNDO_FIRST
    return _FORWARD.get(applied, Move.NOTHING)


def on_undo(applied: Phase | None, undone: Phase | None) -> Move:
    """Return the next action of `undo`. A rewind that was only prepared is removed: nothing of it counts."""
    if applied is Phase.PREPARING:
        return Move.CLEAN_UP
    if applied is not Phase.DONE:
        return Move.APPLY_FIRST
    return _FORWARD.get(undone, Move.NOTHING)
