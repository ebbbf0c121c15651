"""The error of a run that ends before every sink has published: it names the sink, and the reason if there is one."""

from __future__ import annotations

from dataclasses import replace

from test_ack_records import SHAPE, Job

from spark_ckpt.coordination.job_shape import SinkPlace
from spark_ckpt.coordination.messages import ArmTimer, End, PublishEnded, StopRequested
from spark_ckpt.errors import PublishFailed


def test_a_sink_whose_attempts_fail_is_blamed_although_another_one_publishes():
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
