"""A stop within a batch of an outbox's query is a stop for Spark, the store and listeners, and no failure."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError

from spark_ckpt.errors import Fenced, PublishFailed
from spark_ckpt.outbox import outbox
from spark_ckpt.outbox.outbox import BatchFunction
from spark_ckpt.outbox.running import OutboxSettings
from spark_ckpt.spark_internals.batch_action import Interrupted

CANCELLED = Py4JError(
    "An error occurred while calling o7.collectToPython: java.lang.InterruptedException" + 2_000 * " "
)


class Ended:
    """A query whose session has ended."""

    @property
    def isActive(self) -> bool:
        raise Py4JNetworkError("connection refused")


@pytest.fixture
def call(monkeypatch):
    """Call the function of an outbox. Return it, its error, and the errors that ended its run."""

    def called(query, error, last_publish=None):
        ends: list[BaseException | None] = []

        class Run:
            def __init__(self, *_: object) -> None:
                pass

            def call(self, batch):
                raise error

            def finish(self):
                if last_publish is not None:
                    raise last_publish

            def close(self, error=None):
                ends.append(error)

        monkeypatch.setattr(outbox, "OutboxRun", Run)
        function = BatchFunction(OutboxSettings("memory://none", "orders", "c", {}))
        function.query = query
        with pytest.raises(Exception) as raised:
            function(None, 7)
        return function, raised.value, ends

    return called


def query(*, active):
    return SimpleNamespace(isActive=active)


def test_a_batch_that_a_stop_interrupts_raises_as_spark_expects_and_ends_the_run_as_stopped(call):
    function, raised, ends = call(query(active=False), CANCELLED)
    assert type(raised) is Interrupted
    assert raised.__suppress_context__  # py4j sends the whole traceback
    assert (ends, function.error) == ([None], None)


@pytest.mark.parametrize("found", [query(active=True), None, Ended()], ids=["running", "elsewhere", "JVM ended"])
def test_a_failure_while_the_query_runs_keeps_its_error(call, found):
    _, raised, ends = call(found, CANCELLED)
    assert (raised, ends) == (CANCELLED, [CANCELLED])


def test_a_typed_error_of_a_stopped_query_is_kept(call):
    fenced = Fenced("another driver has begun")
    function, raised, ends = call(query(active=False), fenced)
    assert (raised, function.error, ends) == (fenced, fenced, [fenced])


def test_the_error_of_the_last_publish_of_a_stopped_query_is_kept(call):
    failed = PublishFailed("no broker")
    function, raised, ends = call(query(active=False), CANCELLED, failed)
    assert (type(raised), function.error, ends) == (Interrupted, failed, [failed])
