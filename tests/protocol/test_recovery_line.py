"""The recovery line is the greatest usable one for every history, and explains itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_protocols.checkpoints.recovery_line import (
    NOTHING_KEPT,
    Candidate,
    RecoveryLine,
    StepCause,
    in_transit,
    recovery_line,
)
from checkpoint_protocols.ids import ChannelId, ProcessId
from checkpoint_protocols.machine import ProtocolViolation
from tests.protocol.histories import STEPS, History, all_lines, greatest, random_steps, usable

P, Q, R = ProcessId("p"), ProcessId("q"), ProcessId("r")
PQ, QR, QP = ChannelId("p->q"), ChannelId("q->r"), ChannelId("q->p")
ENDS = {PQ: (P, Q), QR: (Q, R)}


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 4), st.booleans(), STEPS, st.sets(st.sampled_from("pqrs")), st.sets(st.integers(1, 12)))
def test_it_is_the_greatest_of_all_usable_lines(processes, fifo, steps, failed, gone):
    """Brute force over every line; `gone` messages of every channel cannot be replayed."""
    history = History(processes, fifo, steps)
    candidates = history.candidates(frozenset(map(ProcessId, failed)))
    lost = {c: frozenset(gone) if fifo else frozenset((1, n) for n in gone) for c in history.ends}

    found = recovery_line(candidates, history.ends, failed, lost)

    lines = [line for line in all_lines(candidates) if usable(line, history.ends, lost)]
    assert found.chosen == greatest(lines, candidates)
    assert found.chosen in lines


@settings(max_examples=300, deadline=None)
@given(st.integers(2, 4), st.booleans(), STEPS, st.sets(st.sampled_from("pqrs")))
def test_it_agrees_with_vector_clocks(processes, fifo, steps, failed):
    """Over channels that keep everything: the greatest line closed under happened-before."""
    history = History(processes, fifo, steps)
    candidates = history.candidates(frozenset(map(ProcessId, failed)))

    found = recovery_line(candidates, history.ends, failed)

    lines = [line for line in all_lines(candidates) if causal(history, line)]
    assert found.chosen == greatest(lines, candidates)


def causal(history, line):
    clocks = [history.clocks[p, line[p].index] for p in history.processes]
    return all(clocks[p][q] <= clocks[q][q] for p in range(len(clocks)) for q in range(len(clocks)))


def test_the_comparison_finds_a_solver_that_forgets_lost_messages():
    """Planted: `lost` is not passed."""
    histories = [History(3, True, random_steps(seed)) for seed in range(60)]
    gone = frozenset({2})
    unusable = [
        history
        for history in histories
        if not usable(
            dict(recovery_line(history.candidates(frozenset({P})), history.ends, {P}).chosen),
            history.ends,
            dict.fromkeys(history.ends, gone),
        )
    ]
    assert unusable


def test_the_comparison_finds_a_solver_that_stops_too_early():
    """Planted: a chain of two is followed for one step."""
    found = recovery_line(PIPE, ENDS, {P})
    early = dict(found.chosen) | {R: PIPE[R][-1]}
    assert usable(dict(found.chosen), ENDS, {})
    assert not usable(early, ENDS, {})


@settings(deadline=None)
@given(st.integers(2, 4), st.booleans(), STEPS, st.sets(st.sampled_from("pqrs")), st.sets(st.integers(1, 12)))
def test_every_chain_of_reasons_is_sound(processes, fifo, steps, failed, gone):
    """Each process that rolled back has a chain of causes; each link follows from the one before it."""
    history = History(processes, fifo, steps)
    candidates = history.candidates(frozenset(map(ProcessId, failed)))
    lost = {c: frozenset(gone) if fifo else frozenset((1, n) for n in gone) for c in history.ends}

    found = recovery_line(candidates, history.ends, failed, lost)

    for process, known in candidates.items():
        chain = found.why(process)
        moved = found.chosen[process] != known[-1] or process in failed
        assert bool(chain) == moved
        assert not chain or chain[-1].taken == found.chosen[process]
        assert all(link.other == before.process for before, link in pairwise(chain))
        assert all(link.other_at == before.taken for before, link in pairwise(chain))
        if chain and chain[0].cause is not StepCause.FAILED:
            assert chain[0].cause is StepCause.LOST  # only a lost message needs no failure


def counted(index, sent=0, received=0, out=PQ, into=PQ):
    return Candidate(index, {out: sent}, {into: received})


PIPE = {
    P: [counted(0), counted(7, sent=11)],
    Q: [
        Candidate(0),
        Candidate(3, {QR: 2}, {PQ: 9}),
        Candidate(None, {QR: 5}, {PQ: 14}),
    ],
    R: [Candidate(0), Candidate(None, {}, {QR: 4})],
}


def test_an_explanation_lists_the_chain_from_the_failure_to_the_process():
    assert recovery_line(PIPE, ENDS, {P}).explain(R) == (
        "p failed: checkpoint 7 is the newest that is durable\n"
        "q goes back from now to checkpoint 3: "
        "it received message 12 and 2 more of p->q, which p at checkpoint 7 has not sent\n"
        "r goes back from now to checkpoint 0: "
        "it received message 3 and 1 more of q->r, which q at checkpoint 3 has not sent"
    )


def test_two_processes_that_keep_nothing_are_no_line():
    found = recovery_line({P: [], Q: [], R: [Candidate(0)]}, ENDS, {P, Q})
    assert (found.missing, found.chosen) == (P, {})


def test_a_process_that_stays_has_no_cause():
    found = recovery_line({**PIPE, Q: [Candidate(None, {QR: 5}, {PQ: 11})]}, ENDS, {P})
    assert found.why(R) == ()
    assert found.explain(R) == "r stays: nothing makes it go back"


def test_a_lost_message_rolls_its_sender_back():
    candidates = {P: [counted(0), counted(None, sent=3)], Q: [counted(0), counted(1, received=1)]}
    found = recovery_line(candidates, {PQ: (P, Q)}, {Q}, {PQ: NOTHING_KEPT})
    assert found.explain(P) == (
        "q failed: checkpoint 1 is the newest that is durable\n"
        "p goes back from now to checkpoint 0: "
        "it sent message 2 and 1 more of p->q, which q at checkpoint 1 has not received and no log has"
    )
    assert found.chosen[Q] == counted(0)


def test_a_retention_of_billions_of_messages_is_not_walked_through():
    """A topic whose first 10^12 records are gone; the reader's position is before the newest of them."""
    many = 10**12
    candidates = {P: [counted(0), counted(1, sent=many)], Q: [counted(0), counted(1, received=many - 10)]}
    found = recovery_line(candidates, {PQ: (P, Q)}, {P, Q}, {PQ: range(many)})
    assert [step.count for step in found.steps if step.cause is StepCause.LOST] == [9]
    assert found.chosen[P] == counted(0)


def test_a_process_without_an_old_enough_checkpoint_has_no_line():
    found = recovery_line({**PIPE, R: PIPE[R][1:]}, ENDS, {P})
    assert (found.missing, found.chosen) == (R, {})
    assert found.explain(R).endswith(
        "r goes back from now but keeps nothing that is old enough: "
        "it received message 3 and 1 more of q->r, which q at checkpoint 3 has not sent"
    )


def test_a_failed_process_without_checkpoints_has_no_line():
    found = recovery_line({P: [], Q: [Candidate(None)]}, {PQ: (P, Q)}, {P})
    assert found.missing == P
    assert found.explain(P) == "p failed: nothing is the newest that is durable"


def test_without_a_failure_every_process_stays():
    assert recovery_line({P: [Candidate(None)], Q: [Candidate(None)]}, {PQ: (P, Q)}) == RecoveryLine(
        {P: Candidate(None), Q: Candidate(None)}, ()
    )


def test_messages_in_transit_have_to_be_replayed():
    assert list(in_transit(counted(1, sent=5), counted(1, received=3), PQ)) == [4, 5]
    named = Candidate(1, {PQ: frozenset({(1, 1), (2, 2)})}, {PQ: frozenset({(1, 1)})})
    assert in_transit(named, named, PQ) == {(2, 2)}


def test_candidates_out_of_order_are_refused():
    with pytest.raises(ProtocolViolation, match="the candidates of p are not in order: checkpoint 0 knows less"):
        recovery_line({P: [counted(1, sent=2), counted(0)], Q: [counted(0)]}, {PQ: (P, Q)})


def test_a_channel_is_counted_or_named_never_both():
    named = Candidate(None, {}, {PQ: frozenset({(1, 1)})})
    with pytest.raises(ProtocolViolation, match="one end of a channel counts 2 messages"):
        recovery_line({P: [counted(None, sent=2)], Q: [named]}, {PQ: (P, Q)})


def test_an_end_that_is_not_named_has_no_messages():
    named = Candidate(None, {}, {PQ: frozenset({(1, 1)})})
    found = recovery_line({P: [Candidate(0)], Q: [Candidate(0), named]}, {PQ: (P, Q)}, {P})
    assert found.chosen[Q] == Candidate(0)
    assert found.why(Q)[-1].first == (1, 1)
