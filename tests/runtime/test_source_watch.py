"""No epoch is committed with rows of a source that was replaced while the job runs."""

from __future__ import annotations

import pytest
from incarnation_kit import Bench, FakeSource, eventually

from spark_ckpt.coordination.messages import Outcome
from spark_ckpt.driver import source_watch
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.errors import IdentityChanged, RunFailed, SourceInvalid
from spark_ckpt.plan.graph import SourceNode

OLD, NEW = {"kind": "kafka", "topic a": "1"}, {"kind": "kafka", "topic a": "2"}


class Renewable(FakeSource):
    """A source whose identity is `parts`, or that raises the next entry of `script`."""

    def __init__(self) -> None:
        self.parts = OLD
        self.script: list[Exception] = []
        self.asked = self.disconnected = 0

    def identity(self, spark):
        self.asked += 1
        if self.script:
            raise self.script.pop(0)
        return self.parts

    def disconnect(self) -> None:
        self.disconnected += 1


class Watched(Bench):
    """A bench whose source has an identity."""

    def planned(self, *arguments, **settings):
        plan = super().planned(*arguments, **settings)
        self.source = Renewable()
        plan.sources[0] = SourceNode("in", self.source, plan.sources[0].schema)
        return plan

    def running(self):
        return self.begin(standing=Standing({"in": OLD}))


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(source_watch, "PAUSES_S", (0.01, 0.01))
    return Watched(tmp_path, monkeypatch)


def test_an_epoch_whose_rows_come_from_another_topic_is_not_committed(bench):
    incarnation = bench.running()
    incarnation.driver.request_savepoint("s")
    incarnation.epoch(2, 1)
    incarnation.driver.request_savepoint("t")
    incarnation.barrier(3)
    bench.source.parts = NEW
    incarnation.batch(2)
    error = incarnation.ended().error
    assert (type(error), error.retriable) == (IdentityChanged, False)
    assert error.context == {"recorded": "kind kafka, topic a 1", "found": "kind kafka, topic a 2"}
    assert "accept_new_source='in'" in error.hint
    assert [each.epoch for each in bench.manifests()] == [1, 2]
    assert bench.sink.rows == [1]


def test_the_start_of_a_re_created_topic_is_not_committed_under_the_old_identity(bench):
    bench.source.parts = NEW
    with pytest.raises(IdentityChanged):
        bench.running()
    assert bench.manifests() == []


def test_an_idle_job_notices_that_its_topic_was_replaced(bench, monkeypatch):
    monkeypatch.setattr(source_watch, "LOOK_EVERY_S", 0.02)
    incarnation = bench.running()
    bench.source.parts = NEW
    assert type(incarnation.ended().error) is IdentityChanged


def test_a_topic_that_appears_while_the_job_runs_is_recorded_and_from_then_on_compared(bench):
    incarnation = bench.running()
    bench.source.parts = OLD | {"topic b": "7"}
    incarnation.driver.request_savepoint("s")
    incarnation.epoch(2, 1)
    assert [each.source_identities["in"] for each in bench.manifests()] == [OLD, OLD | {"topic b": "7"}]
    bench.source.parts = OLD | {"topic b": "8"}
    incarnation.driver.request_savepoint("t")
    incarnation.barrier(3)
    incarnation.batch(2)
    assert type(incarnation.ended().error) is IdentityChanged


def test_a_topic_that_a_starting_broker_does_not_list_yet_ends_nothing(bench):
    incarnation = bench.running()
    bench.source.script = [SourceInvalid("starting")]
    incarnation.driver.request_savepoint("s")
    incarnation.epoch(2, 1)
    assert incarnation.stopped().outcome is Outcome.STOPPED


def test_a_source_that_does_not_answer_leaves_the_epoch_to_the_next_incarnation(bench):
    incarnation = bench.running()
    bench.source.script = [SourceInvalid("no broker")] * 3
    incarnation.driver.request_savepoint("s")
    incarnation.barrier(2)
    incarnation.batch(1)
    error = incarnation.ended().error
    assert (error.condition, error.retriable) == ("CKPT_SOURCE_SILENT", True)
    assert [each.epoch for each in bench.manifests()] == [1]
    incarnation = bench.running()
    assert incarnation.stopped(1).outcome is Outcome.STOPPED
    assert bench.sink.rows == [1]


def test_an_epoch_reads_each_identity_once_and_the_end_closes_the_connection(bench):
    incarnation = bench.running()
    before = bench.source.asked
    incarnation.driver.request_savepoint("s")
    incarnation.epoch(2, 1)
    incarnation.batch(2)
    incarnation.taken_in()
    assert bench.source.asked == before + 1
    incarnation.stopped()
    assert bench.source.disconnected == 1


def test_the_watch_survives_a_source_that_raises_anything(bench, monkeypatch):
    monkeypatch.setattr(source_watch, "LOOK_EVERY_S", 0.01)
    incarnation = bench.running()
    bench.source.script = [RunFailed("x"), ValueError("y")]
    eventually(lambda: not bench.source.script, "both questions")
    assert incarnation.stopped(1).outcome is Outcome.STOPPED
