"""The error of a run that ends before every sink has published names the sink, and the reason if there is one."""

from __future__ import annotations

from dataclasses import replace

from test_ack_records import SHAPE, Job

from spark_ckpt.coordination.job_shape import SinkPlace
from spark_ckpt.coordination.messages import (
    ArmTimer,
    End,
    EpochsReleased,
    Outcome,
    Publish,
    PublishEnded,
    StopRequested,
)
from spark_ckpt.errors import PublishFailed


def test_a_sink_whose_attempts_fail_is_named_although_another_one_publishes():
    sinks = {"a": SinkPlace("file:/a"), "b": SinkPlace("file:/b")}
    job = Job(replace(SHAPE, sinks=sinks))
    job.tell(StopRequested())
    job.markers += 1
    job.batch()
    epoch = job.stored().epoch
    bound = next(each for each in job.of(ArmTimer) if type(each.elapsed).__name__ == "TimeoutElapsed")
    job.tell(PublishEnded("a", epoch, error=PublishFailed("the broker is away")))
    job.tell(PublishEnded("b", epoch, rows=1))
    job.tell(bound.elapsed)
    (end,) = job.of(End)
    assert end.error.what == "the broker is away"


def staged_job() -> Job:
    """A stage whose sinks wait for lines."""
    return Job(replace(SHAPE, awaits_lines=True))


def test_sinks_of_a_stage_publish_when_the_line_is_committed():
    job, epochs = staged_job(), []
    for _ in range(SHAPE.limits.max_unpublished + 1):  # epochs that wait delay no barrier
        epochs.append(job.decided())
        assert not job.of(Publish), "nothing is released yet"
    job.tell(EpochsReleased(epochs[1]))
    assert [each.output.epoch for each in job.of(Publish)] == epochs[:1]
    job.published(epochs[0])
    assert [each.output.epoch for each in job.of(Publish)] == [epochs[1]]
    job.published(epochs[1])
    assert not job.of(Publish), "the third is not released"
    job.tell(EpochsReleased(epochs[1]))
    assert not job.of(Publish)


def test_a_release_means_nothing_to_a_job_without_stages():
    job = Job()
    epoch = job.decided()
    job.tell(EpochsReleased(epoch))
    assert not job.of(Publish), "the publish was requested at the commit"


def test_a_stage_ends_without_the_epochs_of_uncommitted_lines():
    job = staged_job()
    job.tell(StopRequested())
    job.markers += 1
    job.batch()
    job.stored()
    assert job.of(End)[0].outcome is Outcome.STOPPED
    assert not job.of(Publish)


def test_a_sink_that_has_not_answered_is_named_when_the_wait_ends():
    job = Job()
    job.tell(StopRequested())
    job.markers += 1
    job.batch()
    job.stored()
    bound = next(each for each in job.of(ArmTimer) if type(each.elapsed).__name__ == "TimeoutElapsed")
    job.tell(bound.elapsed)
    (end,) = job.of(End)
    assert end.error.what == "sink out did not publish epoch 2 within 600000 ms"
