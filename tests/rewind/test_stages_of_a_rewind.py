"""A call continues from the phases of earlier ones: before the decision it cleans up, after it it completes them."""

from __future__ import annotations

import pytest

from spark_rewind.stages import Move, Phase, on_apply, on_undo


@pytest.mark.parametrize(
    ("applied", "undone", "move"),
    [
        (None, None, Move.BEGIN),
        (Phase.PREPARING, None, Move.CLEAN_UP_AND_BEGIN),
        (Phase.DECIDED, None, Move.GO_ON),
        (Phase.PUBLISHED, None, Move.FINISH),
        (Phase.DONE, None, Move.NOTHING),
        (Phase.DONE, Phase.PREPARING, Move.UNDO_FIRST),
        (Phase.DONE, Phase.DECIDED, Move.UNDO_FIRST),
        (Phase.DONE, Phase.DONE, Move.PLAN_AGAIN),
    ],
)
def test_a_call_of_apply(applied, undone, move):
    assert on_apply(applied, undone) is move


@pytest.mark.parametrize(
    ("applied", "undone", "move"),
    [
        (None, None, Move.APPLY_FIRST),
        (Phase.PREPARING, None, Move.CLEAN_UP),
        (Phase.DECIDED, None, Move.APPLY_FIRST),
        (Phase.PUBLISHED, None, Move.APPLY_FIRST),
        (Phase.DONE, None, Move.BEGIN),
        (Phase.DONE, Phase.PREPARING, Move.CLEAN_UP_AND_BEGIN),
        (Phase.DONE, Phase.DECIDED, Move.GO_ON),
        (Phase.DONE, Phase.PUBLISHED, Move.FINISH),
        (Phase.DONE, Phase.DONE, Move.NOTHING),
    ],
)
def test_a_call_of_undo(applied, undone, move):
    assert on_undo(applied, undone) is move
