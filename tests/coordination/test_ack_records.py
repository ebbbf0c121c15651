"""Acknowledgements are recorded in the log without an epoch, at once or after a wait."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_ckpt.coordination.job_shape import JobShape, Limits, SinkPlace
from spark_ckpt.coordination.manifests import stamped
from spark_ckpt.coordination.messages import (
    AcksDue,
    AcksRecorded,
    ArmTimer,
    BatchDone,
    CommitEpoch,
    End,
    EpochCommitted,
    EpochRequested,
    PublishEnded,
    QueryStarting,
    Reason,
    RecordAcks,
    SourcesPinned,
    StopRequested,
)
from spark_ckpt.coordination.protocol import EpochProtocol
from spark_ckpt.coordination.reports import Report
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import Manifest, SinkIdentity
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import Fenced, StoreUnreachable

SHAPE = JobShape("job", ("in",), {"out": SinkPlace("file:/out")}, (), Limits(interval_ms=10), ack_wait_ms=70)
EMPTY = Manifest(job="job", epoch=0, incarnation=0, attempt="initial", created_ms=0, reason="initial")


class Job:
    """A core whose log and sink answer when the test says so."""

    def __init__(self, shape=SHAPE, acked=None, standing=None):
        self.core = EpochProtocol(shape, RecoveryPoint(1, EMPTY, 0, "latest"), standing, acked)
        self.markers, self.rows, self.effects = 1, 0, []
        self.tell(SourcesPinned({"in": {"n": 0}}))
        self.stored()
        self.tell(QueryStarting(behind=False))

    def tell(self, event):
        self.effects = self.core.handle(event, 0.0)
        return self.effects

    def of(self, kind):
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def stored(self):
        (store,) = self.of(CommitEpoch)
        self.tell(EpochCommitted(stamped(store.manifest, f"attempt {store.manifest.epoch}", 1), store.names))
        return store.manifest

    def batch(self, rows=1):
        self.rows += rows
        self.tell(
            BatchDone(0, {"in": {"n": self.rows}}, 0, self.markers, (Report("input", 0, 0, "s", {"rows_in": rows}),))
        )

    def decided(self):
        """Commit an epoch with a row; return its number, whose publish was requested."""
        self.tell(EpochRequested(Reason.SAVEPOINT, "named"))
        self.markers += 1
        self.batch()
        return self.stored().epoch

    def published(self, epoch):
        self.tell(PublishEnded("out", epoch, rows=1))
        return [[ack.epoch for ack in record.acks] for record in self.of(RecordAcks)]

    def logged(self, error=None):
        (record,) = self.of(RecordAcks)
        return self.tell(AcksRecorded(record.acks, error))

    def waited(self):
        self.tell(AcksDue())
        return [[ack.epoch for ack in record.acks] for record in self.of(RecordAcks)]

    def timers(self):
        return [each.delay_ms for each in self.of(ArmTimer) if each.elapsed == AcksDue()]


@pytest.fixture
def job():
    """The log has one acknowledgement of its sink."""
    job = Job()
    job.published(job.decided())
    job.logged()
    return job


def test_a_sinks_first_acknowledgement_goes_into_the_log_at_once():
    job = Job()
    assert job.published(job.decided()) == [[2]]


def test_a_sinks_later_acknowledgements_wait(job):
    assert job.published(job.decided()) == []


def test_an_acknowledgement_that_the_log_has_is_in_no_manifest(job):
    job.decided()
    job.tell(EpochRequested(Reason.SAVEPOINT, "another"))
    job.markers += 1
    job.batch()
    (store,) = job.of(CommitEpoch)
    assert store.manifest.acks == ()


def test_a_first_one_that_the_log_did_not_take_is_recorded_after_the_wait():
    job = Job()
    job.published(job.decided())
    job.logged(StoreUnreachable("away"))
    assert job.timers() == [70]
    job.batch()  # the stream is not idle
    assert job.waited() == [[2]]


def test_a_log_that_has_a_newer_incarnation_ends_this_one():
    job = Job()
    job.published(job.decided())
    job.logged(Fenced("replaced"))
    (end,) = job.of(End)
    assert isinstance(end.error, Fenced)


def test_an_idle_jobs_acknowledgement_goes_into_the_log_after_the_wait(job):
    job.published(job.decided())
    assert job.timers() == [70]
    assert job.waited() == [[3]]
    job.logged()
    assert job.core.publication.acks == () and job.timers() == []


def test_a_job_with_long_intervals_does_not_wait_for_its_next_epoch(job):
    """The row replaces a renewal, so rows that were read are no reason to wait."""
    job.published(job.decided())
    job.batch()
    assert job.waited() == [[3]]


def test_a_job_with_an_open_epoch_waits_for_its_commit(job):
    job.published(job.decided())
    job.tell(EpochRequested(Reason.SAVEPOINT, "another"))
    assert job.waited() == []
    assert job.timers() == [70]


def test_an_acknowledgement_waits_for_its_full_time(job):
    """With an epoch soon after the other, none needs another commit."""
    job.published(job.decided())
    job.published(job.decided())
    assert job.waited() == []
    assert job.timers() == [70]
    assert job.waited() == [[4]]


def test_an_epoch_per_batch_needs_no_other_commit():
    job = Job(replace(SHAPE, every_batch=True))
    job.published(job.decided())
    job.logged()
    for _ in range(5):
        assert job.published(job.decided()) == []


def test_nothing_is_recorded_after_the_end(job):
    """The end of an incarnation records acknowledgements anyway."""
    fresh = Job()
    fresh.tell(StopRequested())
    fresh.markers += 1
    fresh.batch()
    assert fresh.published(fresh.stored().epoch) == []


def test_the_first_one_of_a_replaced_sink_goes_into_the_log_at_once():
    standing = Standing(sinks={"out": SinkIdentity(parts={"table": "new"}, after=1)})
    job = Job(acked={"out": 1}, standing=standing)
    assert job.published(job.decided()) == [[2]]


def test_a_sink_with_a_recorded_acknowledgement_has_no_first_one():
    job = Job(acked={"out": 1})
    assert job.published(job.decided()) == []
