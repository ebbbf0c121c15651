"""The recovery vector is the greatest consistent one after every notice, in any order."""

from __future__ import annotations

import random
from itertools import product

import pytest

from checkpoint_protocols.ids import ProcessId
from checkpoint_protocols.message_logging.volatile_log import RecoveryVector
from tests.protocol.literal.asynchronous_logging import (
    LiteralIndex,
    NewestThatFits,
    NoBin,
    NoGuard,
    StableOfAnyProcess,
)

P, Q, R = ProcessId("p"), ProcessId("q"), ProcessId("r")
RUNS = 4_000


def notices(seed):
    """(process, interval, ddv) of a random run over three processes, some intervals missing, in random order."""
    draw = random.Random(seed)
    interval, ddv, flying, stable = dict.fromkeys((P, Q, R), 0), {P: {}, Q: {}, R: {}}, [], []
    for _ in range(draw.randint(6, 26)):
        process = draw.choice((P, Q, R))
        mine = [message for message in flying if message[1] != process]
        if not mine or draw.random() < 0.4:
            flying.append((interval[process], process))
            continue
        message = draw.choice(mine)
        flying.remove(message)
        interval[process] += 1
        ddv[process] = {**ddv[process], message[1]: max(ddv[process].get(message[1], 0), message[0])}
        if draw.random() < 0.75:
            stable.append((process, interval[process], ddv[process]))
    draw.shuffle(stable)
    return stable


def greatest(known):
    """The greatest consistent vector, by brute force over all vectors of stable intervals."""
    vectors = {process: {0: {}} for process in (P, Q, R)}
    for process, interval, ddv in known:
        vectors[process][interval] = ddv
    best = dict.fromkeys((P, Q, R), 0)
    for choice in product(*(vectors[process] for process in (P, Q, R))):
        rv = dict(zip((P, Q, R), choice, strict=True))
        if all(k <= rv[q] for process in rv for q, k in vectors[process][rv[process]].items()):
            best = {process: max(best[process], rv[process]) for process in rv}
    return best


def first_difference(vector_of, runs):
    """The first run and notice after which the vector is not the greatest; None if there is none."""
    for seed in runs:
        vector, known = vector_of(), []
        for notice in notices(seed):
            known.append(notice)
            vector.add(*notice)
            if {process: vector.of(process) for process in (P, Q, R)} != greatest(known):
                return seed, notice
    return None


def test_it_is_the_greatest_after_every_notice():
    assert first_difference(RecoveryVector, range(RUNS)) is None


@pytest.mark.parametrize("literal", [LiteralIndex, StableOfAnyProcess, NewestThatFits, NoGuard, NoBin])
def test_the_seeds_errors_are_found_by_the_same_comparison(literal):
    assert first_difference(literal, range(RUNS)) is not None


def test_the_matrix_at_the_vector_is_consistent():
    vector = RecoveryVector()
    vector.add(Q, 1, {P: 2})
    assert vector.rv == {}
    vector.add(P, 3, {})
    assert vector.rv == {P: 3, Q: 1}
    assert vector.gdv == {P: {}, Q: {P: 2}}
    assert vector.consistent
    vector.rv = {P: 1, Q: 1}
    assert not vector.consistent


def test_the_least_interval_that_fits_is_taken():
    """A later interval may depend on intervals that are not stable."""
    vector = RecoveryVector()
    vector.add(P, 2, {R: 5})
    vector.add(P, 1, {})
    vector.add(Q, 1, {P: 1})
    assert vector.rv == {P: 1, Q: 1}
