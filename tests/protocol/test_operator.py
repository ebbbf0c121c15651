"""A task's snapshot holds exactly what came before the barrier on every input."""

from __future__ import annotations

import pytest

from checkpoint_protocols import barrier as b
from checkpoint_protocols.ids import ChannelId, Epoch, Incarnation, TaskId
from checkpoint_protocols.machine import Effect, Event, InvalidTransition

A, B, C = ChannelId("a"), ChannelId("b"), ChannelId("c")
ME, OLDER, NEWER = Incarnation(2), Incarnation(1), Incarnation(3)
TASK = TaskId("t")


def task(*inputs: ChannelId) -> b.Operator:
    return b.Operator(TASK, inputs, ME, Epoch(4))


def barrier(channel: ChannelId, epoch: int, incarnation: Incarnation = ME) -> b.BarrierArrived:
    return b.BarrierArrived(channel, Epoch(epoch), incarnation)


def taken(epoch: int) -> list[Effect]:
    return [b.CaptureSnapshot(Epoch(epoch), ME), b.ForwardBarrier(Epoch(epoch), ME)]


def stored(epoch: int) -> b.SnapshotStored:
    return b.SnapshotStored(Epoch(epoch), ME)


def dropped(effects: list[Effect]) -> bool:
    return len(effects) == 1 and isinstance(effects[0], b.Drop)


def test_a_source_captures_on_the_coordinators_own_channel() -> None:
    """Erratum E4: an empty set of inputs must not mean never."""
    assert task().handle(barrier(b.NIL, 5)) == taken(5)


def test_one_input_captures_at_once_and_holds_nothing() -> None:
    assert task(A).handle(barrier(A, 5)) == taken(5)


def test_inputs_are_held_until_the_barrier_came_on_all_then_released_behind_the_capture() -> None:
    machine = task(A, B, C)

    assert machine.handle(barrier(B, 5)) == [b.Hold(B)]
    assert machine.handle(barrier(A, 5)) == [b.Hold(A)]
    assert machine.held == {A, B}
    assert machine.handle(b.RowsArrived(C, ME, 7)) == [b.Deliver(b.RowsArrived(C, ME, 7))]
    assert machine.handle(barrier(C, 5)) == [*taken(5), b.Release(A), b.Release(B)]
    assert machine.last_captured == 5


@pytest.mark.parametrize("event", [b.RowsArrived(A, ME), barrier(A, 5), barrier(A, 6), b.RowsArrived(C, ME)], ids=str)
def test_a_host_that_delivers_from_a_held_or_unknown_channel_is_told(event: Event) -> None:
    machine = task(A, B)
    machine.handle(barrier(A, 5))

    with pytest.raises(InvalidTransition, match="RUNNING: BarrierArrived"):
        machine.handle(event)


def test_barriers_that_are_over_are_dropped() -> None:
    machine = task(A, B)
    machine.handle(barrier(A, 6))

    assert dropped(machine.handle(barrier(B, 4)))
    assert dropped(machine.handle(barrier(B, 5)))
    assert dropped(machine.handle(barrier(B, 6, OLDER)))
    assert dropped(machine.handle(b.RowsArrived(B, OLDER)))


def test_a_snapshot_is_acknowledged_when_it_is_durable_and_once() -> None:
    machine = task(A)
    machine.handle(barrier(A, 5))

    assert machine.handle(stored(5)) == [b.AckSnapshot(TASK, Epoch(5), ME)]
    assert dropped(machine.handle(stored(5)))


def test_a_snapshot_is_acknowledged_behind_those_it_builds_on() -> None:
    machine = task(A)
    machine.handle(barrier(A, 5))
    machine.handle(barrier(A, 6))

    assert machine.handle(stored(6)) == []
    assert machine.handle(stored(5)) == [b.AckSnapshot(TASK, Epoch(5), ME), b.AckSnapshot(TASK, Epoch(6), ME)]


def test_a_snapshot_that_was_never_captured_cannot_be_durable() -> None:
    with pytest.raises(InvalidTransition, match="never captured"):
        task(A).handle(stored(5))


def test_an_aborted_alignment_releases_its_inputs_and_its_barrier_is_over() -> None:
    machine = task(A, B)
    machine.handle(barrier(A, 5))
    released = machine.handle(b.EpochAborted(Epoch(5), ME))

    assert released[1:] == [b.Release(A)]
    assert dropped(machine.handle(barrier(B, 5)))


def test_an_abort_of_another_epoch_changes_nothing() -> None:
    machine = task(A, B)
    assert machine.handle(b.EpochAborted(Epoch(4), ME)) == []
    machine.handle(barrier(A, 6))

    assert machine.handle(b.EpochAborted(Epoch(5), ME)) == []
    assert machine.held == {A}


def test_a_higher_barrier_abandons_the_alignment_under_way() -> None:
    """A source that saw only the newest marker skips the epoch before: the others must not wait for ever."""
    machine = task(A, B)
    machine.handle(barrier(A, 5))
    moved = machine.handle(barrier(B, 6))

    assert moved[1:] == [b.Release(A), b.Hold(B)]
    assert machine.handle(barrier(A, 6)) == [*taken(6), b.Release(B)]


@pytest.mark.parametrize("first", [barrier(B, 7, NEWER), b.RowsArrived(B, NEWER, 3)], ids=str)
def test_a_newer_life_is_joined_before_anything_of_it_is_processed(first: Event) -> None:
    machine = task(A, B)
    machine.handle(barrier(A, 5))
    met = machine.handle(first)
    joined = machine.handle(b.Restored(Epoch(6), NEWER))

    assert met == [b.Release(A), b.RestoreTask(NEWER)]
    assert joined == [b.Hold(B) if isinstance(first, b.BarrierArrived) else b.Deliver(first)]
    assert dropped(machine.handle(barrier(A, 7)))


def test_what_a_restored_task_hears_of_its_old_life_is_nothing() -> None:
    machine = task(A)
    machine.handle(barrier(A, 5))
    machine.handle(b.RowsArrived(A, NEWER))
    heard = [machine.handle(stored(5)), machine.handle(b.EpochAborted(Epoch(5), ME))]
    machine.handle(b.Restored(Epoch(4), NEWER))

    assert heard == [[], []]
    assert dropped(machine.handle(stored(5)))


def test_a_task_restored_to_a_still_newer_life_drops_what_sent_it_there() -> None:
    machine = task(A)
    machine.handle(b.RowsArrived(A, NEWER))

    assert dropped(machine.handle(b.Restored(Epoch(4), Incarnation(4))))
    assert machine.incarnation == 4


def test_a_task_restored_to_the_wrong_life_is_an_error() -> None:
    machine = task(A)
    machine.handle(b.RowsArrived(A, NEWER))

    with pytest.raises(InvalidTransition, match="asked for"):
        machine.handle(b.Restored(Epoch(4), ME))


def test_an_abort_of_a_life_that_has_not_arrived_is_dropped() -> None:
    assert dropped(task(A).handle(b.EpochAborted(Epoch(5), NEWER)))


def test_while_restoring_nothing_is_delivered() -> None:
    machine = task(A)
    machine.handle(b.RowsArrived(A, NEWER))

    with pytest.raises(InvalidTransition):
        machine.handle(b.RowsArrived(A, NEWER))
