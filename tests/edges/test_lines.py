"""Lines over programs: the search finds the greatest consistent cut, with a reason for every epoch that it skips."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from spark_ckpt.epochs.lines import (
    UNDONE,
    CutEpoch,
    Input,
    Program,
    Programs,
    greatest,
    lines,
    named,
    through,
    to_target,
)
from spark_ckpt.errors import ConfigInvalid, EpochNotFound
from tests.edges.every_cut import brute_force, is_consistent


def program(name: str, *epochs: CutEpoch, **inputs: Input) -> Program:
    return Program(name, epochs, inputs)


def drawn(draw: random.Random) -> Programs:
    """Up to four programs with up to five epochs, and edges in any direction, with loops."""
    names = [f"p{number}" for number in range(draw.randint(2, 4))]
    edges = [(a, b) for a in names for b in names if a != b and draw.random() < 0.4]
    found = {}
    for name in names:
        senders = [a for a, b in edges if b == name]
        inputs = {f"from-{a}": Input(a, "out", draw.choice([0, 0, 0, 2])) for a in senders}
        numbers = sorted(draw.sample(range(1, 9), draw.randint(1, 5)))
        read = {source: sorted(draw.choices([0, *range(1, 9), UNDONE], k=len(numbers))) for source in inputs}
        epochs = [
            CutEpoch(epoch, 1000 * epoch, read={source: read[source][at] for source in inputs})
            for at, epoch in enumerate(numbers)
        ]
        found[name] = Program(name, tuple(epochs), inputs)
    return found


def test_the_search_agrees_with_brute_force_on_small_graphs() -> None:
    found = 0
    for seed in range(1500):
        draw = random.Random(seed)
        programs = drawn(draw)
        limits = {name: draw.randint(1, 9) for name in programs if draw.random() < 0.5}
        expected = brute_force(programs, limits)
        if expected is None:
            with pytest.raises(EpochNotFound):
                greatest(programs, limits)
            continue
        found += 1
        assert greatest(programs, limits).epochs == expected, f"seed {seed}"
        for line in lines(programs, 20):
            assert is_consistent(programs, dict(line.epochs)), f"seed {seed}"
    assert found > 300


PAIR = {
    "orders": program("orders", CutEpoch(1, 10), CutEpoch(2, 20), CutEpoch(3, 30)),
    "totals": program(
        "totals",
        CutEpoch(1, 11),
        CutEpoch(2, 21, read={"in": 2}),
        CutEpoch(3, 31, read={"in": 3}),
        **{"in": Input("orders", "out")},
    ),
}


def test_lines_are_listed_newest_first_and_each_is_older_than_the_one_before() -> None:
    found = [dict(each.epochs) for each in lines(PAIR, 10)]
    assert found[0] == {"orders": 3, "totals": 3}
    assert found[-1] == {"orders": 1, "totals": 1}
    for newer, older in pairwise(found):
        assert newer != older and all(older[name] <= newer[name] for name in newer)


def test_a_line_through_an_epoch_rolls_readers_back_with_a_reason() -> None:
    line = through(PAIR, "orders", 2)
    assert line.epochs == {"orders": 2, "totals": 2}
    [reason] = line.reasons
    assert "totals goes back from epoch 3 to epoch 2: it has read epoch 3 of orders" in reason


def test_an_epoch_with_undone_rows_is_in_no_line() -> None:
    programs = {
        **PAIR,
        "totals": program(
            "totals", CutEpoch(1, 11), CutEpoch(2, 21, read={"in": UNDONE}), **{"in": Input("orders", "out")}
        ),
    }
    assert greatest(programs).epochs == {"orders": 3, "totals": 1}
    with pytest.raises(EpochNotFound) as refused:
        through(programs, "totals", 2)
    assert "undone" in str(refused.value.context["reasons"])


def test_rows_that_are_deleted_before_they_are_read_end_a_line() -> None:
    reader = program("totals", CutEpoch(1, 11), **{"in": Input("orders", "out", deleted=2)})
    with pytest.raises(EpochNotFound):
        greatest({**PAIR, "totals": reader} | {"orders": program("orders", CutEpoch(3, 30))})


def test_the_rows_that_are_gone_with_a_damaged_epoch_are_few() -> None:
    """Each search looks at all of them, and a sender that runs for months has deleted millions of epochs."""
    sent = Input("orders", "out", deleted=10_000_000, damaged=frozenset({10_000_003}))
    assert set(sent.lost) == {10_000_000, 10_000_003}
    assert set(Input("orders", "out", damaged=frozenset({3})).lost) == {3}


def test_a_time_limits_every_program() -> None:
    assert to_target(PAIR, "1970-01-01T00:00:00.025").epochs == {"orders": 2, "totals": 2}
    assert to_target(PAIR, "1970-01-01T00:00:00.020Z").epochs == {"orders": 2, "totals": 1}


@pytest.mark.parametrize("target", ["lin-4", "yesterday", "line-x"])
def test_a_target_that_names_no_line_is_refused(target: str) -> None:
    with pytest.raises(ConfigInvalid):
        to_target(PAIR, target)


def test_a_program_without_a_store_is_refused_by_name() -> None:
    with pytest.raises(ConfigInvalid):
        to_target(PAIR, "alerts@4")


LOOP = {
    "ask": program(
        "ask",
        CutEpoch(1, 1, index=1),
        CutEpoch(2, 20, index=3, after=1, read={"in": 1}),
        CutEpoch(3, 30, index=3, after=3, read={"in": 2}),
        CutEpoch(4, 40, index=4, after=3, read={"in": 2}),
        **{"in": Input("answer", "out")},
    ),
    "answer": program(
        "answer",
        CutEpoch(1, 2, index=1),
        CutEpoch(2, 25, index=3, after=1, read={"in": 2}),
        CutEpoch(3, 36, index=3, after=3, read={"in": 3}),
        **{"in": Input("ask", "out")},
    ),
}


def test_a_named_line_is_the_first_epoch_of_each_program_that_serves_its_index() -> None:
    assert named(LOOP, 3).epochs == {"ask": 2, "answer": 2}
    assert named(LOOP, 2).epochs == {"ask": 2, "answer": 2}, "one epoch serves every index that it skips"
    assert to_target(LOOP, "line-1").epochs == {"ask": 1, "answer": 1}


def test_a_line_that_a_program_has_not_reached_is_refused_with_the_newest_complete_one() -> None:
    with pytest.raises(EpochNotFound) as refused:
        named(LOOP, 4)
    assert "answer has reached line-3 only" in refused.value.what
    assert "line-3" in refused.value.hint


def test_named_lines_are_among_the_lines() -> None:
    assert [each.name for each in lines(LOOP, 20) if each.name] == ["line-3", "line-1"]


def test_a_program_without_an_index_is_in_no_named_line() -> None:
    with pytest.raises(EpochNotFound) as refused:
        named({**LOOP, **PAIR}, 3)
    assert "orders" in refused.value.what
