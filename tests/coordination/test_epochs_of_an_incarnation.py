"""The rules of one incarnation, event by event."""

from __future__ import annotations

from dataclasses import replace

import pytest

from checkpoint_protocols.machine import Drop
from spark_ckpt.coordination.job_shape import JobShape, Limits, SinkPlace
from spark_ckpt.coordination.manifests import stamped
from spark_ckpt.coordination.markers import BARRIER, OPEN, PREFETCHED
from spark_ckpt.coordination.messages import (
    ArmTimer,
    BatchDone,
    CommitEpoch,
    CommitFenced,
    CommitOverdue,
    CountBatch,
    End,
    EpochCommitted,
    EpochRequested,
    OfferMarker,
    Outcome,
    Publish,
    PublishEnded,
    QueryStarting,
    Reason,
    SayAborted,
    SayCommitted,
    SayPublished,
    SourcesPinned,
    StopRequested,
    TimeoutElapsed,
)
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.coordination.reports import Report
from spark_ckpt.epochs.records import Manifest, StagedFileRecord, StagedOutput
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import Fenced, PublishConflict, PublishFailed, StoreUnreachable

SHAPE = JobShape("job", ("in",), {"out": SinkPlace("file:/out")}, (), Limits(interval_ms=10))
EMPTY = Manifest(job="job", epoch=0, incarnation=0, attempt="initial", created_ms=0, reason="initial")


class Bench:
    """A core and the effects that it requested."""

    shape = SHAPE

    def __init__(self):
        self.core = EpochProtocol(self.shape, RecoveryPoint(1, EMPTY, 0, "latest"))
        self.effects = []
        self.rows = 0

    def tell(self, event):
        self.effects = self.core.handle(event, 0.0)
        return self.effects

    def of(self, kind):
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def stored(self):
        (store,) = self.of(CommitEpoch)
        self.tell(EpochCommitted(stamped(store.manifest, f"attempt {store.manifest.epoch}", 1), store.names))

    def begun(self):
        self.tell(SourcesPinned({"in": {"n": 0}}))
        self.stored()
        self.tell(QueryStarting(behind=False))
        return self

    def batch(self, markers, rows=1):
        self.rows += rows
        reports = (Report("input", 0, 0, "sources", {"rows_in": rows}),)
        return self.tell(BatchDone(0, {"in": {"n": self.rows}}, 0, markers, reports))

    def intervals(self):
        return [effect.elapsed for effect in self.of(ArmTimer) if type(effect.elapsed).__name__ == "IntervalElapsed"]


@pytest.fixture
def bench():
    return Bench().begun()


def test_the_opening_marker_comes_before_any_barrier(bench):
    (offer,) = bench.of(OfferMarker)
    assert (offer.marker.kind, offer.marker.number, offer.marker.epoch) == (OPEN, 1, 1)


def test_a_job_with_a_backlog_offers_its_barrier_before_the_first_batch():
    bench = Bench()
    bench.tell(SourcesPinned({"in": {"n": 0}}))
    bench.stored()
    bench.tell(QueryStarting(behind=True))
    assert [offer.marker.kind for offer in bench.of(OfferMarker)] == [OPEN, BARRIER]


def test_an_incarnation_that_loses_its_lease_while_it_pins_its_sources_ends_as_fenced():
    bench = Bench()
    bench.tell(SourcesPinned({"in": {"n": 0}}))
    (end,) = bench.tell(CommitFenced(1, "incarnation 2 is there"))
    assert (end.outcome, type(end.error)) == (Outcome.FENCED, Fenced)


def test_an_incarnation_whose_commit_the_log_refuses_ends_with_the_logs_error(bench):
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    bench.batch(markers=2)
    (end,) = [each for each in bench.tell(CommitFenced(2, "incarnation 2 is there")) if isinstance(each, End)]
    assert (end.outcome, end.error.what) == (Outcome.FENCED, "incarnation 2 is there")


def test_an_incarnation_whose_first_epoch_gets_no_answer_ends_in_doubt():
    bench = Bench()
    bench.tell(SourcesPinned({"in": {"n": 0}}))
    (end,) = bench.tell(CommitOverdue(1))
    assert (end.outcome, type(end.error)) == (Outcome.FAILED, StoreUnreachable)


def test_an_overdue_commit_ends_the_incarnation_in_doubt_and_aborts_nothing(bench):
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    bench.batch(markers=2)
    (end,) = bench.tell(CommitOverdue(2))
    assert (end.outcome, type(end.error)) == (Outcome.FAILED, StoreUnreachable)


def test_a_timeout_after_the_answer_is_stale_and_ends_nothing(bench):
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    bench.batch(markers=2)
    (bound,) = [each.elapsed for each in bench.of(ArmTimer) if type(each.elapsed) is TimeoutElapsed]
    bench.stored()
    assert [type(each) for each in (*bench.tell(bound), *bench.tell(CommitOverdue(2)))] == [Drop, Drop]
    bench.tell(PublishEnded("out", 2, error=PublishConflict("the marker is gone")))
    (end,) = bench.of(End)
    assert type(end.error) is PublishConflict


def test_sources_that_have_cursors_are_not_pinned_again():
    assert Bench().tell(SourcesPinned({})) == []


def test_an_idle_interval_waits_for_the_first_rows(bench):
    (interval,) = bench.intervals()
    assert bench.tell(interval) == []
    bench.batch(markers=1)
    assert [offer.marker.kind for offer in bench.of(OfferMarker)] == [BARRIER]


def test_a_late_older_interval_does_not_replace_the_newest_one(bench):
    (old,) = bench.intervals()
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    (new,) = bench.intervals()
    bench.batch(markers=2, rows=0)
    bench.stored()
    bench.tell(new)
    bench.tell(old)
    bench.batch(markers=2)
    assert [offer.marker.kind for offer in bench.of(OfferMarker)] == [BARRIER]


def test_an_idle_stream_ends_an_epoch_for_rows_that_are_due():
    """The restored epoch has deferred rows."""
    file = StagedFileRecord(path="a", size_bytes=1, rows=1, lane=0, batch=0, task=0, part=0)
    held = {"out": StagedOutput(sink="out", files=(file,), rows=1)}
    bench, shape = Bench(), replace(SHAPE, sinks={"out": SinkPlace("file:/out", publish_every_ms=1_000)})
    bench.core = EpochProtocol(shape, RecoveryPoint(1, EMPTY.model_copy(update={"held": held}), 0, "latest"))
    bench.begun()
    (interval,) = bench.intervals()
    bench.tell(interval)
    assert [offer.marker.kind for offer in bench.of(OfferMarker)] == [BARRIER]


def test_a_batch_is_counted_under_its_number(bench):
    bench.tell(BatchDone(7, {"in": {"n": 1}}, 0, 1, ()))
    (count,) = bench.of(CountBatch)
    assert count.batch == 7


def test_after_the_end_only_announcements_follow(bench):
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    bench.batch(markers=2)
    bench.stored()
    (publish,) = bench.of(Publish)
    (end,) = bench.tell(PublishEnded("out", publish.output.epoch, error=PublishConflict("the marker is gone")))
    assert (type(end), end.outcome) == (End, Outcome.FAILED)
    assert bench.tell(StopRequested()) == []
    bench.tell(PublishEnded("out", publish.output.epoch, rows=1))
    assert [type(effect) for effect in bench.effects] == [SayPublished]
    assert [ack.epoch for ack in bench.core.publication.acks] == [publish.output.epoch]


def publishing(bench):
    """Return the output that the sink is requested to publish."""
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    bench.batch(markers=2)
    bench.stored()
    (publish,) = bench.of(Publish)
    return publish.output


def test_a_fenced_driver_does_not_announce_an_epoch_that_its_sink_had(bench):
    """Its successor may have published it while this driver was paused."""
    output = publishing(bench)
    (end,) = bench.tell(PublishEnded("out", output.epoch, rows=1, replayed=True, newest=2))
    assert (type(end), end.outcome, type(end.error)) == (End, Outcome.FENCED, Fenced)
    assert bench.core.publication.acks == ()


def test_an_epoch_that_its_sink_had_is_announced_while_no_other_driver_has_begun(bench):
    output = publishing(bench)
    bench.tell(PublishEnded("out", output.epoch, rows=1, replayed=True, newest=1))
    assert [said.epoch for said in bench.of(SayPublished)] == [output.epoch]


def test_a_fenced_driver_announces_no_publish_that_ends_later(bench):
    output = publishing(bench)
    bench.tell(PublishEnded("out", output.epoch, error=Fenced("replaced")))
    assert bench.tell(PublishEnded("out", output.epoch, rows=1)) == []


def test_a_failed_publish_is_requested_again_with_the_same_output(bench):
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    bench.batch(markers=2)
    bench.stored()
    (first,) = bench.of(Publish)
    (retry,) = bench.tell(PublishEnded("out", first.output.epoch, error=PublishFailed("away")))
    (again,) = bench.tell(retry.elapsed)
    assert again == first


def test_an_epoch_is_announced_after_its_commit_and_not_before(bench):
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    bench.batch(markers=2)
    assert bench.of(SayCommitted) == []
    assert bench.core.cut.base.epoch == 1
    bench.stored()
    assert [said.manifest.epoch for said in bench.of(SayCommitted)] == [2]
    assert bench.core.cut.base.epoch == 2


class EveryBatch(Bench):
    """Each batch ends an epoch."""

    shape = replace(SHAPE, every_batch=True)

    def begun(self):
        """Run the first epoch; a barrier is prefetched."""
        self.tell(SourcesPinned({"in": {"n": 0}}))
        self.stored()
        self.tell(QueryStarting(behind=True))
        self.tick = self.intervals()[-1]
        self.batch(markers=2)
        return self

    def prefetched(self):
        return [offer.marker.epoch for offer in self.of(OfferMarker) if offer.marker.kind == PREFETCHED]


@pytest.fixture
def short():
    return EveryBatch().begun()


def test_the_next_barrier_is_prefetched_before_the_last_epoch_is_committed(short):
    assert short.prefetched() == [3]
    kinds = [type(effect) for effect in short.effects]
    assert kinds.index(OfferMarker) < kinds.index(CommitEpoch)


def test_a_batch_that_ends_during_a_commit_is_committed_after_it(short):
    (store,) = short.of(CommitEpoch)
    assert not short.batch(markers=3)[1:], "nothing but its count"
    short.tell(EpochCommitted(stamped(store.manifest, "attempt 2", 1), store.names))
    short.tell(short.tick)
    (store,) = short.of(CommitEpoch)
    assert (store.manifest.epoch, store.manifest.cursors) == (3, {"in": {"n": 2}})
    assert short.prefetched() == [4]


def test_a_prefetched_barrier_of_an_idle_stream_ends_nothing_and_is_repeated_with_rows(short):
    short.stored()
    short.tell(short.tick)
    assert not short.batch(markers=3, rows=0)[1:]
    short.batch(markers=3)
    (offer,) = short.of(OfferMarker)
    assert (offer.marker.kind, offer.marker.epoch) == (BARRIER, 3)


def test_a_stop_uses_the_prefetched_barrier(short):
    short.stored()
    short.tell(StopRequested())
    assert not short.of(OfferMarker)
    short.batch(markers=3, rows=0)
    (store,) = short.of(CommitEpoch)
    assert (store.manifest.epoch, store.manifest.reason) == (3, "stop")
    assert not short.prefetched(), "nothing follows a final epoch"


def test_an_epoch_that_times_out_discards_its_prefetched_barrier(short):
    short.stored()
    short.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    (timeout,) = [each for each in short.of(ArmTimer) if type(each.elapsed).__name__ == "TimeoutElapsed"]
    short.tell(timeout.elapsed)
    assert [each.epoch for each in short.of(SayAborted)] == [3]
    assert not short.batch(markers=3)[1:]
