"""An epoch is committed when, and only when, everything that belongs to it is durable; and every epoch ends."""

from __future__ import annotations

from dataclasses import asdict, replace

import pytest

from checkpoint_protocols.machine import Drop, InvalidTransition, InvariantBroken, ProtocolViolation
from checkpoint_protocols.vocabulary import Note
from spark_ckpt.connector import StagedFile
from spark_ckpt.coordination.job_shape import JobShape, Limits, OperatorShape, SinkPlace
from spark_ckpt.coordination.manifests import stamped
from spark_ckpt.coordination.messages import (
    AcksDue,
    AcksRecorded,
    ArmTimer,
    BatchDone,
    CommitEpoch,
    CommitFenced,
    CommitOverdue,
    CountBatch,
    EarlySendEnded,
    End,
    EpochCommitted,
    EpochRequested,
    IntervalElapsed,
    NameEpoch,
    OfferMarker,
    Outcome,
    PauseElapsed,
    Publish,
    PublishEnded,
    QueryStarting,
    Reason,
    RetryElapsed,
    SayAborted,
    SayCommitted,
    SayPublished,
    SourcesPinned,
    StandbyWaits,
    StopRequested,
    TimeoutElapsed,
)
from spark_ckpt.coordination.protocol import EpochPhase, EpochProtocol
from spark_ckpt.coordination.reports import Report
from spark_ckpt.epochs.records import Manifest, StagedFileRecord, StagedOutput
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import Fenced, PublishConflict, PublishFailed, RunFailed, StoreUnreachable

ME, LAST = 2, 4
GROUPS = 7
BASE = Manifest(job="job", epoch=LAST, incarnation=1, attempt="last", created_ms=0, cursors={"in": {"n": 0}})


def committed(epoch, **more):
    return BASE.model_copy(update={"epoch": epoch, "attempt": str(epoch), **more})


class Job:
    """The protocol of an incarnation that continues from epoch 4, with short methods for its usual events."""

    def __init__(self, sinks=("k",), unpublished=None, protocol=EpochProtocol, every_batch=False, held=None, **limits):
        places = {sink: SinkPlace("file:/out") for sink in sinks}
        operators = (OperatorShape("sum", "k int", "n int", GROUPS),)
        shape = JobShape("job", ("in",), places, operators, Limits(**limits), every_batch=every_batch)
        due = {
            sink: [committed(epoch, **(held or {})) for epoch in epochs] for sink, epochs in (unpublished or {}).items()
        }
        self.protocol = protocol(shape, RecoveryPoint(ME, BASE, LAST, "latest", due))
        self.timers, self.effects, self.markers, self.rows = {}, [], 0, 0
        self.tell(SourcesPinned({}))
        self.first = self.tell(QueryStarting(behind=False))

    def tell(self, event):
        self.effects = self.protocol.handle(event, 0.0)
        for effect in self.of(ArmTimer):
            self.timers[type(effect.elapsed)] = effect.elapsed
        self.markers = max([self.markers, *(each.marker.number for each in self.of(OfferMarker))])
        return self.effects

    def of(self, kind):
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def elapse(self, kind):
        return self.tell(self.timers[kind])

    def begin(self):
        """End the interval of a stream with rows."""
        self.batch(markers=self.markers)
        return self.elapse(IntervalElapsed)

    def batch(self, groups=range(GROUPS), markers=None, rows=1, drained=False):
        """Run a batch up to the newest marker; these key groups have a durable snapshot for the epoch of its barrier."""
        self.rows += rows
        newest = self.protocol.cut.markers.newest.epoch
        votes = [Report("operator", 0, 0, "sum", {"epoch": newest, "groups": [group]}) for group in groups]
        reports = (Report("input", 0, 0, "sources", {"rows_in": rows}), *(votes if markers is None else ()))
        reached = self.markers if markers is None else markers
        return self.tell(BatchDone(0, {"in": {"n": self.rows}}, 0, reached, reports, drained=drained))

    def stored(self):
        """Acknowledge the manifest that the log was requested to append."""
        (commit,) = self.of(CommitEpoch)
        return self.tell(EpochCommitted(stamped(commit.manifest, f"attempt {commit.manifest.epoch}", 1), commit.names))

    def commit(self):
        """Complete and commit the open epoch."""
        self.batch()
        return self.stored()

    def publish(self, sink, epoch, **how):
        return self.tell(PublishEnded(sink, epoch, **how))

    # -- requested effects

    def begun(self):
        return [each.marker.epoch for each in self.of(OfferMarker)]

    def commits(self):
        return [(each.manifest.epoch, each.manifest.reason, each.names) for each in self.of(CommitEpoch)]

    def publishes(self):
        return [(each.sink, each.output.epoch) for each in self.of(Publish)]

    def dropped(self):
        return [type(each) for each in self.effects] == [Drop]

    def end(self):
        (end,) = self.of(End)
        return end


# -- opening


def test_numbers_grow_from_the_highest_committed_one():
    job = Job()
    job.begin()
    assert (job.begun(), job.protocol.open_epoch) == ([5], 5)


def test_rows_that_come_belong_to_the_open_epoch_or_to_the_one_that_will_be_opened_next():
    job = Job()
    between = job.protocol.next_epoch
    job.begin()
    opened = job.protocol.next_epoch
    job.commit()
    assert (between, opened, job.protocol.next_epoch) == (5, 5, 6)


def test_an_interval_that_elapses_in_an_open_epoch_begins_the_next_at_once():
    job = Job()
    job.begin()
    job.batch(markers=1)
    job.elapse(IntervalElapsed)
    job.commit()
    assert job.begun() == [6]


def test_a_timer_that_was_set_again_is_stale():
    job = Job()
    first = job.timers[IntervalElapsed]
    job.begin()
    job.tell(first)
    assert job.dropped()


def intervals_ms(job):
    return [each.delay_ms for each in job.of(ArmTimer) if isinstance(each.elapsed, IntervalElapsed)]


def test_intervals_are_short_while_a_standby_waits():
    job = Job(interval_ms=5_000, standby_interval_ms=1_000)
    job.tell(StandbyWaits(True))
    assert intervals_ms(job) == [1_000], "the one that runs is shortened at once"
    job.begin()
    assert intervals_ms(job) == [1_000]
    job.commit()
    job.tell(StandbyWaits(False))
    assert intervals_ms(job) == [], "the one that runs ends soon"
    job.begin()
    assert intervals_ms(job) == [5_000]


@pytest.mark.parametrize("short_ms", [None, 5_000, 9_000])
def test_a_standby_never_lengthens_an_interval(short_ms):
    job = Job(interval_ms=5_000, standby_interval_ms=short_ms)
    assert job.tell(StandbyWaits(True)) == []
    job.begin()
    assert intervals_ms(job) == [5_000]


def test_an_idle_streams_first_rows_begin_an_epoch_at_once_although_a_standby_began_to_wait():
    job = Job(interval_ms=5_000, standby_interval_ms=1_000)
    job.elapse(IntervalElapsed)
    assert job.tell(StandbyWaits(True)) == []
    job.batch(markers=1)
    assert job.begun() == [5]


def test_a_savepoint_gets_the_next_barrier_and_all_that_wait_share_it():
    job = Job()
    for name in "abc":
        job.tell(EpochRequested(Reason.SAVEPOINT, name))
    job.batch()
    assert job.commits() == [(5, "savepoint", ("a",))]
    job.stored()
    assert [each.name for each in job.of(NameEpoch)] == ["a"]
    job.batch()
    assert job.commits() == [(6, "savepoint", ("b", "c"))]


def test_a_request_without_a_name_names_nothing():
    job = Job()
    job.tell(EpochRequested(Reason.INTERVAL))
    job.batch()
    assert job.commits() == [(5, "interval", ())]


def test_only_a_stop_requests_a_final_epoch():
    with pytest.raises(InvalidTransition, match="StopRequested"):
        Job().tell(EpochRequested(Reason.STOP))
    with pytest.raises(InvalidTransition, match="STOP or DRAINED"):
        Job().tell(StopRequested(Reason.SAVEPOINT))


# -- committing


@pytest.mark.parametrize("missing", range(GROUPS))
def test_an_epoch_is_not_committed_without_the_snapshot_of_every_key_group(missing):
    """Erratum E2: the rows of its sinks are durable, and that is not enough."""
    job = Job()
    job.begin()
    job.batch(groups=set(range(GROUPS)) - {missing})
    assert job.commits() == []
    assert job.protocol.phase is EpochPhase.ALIGNING


class SinksAreEnough(EpochProtocol):
    """A planted bug: staged rows of all sinks are enough."""

    def __init__(self, *what):
        super().__init__(*what)
        self.cut.missing_groups = lambda ended: frozenset()


def test_a_planted_commit_without_a_snapshot_is_found():
    job = Job(protocol=SinksAreEnough)
    job.begin()
    job.batch(groups=())
    assert job.commits() == [(5, "interval", ())]


def test_sinks_publish_after_the_commit_and_not_before():
    job = Job()
    job.begin()
    job.batch()
    assert job.publishes() == []
    job.stored()
    assert (job.publishes(), job.protocol.last_committed) == ([("k", 5)], 5)


def test_a_key_group_that_the_job_does_not_have_is_refused():
    job = Job()
    job.begin()
    with pytest.raises(ProtocolViolation, match="unknown key groups"):
        job.batch(groups=range(GROUPS + 1))


@pytest.mark.parametrize(
    "event",
    [
        QueryStarting(False),
        SourcesPinned({}),
        EpochCommitted(BASE),
        CommitFenced(5, ""),
        CommitOverdue(5),
        PublishEnded("x", 4),
        PublishEnded("k", 5),
    ],
    ids=lambda event: type(event).__name__,
)
def test_an_impossible_event_raises_with_the_story(event):
    job = Job()
    job.begin()
    with pytest.raises(InvalidTransition, match="IDLE: IntervalElapsed"):
        job.tell(event)
    assert (job.protocol.phase, job.protocol.open_epoch) == (EpochPhase.ALIGNING, 5)


def test_the_story_of_a_job_with_many_tasks_has_few_of_their_reports():
    job, reports = Job(), tuple(Report("input", task, 0, "in", {"rows_in": 1}) for task in range(1_000))
    counted = next(effect for effect in job.tell(BatchDone(0, {}, 0, 0, reports)) if isinstance(effect, CountBatch))
    assert counted.counts["numInputRows"] == 1_000
    kept = next(chapter.event for chapter in job.protocol.story if isinstance(chapter.event, BatchDone))
    assert kept.reports == reports[: len(kept.reports)]
    assert 0 < len(kept.reports) < 100


def test_a_commit_of_another_epoch_raises():
    job = Job()
    job.begin()
    job.batch()
    with pytest.raises(InvalidTransition, match="the open epoch is 5"):
        job.tell(EpochCommitted(committed(6)))


def test_an_answer_of_the_log_is_overdue_only_while_there_is_none():
    job = Job()
    job.begin()
    job.commit()
    job.tell(CommitOverdue(5))
    assert job.dropped()


def test_a_commit_of_unknown_outcome_ends_the_run_in_doubt_and_aborts_nothing():
    job = Job()
    job.begin()
    job.batch()
    job.elapse(TimeoutElapsed)
    assert (job.end().outcome, type(job.end().error), job.of(SayAborted)) == (Outcome.FAILED, StoreUnreachable, [])


# -- aborting


def test_a_timeout_aborts_and_names_the_missing_parts():
    job = Job()
    job.begin()
    job.batch(groups=(0,))
    job.elapse(TimeoutElapsed)
    (aborted,) = job.of(SayAborted)
    assert (aborted.epoch, aborted.why.rpartition("from ")[2]) == (5, "sum/1, sum/2, sum/3, sum/4, sum/5 and 1 more")


def test_a_few_missing_key_groups_are_all_named():
    job = Job()
    job.begin()
    job.batch(groups=range(2, GROUPS))
    job.elapse(TimeoutElapsed)
    assert [each.why.rpartition("from ")[2] for each in job.of(SayAborted)] == ["sum/0, sum/1"]


def test_a_barrier_that_never_reaches_a_batch_is_named():
    job = Job()
    job.begin()
    job.elapse(TimeoutElapsed)
    assert [each.why.rpartition("from ")[2] for each in job.of(SayAborted)] == ["the barrier's batch"]


def test_an_aborted_epoch_is_retried_under_a_new_number_after_a_pause():
    job = Job()
    job.tell(EpochRequested(Reason.SAVEPOINT, "a"))
    job.elapse(TimeoutElapsed)
    assert [each.epoch for each in job.of(SayAborted)] == [5]
    assert job.tell(EpochRequested(Reason.SAVEPOINT, "b")) == []
    job.elapse(PauseElapsed)
    assert job.begun() == [6]
    job.batch()
    assert job.commits() == [(6, "savepoint", ("a", "b"))]


def test_a_pause_that_is_over_is_stale():
    job = Job()
    job.begin()
    job.elapse(TimeoutElapsed)
    job.elapse(PauseElapsed)
    job.elapse(PauseElapsed)
    assert job.dropped()


def test_a_bound_of_an_epoch_that_is_over_is_stale():
    job = Job()
    job.begin()
    bound = job.timers[TimeoutElapsed]
    job.commit()
    job.tell(bound)
    assert job.dropped()


def test_the_run_fails_after_too_many_aborts_in_a_row():
    job = Job(max_failed_epochs=1)
    job.begin()
    job.elapse(TimeoutElapsed)
    job.elapse(PauseElapsed)
    job.elapse(TimeoutElapsed)
    assert (job.end().outcome, type(job.end().error)) == (Outcome.FAILED, RunFailed)
    assert "2 epochs in a row" in job.end().error.what


def aborts_survived(protocol, limit):
    """Return the number of aborts in a row, without the one that ends the run."""
    job = Job(protocol=protocol, max_failed_epochs=limit)
    job.begin()
    survived = 0
    while not (job.elapse(TimeoutElapsed) and job.of(End)):
        survived += 1
        job.elapse(PauseElapsed)
    return survived


class GivesUpOneEarly(EpochProtocol):
    def __init__(self, shape, *what):
        fewer = replace(shape.limits, max_failed_epochs=shape.limits.max_failed_epochs - 1)
        super().__init__(replace(shape, limits=fewer), *what)


class GivesUpOneLate(EpochProtocol):
    def __init__(self, shape, *what):
        more = replace(shape.limits, max_failed_epochs=shape.limits.max_failed_epochs + 1)
        super().__init__(replace(shape, limits=more), *what)


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_run_survives_as_many_aborts_in_a_row_as_it_may(limit):
    assert aborts_survived(EpochProtocol, limit) == limit


@pytest.mark.parametrize(("protocol", "survived"), [(GivesUpOneEarly, 2), (GivesUpOneLate, 4)])
def test_a_planted_bound_on_aborts_that_is_off_by_one_is_found(protocol, survived):
    assert aborts_survived(protocol, 3) == survived


def test_a_committed_epoch_resets_the_count_of_aborts():
    job = Job(max_failed_epochs=1)
    for _ in range(2):
        job.begin()
        job.elapse(TimeoutElapsed)
        job.elapse(PauseElapsed)
        job.commit()
    assert job.protocol.phase is EpochPhase.IDLE


# -- publishing


def test_unpublished_epochs_of_a_sink_are_published_in_order_before_new_ones():
    job = Job(sinks=("k", "l"), unpublished={"k": [3, 4]})
    assert job.publishes() == [("k", 3)]
    job.begin()
    job.commit()
    assert job.publishes() == [("l", 5)]
    job.publish("k", 3)
    assert job.publishes() == [("k", 4)]
    job.publish("k", 4)
    assert job.publishes() == [("k", 5)]
    assert {sink: list(epochs) for sink, epochs in job.protocol.publication.unpublished.items()} == {"k": [5], "l": [5]}


def test_an_acknowledgement_covers_earlier_epochs():
    job = Job(unpublished={"k": [2, 3, 4]})
    job.publish("k", 3)
    assert job.publishes() == [("k", 4)]
    job.publish("k", 2)
    assert job.dropped()


def test_too_many_unpublished_epochs_delay_the_barrier_until_the_sink_catches_up():
    job = Job(max_unpublished=1)
    job.begin()
    job.commit()
    job.begin()
    assert [each.what for each in job.of(Note)] == ["barrier held back"]
    job.publish("k", 5)
    assert job.begun() == [6]


def test_a_failed_publish_is_retried_after_a_pause():
    job = Job(unpublished={"k": [4]})
    job.publish("k", 4, error=PublishFailed("away"))
    assert job.publishes() == []
    job.elapse(RetryElapsed)
    assert job.publishes() == [("k", 4)]
    job.elapse(RetryElapsed)
    assert job.dropped()


def test_a_final_publish_failure_or_too_many_attempts_end_the_run():
    hopeless, unlucky = Job(unpublished={"k": [4]}), Job(unpublished={"k": [4]}, max_publish_attempts=1)
    hopeless.publish("k", 4, error=PublishConflict("the marker differs"))
    unlucky.publish("k", 4, error=PublishFailed("away"))
    ends = [hopeless.end(), unlucky.end()]
    assert [end.outcome for end in ends] == [Outcome.FAILED] * 2
    assert [type(end.error) for end in ends] == [PublishConflict, PublishFailed]


def test_an_epoch_whose_rows_are_all_deferred_is_not_published():
    file = StagedFileRecord(path="a", size_bytes=1, rows=1, lane=0, batch=0, task=0, part=0)
    held = {"held": {"k": StagedOutput(sink="k", files=(file,), rows=1)}}
    job = Job(unpublished={"k": [4]}, held=held)
    assert job.publishes() == []
    assert not any(job.protocol.publication.unpublished.values())


# -- ending


def test_a_stop_in_an_open_epoch_waits_for_it_and_takes_a_final_one():
    job = Job()
    job.begin()
    assert job.tell(StopRequested()) == []
    assert job.tell(StopRequested(Reason.DRAINED)) == []
    job.commit()
    assert (job.begun(), job.protocol.is_ending) == ([6], True)
    job.publish("k", 5)
    job.batch()
    assert job.commits() == [(6, "stop", ())]
    job.stored()
    assert job.of(End) == []
    job.publish("k", 6)
    assert (job.end().outcome, job.end().error) == (Outcome.STOPPED, None)


def test_the_final_epoch_waits_for_earlier_epochs_of_its_sinks():
    job = Job(unpublished={"k": [4]})
    job.tell(StopRequested())
    job.commit()
    job.publish("k", 4)
    assert job.of(End) == []
    job.publish("k", 5)
    assert job.end().outcome is Outcome.STOPPED


def test_without_sinks_the_final_commit_is_the_end():
    job = Job(sinks=())
    job.tell(StopRequested(Reason.DRAINED))
    job.commit()
    assert job.end().outcome is Outcome.STOPPED


def test_sources_that_are_read_to_their_ends_end_the_run_once():
    job = Job()
    job.batch(markers=1, drained=True)
    assert job.begun() == [5]
    job.batch(drained=True)
    assert job.commits() == [(5, "drained", ())]


def test_a_slow_sink_does_not_delay_the_final_epoch():
    job = Job(max_unpublished=1, unpublished={"k": [4]})
    job.tell(StopRequested())
    assert job.begun() == [5]


def test_a_sink_that_never_answers_does_not_block_a_stop():
    job = Job(unpublished={"k": [4]})
    job.tell(StopRequested())
    job.commit()
    job.elapse(TimeoutElapsed)
    assert (job.end().outcome, type(job.end().error)) == (Outcome.STOPPED, PublishFailed)
    assert job.end().error.what == "sink k did not publish epochs 4, 5 within 600000 ms"


def test_a_savepoint_after_the_final_epoch_is_refused_with_an_error():
    job = Job()
    job.tell(StopRequested())
    job.commit()
    (note,) = job.tell(EpochRequested(Reason.SAVEPOINT, "late"))
    assert (note.what, "'late'" in note.detail) == ("request refused", True)


def test_an_aborted_final_epoch_is_retried():
    job = Job()
    job.tell(StopRequested())
    job.elapse(TimeoutElapsed)
    job.elapse(PauseElapsed)
    assert job.begun() == [6]


@pytest.mark.parametrize(
    "event",
    [
        CommitFenced(5, "incarnation 3 is there"),
        PublishEnded("k", 4, error=Fenced("replaced")),
        PublishEnded("k", 4, replayed=True, newest=ME + 1),
        EarlySendEnded("k", 5, error=Fenced("replaced")),
        AcksRecorded((), Fenced("replaced")),
    ],
    ids=lambda event: type(event).__name__,
)
def test_a_fenced_incarnation_ends_without_further_requests(event):
    job = Job(unpublished={"k": [4]})
    job.protocol.publication.early.ended = lambda event: None
    job.begin()
    job.batch()
    job.tell(event)
    assert (job.end().outcome, type(job.end().error)) == (Outcome.FENCED, Fenced)
    after = (event, StopRequested(), *job.timers.values(), AcksDue(), AcksRecorded((), None), CommitOverdue(5))
    assert [job.tell(each) for each in after] == [[]] * len(after)


@pytest.mark.parametrize(("error", "announced"), [(PublishConflict("no"), 1), (Fenced("replaced"), 0)])
def test_after_the_end_a_commit_is_announced_and_a_publish_unless_fenced(error, announced):
    job = Job(sinks=("k", "l"), unpublished={"k": [4], "l": [4]})
    job.tell(EpochRequested(Reason.SAVEPOINT, "a"))
    job.batch()
    (commit,) = job.of(CommitEpoch)
    job.publish("k", 4, error=error)
    assert [type(each) for each in job.tell(EpochCommitted(commit.manifest, commit.names))] == [SayCommitted, NameEpoch]
    job.publish("l", 4, rows=1)
    assert len(job.of(SayPublished)) == announced
    (ack, *_) = job.protocol.publication.acks
    assert job.tell(AcksRecorded((ack,))) == []
    assert job.protocol.publication.acks == ()


def test_only_a_commit_of_own_work_is_progress():
    job = Job()
    job.begin()
    before = job.protocol.progressed
    job.commit()
    assert (before, job.protocol.progressed) == (False, True)


# -- construction


@pytest.mark.parametrize(
    "limits",
    [
        {"max_in_flight": 2},
        {"retry_ms": 0},
        {"standby_interval_ms": 0},
        {"max_unpublished": 0},
        {"max_failed_epochs": -1},
        {"max_publish_attempts": 0},
    ],
    ids=str,
)
def test_limits_out_of_range_are_refused(limits):
    with pytest.raises(ProtocolViolation):
        Limits(**limits)


def test_limits_at_their_bounds_are_accepted():
    limits = Limits(1, 1, 1, 1, 1, max_failed_epochs=0, max_unpublished=1, max_publish_attempts=1)
    assert (limits.max_failed_epochs, limits.max_unpublished, limits.max_publish_attempts) == (0, 1, 1)


def test_unpublished_epochs_that_were_never_committed_are_refused():
    with pytest.raises(InvariantBroken, match="committed epochs only"):
        Job(unpublished={"k": [5]})


def test_a_number_without_a_commit_is_used_again_by_the_next_incarnation():
    """An epoch is (incarnation, epoch)."""
    died, following = Job(), Job()
    died.begin()
    following.begin()
    assert (died.protocol.open_epoch, following.protocol.open_epoch) == (5, 5)


def test_rows_staged_in_a_batch_are_in_the_epoch_that_ends_next():
    job = Job()
    job.begin()
    file = asdict(StagedFile("a", 1, 1, 0, 0, 0, 0))
    job.tell(BatchDone(0, {"in": {"n": 9}}, 0, 1, (Report("tap", 0, 0, "k", file),)))
    job.batch()
    (commit,) = job.of(CommitEpoch)
    assert [each.path for each in commit.manifest.outputs["k"].files] == ["a"]
