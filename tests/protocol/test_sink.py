"""A sink publishes what was decided, all of it, once, in order; and never decides alone."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from checkpoint_protocols import barrier as b
from checkpoint_protocols.ids import Epoch, Incarnation, SinkId
from checkpoint_protocols.machine import Effect, Event, InvalidTransition

K = SinkId("k")
ME, OLDER, NEWER = Incarnation(2), Incarnation(1), Incarnation(3)


def participant(last_published: int = 0, in_doubt: Iterable[tuple[int, int]] = ()) -> b.SinkParticipant:
    doubts = [(Epoch(epoch), Incarnation(prepared_in)) for epoch, prepared_in in in_doubt]
    return b.SinkParticipant(K, ME, Epoch(4), Epoch(last_published), doubts)


def started(last_published: int = 0, in_doubt: Iterable[tuple[int, int]] = ()) -> b.SinkParticipant:
    machine = participant(last_published, in_doubt)
    machine.handle(b.Started())
    return machine


def voted(epoch: int) -> b.SinkParticipant:
    machine = started()
    machine.handle(b.StagedUpTo(Epoch(epoch), ME))
    machine.handle(b.Prepared(Epoch(epoch), ME))
    return machine


def resolved(epoch: int, prepared_in: int, decided: bool) -> b.DoubtResolved:
    return b.DoubtResolved(Epoch(epoch), Incarnation(prepared_in), ME, decided)


def dropped(effects: list[Effect]) -> bool:
    return len(effects) == 1 and isinstance(effects[0], b.Drop)


def test_an_epoch_is_prepared_voted_decided_and_published_in_that_order() -> None:
    machine = started()
    steps: list[Event] = [
        b.StagedUpTo(Epoch(5), ME),
        b.Prepared(Epoch(5), ME),
        b.EpochDecided(Epoch(5), ME),
        b.Published(Epoch(5), ME),
    ]

    assert [machine.handle(step) for step in steps] == [
        [b.PrepareSink(K, Epoch(5), ME)],
        [b.VoteYes(K, Epoch(5), ME)],
        [b.PublishEpoch(K, Epoch(5), ME)],
        [b.AckPublished(K, Epoch(5), ME)],
    ]
    assert machine.last_published == 5


def test_a_sink_that_cannot_prepare_votes_no_and_keeps_its_rows() -> None:
    machine = started()
    machine.handle(b.StagedUpTo(Epoch(5), ME))

    assert machine.handle(b.PrepareFailed(Epoch(5), ME, "full")) == [
        b.VoteNo(K, Epoch(5), ME, "full"),
        b.CarryOver(K, Epoch(5), ME),
    ]
    assert machine.undecided is None


@pytest.mark.parametrize("is_prepared", [True, False])
def test_an_aborted_epochs_rows_go_to_the_next_one(is_prepared: bool) -> None:
    machine = started()
    machine.handle(b.StagedUpTo(Epoch(5), ME))
    if is_prepared:
        machine.handle(b.Prepared(Epoch(5), ME))

    assert machine.handle(b.EpochAborted(Epoch(5), ME)) == [b.CarryOver(K, Epoch(5), ME)]
    assert dropped(machine.handle(b.Prepared(Epoch(5), ME)))


def test_the_next_epoch_waits_for_the_fate_of_the_last() -> None:
    machine = voted(5)
    waiting = machine.handle(b.StagedUpTo(Epoch(6), ME))

    assert [type(effect) for effect in waiting] == [b.Note]
    assert machine.handle(b.EpochAborted(Epoch(5), ME)) == [
        b.CarryOver(K, Epoch(5), ME),
        b.PrepareSink(K, Epoch(6), ME),
    ]


def test_a_waiting_epoch_that_is_aborted_is_not_prepared() -> None:
    machine = voted(5)
    machine.handle(b.StagedUpTo(Epoch(6), ME))
    machine.handle(b.EpochAborted(Epoch(6), ME))

    assert machine.handle(b.EpochDecided(Epoch(5), ME)) == [b.PublishEpoch(K, Epoch(5), ME)]


def test_an_abort_of_an_epoch_that_never_came_here_changes_nothing() -> None:
    assert started().handle(b.EpochAborted(Epoch(5), ME)) == []


def test_decided_epochs_are_published_one_after_the_other_beside_the_next_preparation() -> None:
    machine = voted(5)
    machine.handle(b.EpochDecided(Epoch(5), ME))
    machine.handle(b.StagedUpTo(Epoch(6), ME))
    machine.handle(b.Prepared(Epoch(6), ME))

    assert machine.handle(b.EpochDecided(Epoch(6), ME)) == []
    assert machine.handle(b.Published(Epoch(5), ME)) == [
        b.AckPublished(K, Epoch(5), ME),
        b.PublishEpoch(K, Epoch(6), ME),
    ]


def test_a_refused_publish_is_reported_and_tried_again_when_the_decision_is_repeated() -> None:
    machine = voted(5)
    machine.handle(b.EpochDecided(Epoch(5), ME))
    refused = machine.handle(b.PublishRefused(Epoch(5), ME, retriable=True, why="no leader"))

    assert refused == [b.ReportPublishFailure(K, Epoch(5), ME, True, "no leader")]
    assert machine.handle(b.EpochDecided(Epoch(5), ME)) == [b.PublishEpoch(K, Epoch(5), ME)]
    assert machine.handle(b.EpochDecided(Epoch(5), ME)) == []


def test_a_repeated_decision_for_what_is_published_repeats_the_answer() -> None:
    machine = voted(5)
    machine.handle(b.EpochDecided(Epoch(5), ME))
    machine.handle(b.Published(Epoch(5), ME))

    assert machine.handle(b.EpochDecided(Epoch(5), ME)) == [b.AckPublished(K, Epoch(5), ME)]
    assert dropped(machine.handle(b.Published(Epoch(5), ME)))


def test_a_repeated_decision_while_another_epoch_is_undecided_is_answered() -> None:
    machine = voted(5)
    machine.handle(b.EpochDecided(Epoch(5), ME))
    machine.handle(b.StagedUpTo(Epoch(6), ME))
    machine.handle(b.Prepared(Epoch(6), ME))
    machine.handle(b.Published(Epoch(5), ME))

    assert machine.handle(b.EpochDecided(Epoch(5), ME)) == [b.AckPublished(K, Epoch(5), ME)]


def test_in_doubt_an_epoch_is_published_iff_its_decision_record_exists() -> None:
    """The same number twice: an undecided transaction of life 1, a decided one of a life between."""
    machine = participant(last_published=4, in_doubt=[(5, 1), (5, 2)])

    assert machine.handle(b.Started()) == [
        b.AckPublished(K, Epoch(4), ME),
        b.AskDecision(K, Epoch(5), OLDER, ME),
    ]
    assert machine.handle(resolved(5, 1, decided=False)) == [
        b.DiscardPrepared(K, Epoch(5), OLDER, ME),
        b.AskDecision(K, Epoch(5), ME, ME),
    ]
    assert machine.handle(resolved(5, 2, decided=True)) == [b.PublishEpoch(K, Epoch(5), ME)]


def test_nothing_new_is_prepared_before_all_doubts_are_resolved() -> None:
    machine = started(in_doubt=[(4, 1)])
    machine.handle(b.StagedUpTo(Epoch(5), ME))

    assert machine.handle(b.EpochDecided(Epoch(4), ME)) == []
    assert machine.handle(resolved(4, 1, decided=True)) == [
        b.PublishEpoch(K, Epoch(4), ME),
        b.PrepareSink(K, Epoch(5), ME),
    ]


@pytest.mark.parametrize(
    ("machine", "event"),
    [
        pytest.param(voted(5), b.EpochDecided(Epoch(6), ME), id="another epoch is decided than was voted for"),
        pytest.param(voted(5), b.Prepared(Epoch(6), ME), id="another epoch is prepared after the vote"),
        pytest.param(started(), b.Prepared(Epoch(5), ME), id="prepared, but nobody asked"),
        pytest.param(voted(5), b.Published(Epoch(5), ME), id="published before it is decided"),
        pytest.param(started(in_doubt=[(3, 1)]), resolved(4, 1, decided=True), id="resolved, but not in doubt"),
        pytest.param(participant(), b.StagedUpTo(Epoch(5), ME), id="staged before the start"),
    ],
)
def test_what_cannot_happen_raises(machine: b.SinkParticipant, event: Event) -> None:
    with pytest.raises(InvalidTransition):
        machine.handle(event)


def test_preparing_another_epoch_than_asked_raises() -> None:
    machine = started()
    machine.handle(b.StagedUpTo(Epoch(5), ME))

    with pytest.raises(InvalidTransition, match="undecided epoch is 5"):
        machine.handle(b.PrepareFailed(Epoch(6), ME))


def test_barriers_and_messages_that_are_over_are_dropped() -> None:
    machine = started()

    assert dropped(machine.handle(b.StagedUpTo(Epoch(4), ME)))
    assert dropped(machine.handle(b.EpochDecided(Epoch(5), OLDER)))


@pytest.mark.parametrize("event", [b.Fenced(NEWER), b.EpochDecided(Epoch(5), NEWER)], ids=str)
def test_a_sink_that_hears_of_a_newer_life_does_nothing_any_more(event: Event) -> None:
    machine = voted(5)
    machine.handle(event)

    assert machine.phase is b.SinkPhase.FENCED
    assert machine.handle(b.EpochDecided(Epoch(5), ME)) == []


def test_a_sink_may_be_fenced_by_name() -> None:
    machine = voted(5)

    assert [type(effect) for effect in machine.handle(b.Fenced(ME))] == [b.Note]
    assert machine.phase is b.SinkPhase.FENCED
