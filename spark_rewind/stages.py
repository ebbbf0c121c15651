"""What a call of `apply` or `undo` has to do, given how far earlier calls came. Decisions only.

Before `decided` is on the disk nothing counts, and whatever is there is taken away. After it, everything goes forward.
"""

from __future__ import annotations

from enum import StrEnum


class Phase(StrEnum):
    """How far a rewind is; each is durable before anything of the next one happens."""

    PREPARING = "preparing"
    DECIDED = "decided"
    PUBLISHED = "published"
    DONE = "done"


class Move(StrEnum):
    """What to do next."""

    BEGIN = "begin"
    CLEAN_UP_AND_BEGIN = "take away what an earlier try left, and begin"
    CLEAN_UP = "take away what an earlier try left"
    GO_ON = "carry out what was decided"
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
    """For a call of `apply`."""
    if undone is Phase.DONE:
        return Move.PLAN_AGAIN
    if undone is not None:
        return Move.UNDO_FIRST
    return _FORWARD.get(applied, Move.NOTHING)


def on_undo(applied: Phase | None, undone: Phase | None) -> Move:
    """For a call of `undo`. What was only prepared is taken away: nothing of it counts."""
    if applied is Phase.PREPARING:
        return Move.CLEAN_UP
    if applied is not Phase.DONE:
        return Move.APPLY_FIRST
    return _FORWARD.get(undone, Move.NOTHING)
