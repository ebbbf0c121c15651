"""The coordinator decides an epoch when, and only when, everything it consists of is durable; and it always ends."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from checkpoint_protocols.ids import Epoch, Incarnation, SinkId, TaskId, TimerId
from checkpoint_protocols.machine import Effect, Event, InvalidTransition, InvariantBroken, ProtocolViolation
from checkpoint_protocols.vocabulary import Drop, Note, SetTimer
from spark_ckpt.coordination.coordinator import Coordinator, CoordinatorPhase, Limits, Topology
from spark_ckpt.coordination.messages import (
    CommitSink,
    EpochRequested,
    EpochStored,
    EpochStoreFailed,
    Finish,
    InjectBarrier,
    IntervalElapsed,
    NewerIncarnation,
    Outcome,
    Reason,
    SayAborted,
    SinkCommitFailed,
    SinkCommitted,
    SinkPrepared,
    SinkRefused,
    SnapshotAcked,
    Started,
    StopRequested,
    StoreEpoch,
)

S, T, K, L = TaskId("s"), TaskId("t"), SinkId("k"), SinkId("l")
ME, OLDER, NEWER = Incarnation(2), Incarnation(1), Incarnation(3)


class Driver:
    """A coordinator with short ways to say what usually happens."""

    def __init__(
        self, sinks: Iterable[SinkId] = (K,), owed: dict[SinkId, list[Epoch]] | None = None, **limits: int
    ) -> None:
        topology = Topology(frozenset({S, T}), frozenset(sinks))
        self.machine = Coordinator(topology, ME, Epoch(4), Limits(**limits), owed)
        self.timers: dict[str, Event] = {}
        self.first = self.tell(Started())

    def tell(self, event: Event) -> list[Effect]:
        effects = self.machine.handle(event)
        self.timers |= {effect.name: effect.elapsed for effect in effects if isinstance(effect, SetTimer)}
        return effects

    def elapse(self, name: str) -> list[Effect]:
        return self.tell(self.timers[name])

    def ack(self, epoch: int, *tasks: TaskId) -> list[Effect]:
        return [effect for task in tasks for effect in self.tell(SnapshotAcked(task, Epoch(epoch), ME))]

    def prepare(self, epoch: int, *sinks: SinkId) -> list[Effect]:
        return [effect for sink in sinks for effect in self.tell(SinkPrepared(sink, Epoch(epoch), ME))]

    def complete(self, epoch: int) -> list[Effect]:
        return self.ack(epoch, S, T) + self.prepare(epoch, *self.machine.topology.sinks)

    def decide(self, epoch: int) -> list[Effect]:
        self.complete(epoch)
        return self.tell(EpochStored(Epoch(epoch), ME))

    def publish(self, sink: SinkId, epoch: int) -> list[Effect]:
        return self.tell(SinkCommitted(sink, Epoch(epoch), ME))


def only(kind: type[Effect], effects: list[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, kind)]


def dropped(effects: list[Effect]) -> bool:
    return len(effects) == 1 and isinstance(effects[0], Drop)


def finish(effects: list[Effect]) -> Finish:
    assert isinstance(effects[-1], Finish)
    return effects[-1]


# ---- beginning


def test_ids_grow_from_the_highest_decided_one() -> None:
    driver = Driver()

    assert only(InjectBarrier, driver.elapse("interval")) == [InjectBarrier(Epoch(5), ME, Reason.INTERVAL)]
    assert driver.machine.open_epoch == 5


def test_rows_that_come_belong_to_the_open_epoch_or_to_the_one_that_will_be_opened_next() -> None:
    driver = Driver()
    between = driver.machine.next_epoch
    driver.elapse("interval")
    opened = driver.machine.next_epoch
    driver.decide(5)

    assert (between, opened, driver.machine.next_epoch) == (5, 5, 6)


def test_an_interval_that_elapses_in_an_open_epoch_begins_the_next_at_once() -> None:
    driver = Driver()
    driver.elapse("interval")
    driver.elapse("interval")
    driver.complete(5)

    assert only(InjectBarrier, driver.tell(EpochStored(Epoch(5), ME))) == [InjectBarrier(Epoch(6), ME, Reason.INTERVAL)]


def test_a_timer_that_was_set_anew_is_stale() -> None:
    driver = Driver()
    first = driver.timers["interval"]
    driver.elapse("interval")

    assert dropped(driver.tell(first))


def test_a_timer_of_another_life_in_the_same_process_is_stale() -> None:
    assert dropped(Driver().tell(IntervalElapsed(TimerId(1), OLDER)))


def test_a_savepoint_gets_the_next_barrier_and_all_that_wait_share_it() -> None:
    driver = Driver()
    begun = driver.tell(EpochRequested(Reason.SAVEPOINT, "a"))
    driver.tell(EpochRequested(Reason.SAVEPOINT, "b"))
    driver.tell(EpochRequested(Reason.SAVEPOINT, "c"))

    assert only(StoreEpoch, driver.complete(5)) == [StoreEpoch(Epoch(5), ME, Reason.SAVEPOINT, ("a",))]
    assert only(InjectBarrier, begun)
    driver.tell(EpochStored(Epoch(5), ME))
    assert only(StoreEpoch, driver.complete(6)) == [StoreEpoch(Epoch(6), ME, Reason.SAVEPOINT, ("b", "c"))]


def test_a_request_without_a_name_names_nothing() -> None:
    driver = Driver()
    driver.tell(EpochRequested(Reason.INITIAL))

    assert only(StoreEpoch, driver.complete(5)) == [StoreEpoch(Epoch(5), ME, Reason.INITIAL)]


def test_a_final_epoch_is_asked_for_by_a_stop_only() -> None:
    with pytest.raises(InvalidTransition, match="StopRequested"):
        Driver().tell(EpochRequested(Reason.STOP))
    with pytest.raises(InvalidTransition, match="STOP or DRAINED"):
        Driver().tell(StopRequested(Reason.SAVEPOINT))


# ---- deciding


@pytest.mark.parametrize("order", [("s", "t", "k", "l"), ("k", "l", "t", "s"), ("k", "s", "l", "t")])
def test_an_epoch_is_stored_when_all_tasks_and_all_sinks_are_in_and_not_before(order: tuple[str, ...]) -> None:
    """Erratum E2."""
    driver = Driver(sinks=(K, L))
    driver.elapse("interval")
    stored = []
    for name in order:
        stored.append(
            only(StoreEpoch, driver.ack(5, TaskId(name)) if name in "st" else driver.prepare(5, SinkId(name)))
        )

    assert stored == [[], [], [], [StoreEpoch(Epoch(5), ME, Reason.INTERVAL)]]


def test_sinks_publish_after_the_decision_and_not_before() -> None:
    driver = Driver()
    driver.elapse("interval")

    assert not only(CommitSink, driver.complete(5))
    assert only(CommitSink, driver.tell(EpochStored(Epoch(5), ME))) == [CommitSink(K, Epoch(5), ME)]
    assert driver.machine.last_decided == 5


def test_answers_that_came_before_or_too_late_are_dropped() -> None:
    driver = Driver()
    driver.elapse("interval")
    driver.ack(5, S)
    again = driver.ack(5, S)
    driver.complete(5)

    assert again == []
    assert dropped(driver.ack(5, S))
    assert dropped(driver.tell(SnapshotAcked(S, Epoch(5), OLDER)))
    assert dropped(driver.prepare(4, K))
    assert dropped(driver.tell(SinkRefused(K, Epoch(5), ME)))


@pytest.mark.parametrize(
    "event",
    [
        SnapshotAcked(S, Epoch(6), ME),
        SnapshotAcked(TaskId("x"), Epoch(5), ME),
        SinkPrepared(SinkId("x"), Epoch(5), ME),
        EpochStored(Epoch(5), ME),
        SinkCommitted(SinkId("x"), Epoch(4), ME),
        SinkCommitted(K, Epoch(5), ME),
        Started(),
    ],
    ids=str,
)
def test_what_cannot_happen_raises_with_the_story_and_changes_nothing(event: Event) -> None:
    driver = Driver()
    driver.elapse("interval")
    before = repr(vars(driver.machine))

    with pytest.raises(InvalidTransition, match="IDLE: IntervalElapsed"):
        driver.machine.handle(event)
    assert repr(vars(driver.machine)) == before


def test_a_decision_for_another_epoch_raises() -> None:
    driver = Driver()
    driver.elapse("interval")
    driver.complete(5)

    with pytest.raises(InvalidTransition, match="the open epoch is 5"):
        driver.tell(EpochStored(Epoch(6), ME))


# ---- aborting


def test_a_timeout_aborts_and_says_who_was_missing() -> None:
    driver = Driver(sinks=[SinkId(f"k{number}") for number in range(6)])
    driver.elapse("interval")
    driver.ack(5, S)
    effects = driver.elapse("epoch")

    assert only(SayAborted, effects) == [
        SayAborted(Epoch(5), "nothing came within 600000 ms from t, k0, k1, k2, k3 and 2 more")
    ]


def test_few_who_were_missing_are_all_named() -> None:
    driver = Driver()
    driver.elapse("interval")
    (aborted,) = only(SayAborted, driver.elapse("epoch"))

    assert aborted.why == "nothing came within 600000 ms from s, t, k"


def test_an_aborted_epoch_is_tried_again_under_a_new_id_after_a_pause() -> None:
    driver = Driver()
    driver.tell(EpochRequested(Reason.SAVEPOINT, "a"))
    aborted = driver.tell(SinkRefused(K, Epoch(5), ME, "disk full"))
    meanwhile = driver.tell(EpochRequested(Reason.SAVEPOINT, "b"))
    again = driver.elapse("pause")

    assert only(SayAborted, aborted) == [SayAborted(Epoch(5), "sink k could not prepare: disk full")]
    assert meanwhile == []
    assert only(InjectBarrier, again) == [InjectBarrier(Epoch(6), ME, Reason.SAVEPOINT)]
    assert only(StoreEpoch, driver.complete(6)) == [StoreEpoch(Epoch(6), ME, Reason.SAVEPOINT, ("a", "b"))]
    assert dropped(driver.ack(5, S))


def test_a_pause_that_is_over_is_stale() -> None:
    driver = Driver()
    driver.elapse("interval")
    driver.elapse("epoch")
    driver.elapse("pause")

    assert dropped(driver.elapse("pause"))


def test_the_run_fails_after_too_many_aborts_in_a_row() -> None:
    driver = Driver(max_failed_epochs=1)
    driver.elapse("interval")
    driver.elapse("epoch")
    driver.elapse("pause")
    end = finish(driver.elapse("epoch"))

    assert end.outcome is Outcome.FAILED
    assert "2 epochs in a row" in end.why


def aborts_survived(machine: type[Coordinator], limit: int) -> int:
    """Aborts in a row, the one that ends the run left out."""
    driver = Driver(max_failed_epochs=limit)
    topology = Topology(frozenset({S, T}), frozenset({K}))
    driver.machine = machine(topology, ME, Epoch(4), Limits(max_failed_epochs=limit))
    driver.tell(Started())
    driver.elapse("interval")
    survived = 0
    while not only(Finish, driver.elapse("epoch")):
        survived += 1
        driver.elapse("pause")
    return survived


class GivesUpOneEarly(Coordinator):
    def _abort(self, why: str) -> list[Effect]:
        self._failed_in_a_row += self._failed_in_a_row == self.limits.max_failed_epochs - 1
        return super()._abort(why)


class GivesUpOneLate(Coordinator):
    def _abort(self, why: str) -> list[Effect]:
        if self._failed_in_a_row == self.limits.max_failed_epochs and not hasattr(self, "forgiven"):
            self.forgiven = True
            self._failed_in_a_row -= 1
        return super()._abort(why)


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_run_survives_as_many_aborts_in_a_row_as_it_may(limit: int) -> None:
    assert aborts_survived(Coordinator, limit) == limit


@pytest.mark.parametrize(("machine", "survived"), [(GivesUpOneEarly, 2), (GivesUpOneLate, 4)])
def test_a_bound_on_aborts_that_is_off_by_one_is_seen(machine: type[Coordinator], survived: int) -> None:
    assert aborts_survived(machine, 3) == survived


def test_a_decided_epoch_forgives_the_aborts_before_it() -> None:
    driver = Driver(max_failed_epochs=1)
    for epoch in (5, 7):
        driver.elapse("interval" if epoch == 5 else "pause")
        if epoch == 7:
            break
        driver.elapse("epoch")
        driver.elapse("pause")
        driver.decide(6)
        driver.elapse("interval")
        driver.elapse("epoch")

    assert driver.machine.phase is CoordinatorPhase.ALIGNING


def test_a_decision_of_unknown_outcome_ends_the_run_in_doubt_and_aborts_nothing() -> None:
    driver = Driver()
    driver.elapse("interval")
    driver.complete(5)
    effects = driver.elapse("store")

    assert finish(effects).outcome is Outcome.FAILED
    assert not only(SayAborted, effects)


# ---- publishing


def test_what_was_left_unpublished_is_redone_in_order_before_anything_new_of_that_sink() -> None:
    driver = Driver(sinks=(K, L), owed={K: [Epoch(3), Epoch(4)]})
    driver.elapse("interval")
    decided = driver.decide(5)

    assert only(CommitSink, driver.first) == [CommitSink(K, Epoch(3), ME)]
    assert only(CommitSink, decided) == [CommitSink(L, Epoch(5), ME)]
    assert only(CommitSink, driver.publish(K, 3)) == [CommitSink(K, Epoch(4), ME)]
    assert only(CommitSink, driver.publish(K, 4)) == [CommitSink(K, Epoch(5), ME)]
    assert driver.machine.unpublished == {K: (5,), L: (5,)}


def test_a_sinks_answer_covers_what_it_published_before() -> None:
    driver = Driver(owed={K: [Epoch(2), Epoch(3), Epoch(4)]})

    assert driver.publish(K, 3) == [CommitSink(K, Epoch(4), ME)]
    assert dropped(driver.publish(K, 2))


def test_a_sink_that_is_no_longer_in_the_graph_still_gets_what_it_is_owed() -> None:
    driver = Driver(owed={L: [Epoch(4)]})

    assert only(CommitSink, driver.first) == [CommitSink(L, Epoch(4), ME)]


def test_too_many_unpublished_epochs_hold_back_the_barrier_until_the_sink_catches_up() -> None:
    driver = Driver(max_unpublished=1)
    driver.elapse("interval")
    driver.decide(5)
    held_back = driver.elapse("interval")

    assert [effect.what for effect in held_back if isinstance(effect, Note)] == ["barrier held back"]
    assert only(InjectBarrier, driver.publish(K, 5)) == [InjectBarrier(Epoch(6), ME, Reason.INTERVAL)]


def test_a_failed_publish_is_tried_again_after_a_pause() -> None:
    driver = Driver(owed={K: [Epoch(4)]})
    failed = driver.tell(SinkCommitFailed(K, Epoch(4), ME, retriable=True))
    again = driver.elapse("retry k")

    assert not only(CommitSink, failed)
    assert again == [CommitSink(K, Epoch(4), ME)]
    assert dropped(driver.elapse("retry k"))


def test_publishing_ends_the_run_when_it_cannot_succeed_or_was_tried_too_often() -> None:
    hopeless = Driver(owed={K: [Epoch(4)]})
    unlucky = Driver(owed={K: [Epoch(4)]}, max_publish_attempts=1)
    ends = [
        finish(hopeless.tell(SinkCommitFailed(K, Epoch(4), ME, retriable=False, why="marker differs"))),
        finish(unlucky.tell(SinkCommitFailed(K, Epoch(4), ME, retriable=True))),
    ]

    assert [end.outcome for end in ends] == [Outcome.FAILED] * 2
    assert [end.unpublished for end in ends] == [((K, 4),)] * 2
    assert "marker differs" in ends[0].why


# ---- ending


def test_a_stop_in_an_open_epoch_waits_for_it_and_takes_a_final_one() -> None:
    driver = Driver()
    driver.elapse("interval")
    asked = driver.tell(StopRequested())
    driver.tell(StopRequested(Reason.DRAINED))
    final = driver.decide(5)
    driver.publish(K, 5)
    decided = driver.decide(6)

    assert asked == []
    assert only(InjectBarrier, final) == [InjectBarrier(Epoch(6), ME, Reason.STOP)]
    assert not only(Finish, decided)
    assert driver.publish(K, 6) == [Finish(Outcome.STOPPED)]


def test_the_final_epoch_waits_for_earlier_epochs_of_its_sinks() -> None:
    driver = Driver(owed={K: [Epoch(4)]})
    driver.tell(StopRequested())
    driver.decide(5)

    assert not only(Finish, driver.publish(K, 4))
    assert finish(driver.publish(K, 5)).outcome is Outcome.STOPPED


def test_without_sinks_the_final_decision_is_the_end() -> None:
    driver = Driver(sinks=())
    driver.tell(StopRequested(Reason.DRAINED))

    assert driver.decide(5) == [Finish(Outcome.STOPPED)]


def test_the_final_epoch_is_not_held_back_by_a_slow_sink() -> None:
    driver = Driver(max_unpublished=1, owed={K: [Epoch(4)]})

    assert only(InjectBarrier, driver.tell(StopRequested()))


def test_a_sink_that_never_answers_does_not_keep_a_stopped_run() -> None:
    driver = Driver()
    driver.tell(StopRequested())
    driver.decide(5)

    assert finish(driver.elapse("publish")) == Finish(
        Outcome.STOPPED, f"sink {K} did not publish epoch 5 within 600000 ms", ((K, Epoch(5)),)
    )


def test_a_savepoint_behind_the_final_epoch_is_refused_aloud() -> None:
    driver = Driver()
    driver.tell(StopRequested())
    driver.decide(5)

    (note,) = driver.tell(EpochRequested(Reason.SAVEPOINT, "late"))
    assert isinstance(note, Note)
    assert (note.what, "'late'" in note.detail) == ("request refused", True)


def test_a_final_epoch_that_is_aborted_is_tried_again() -> None:
    driver = Driver()
    driver.tell(StopRequested())
    driver.elapse("epoch")

    assert only(InjectBarrier, driver.elapse("pause")) == [InjectBarrier(Epoch(6), ME, Reason.STOP)]


@pytest.mark.parametrize(
    "event",
    [NewerIncarnation(NEWER), SnapshotAcked(S, Epoch(9), NEWER), EpochStoreFailed(Epoch(5), ME)],
    ids=str,
)
def test_a_fenced_coordinator_ends_and_says_nothing_any_more(event: Event) -> None:
    driver = Driver()
    driver.elapse("interval")
    driver.complete(5)
    end = finish(driver.tell(event))
    after = [driver.tell(each) for each in (EpochStored(Epoch(5), ME), event, StopRequested(), *driver.timers.values())]

    assert end.outcome is Outcome.FENCED
    assert after == [[]] * len(after)


def test_a_coordinator_may_be_fenced_before_it_starts() -> None:
    machine = Coordinator(Topology(frozenset({S}), frozenset()), ME, Epoch(0), Limits())

    assert finish(machine.handle(NewerIncarnation(NEWER))) == Finish(
        Outcome.FENCED, f"incarnation {NEWER} took over", ()
    )


def test_a_coordinator_is_fenced_by_a_participant_that_knows_no_number() -> None:
    driver = Driver()

    assert finish(driver.tell(NewerIncarnation(ME, "the producer was replaced"))).why == "the producer was replaced"


# ---- construction


@pytest.mark.parametrize(
    "limits",
    [
        {"max_in_flight": 2},
        {"retry_ms": 0},
        {"max_unpublished": 0},
        {"max_failed_epochs": -1},
        {"max_publish_attempts": 0},
    ],
    ids=str,
)
def test_limits_out_of_range_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ProtocolViolation):
        Limits(**limits)


def test_limits_at_their_ends_are_taken() -> None:
    limits = Limits(1, 1, 1, 1, 1, max_failed_epochs=0, max_unpublished=1, max_publish_attempts=1)

    assert (limits.max_failed_epochs, limits.max_unpublished, limits.max_publish_attempts) == (0, 1, 1)


def test_a_topology_without_tasks_is_refused() -> None:
    with pytest.raises(ProtocolViolation, match="needs a task"):
        Topology(frozenset(), frozenset({K}))


def test_unpublished_epochs_that_were_never_decided_are_refused() -> None:
    with pytest.raises(InvariantBroken, match="decided epochs only"):
        Driver(owed={K: [Epoch(5)]})
