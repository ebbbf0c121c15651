"""A source that becomes another one while the job runs: no epoch with its rows is committed."""

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
    """Says `parts`, or raises what is in `script`, one per question."""

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
        return self.born(standing=Standing({"in": OLD}))


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(source_watch, "PAUSES_S", (0.01, 0.01))
    return Watched(tmp_path, monkeypatch)


def test_an_epoch_whose_rows_come_from_another_topic_is_not_committed(bench):
    life = bench.running()
    life.life.request_savepoint("s")
    life.epoch(2, 1)
    life.life.request_savepoint("t")
    life.barrier(3)
    bench.source.parts = NEW
    life.batch(2)
    error = life.ended().error
    assert (type(error), error.retriable) == (IdentityChanged, False)
    assert error.context == {"recorded": "kind kafka, topic a 1", "found": "kind kafka, topic a 2"}
    assert "accept_new_source='in'" in error.hint
    assert [each.epoch for each in bench.manifests()] == [1, 2]
    assert bench.sink.rows == [1]


def test_the_start_of_a_topic_that_was_made_again_meanwhile_is_not_committed_under_the_old_identity(bench):
    bench.source.parts = NEW
    with pytest.raises(IdentityChanged):
        bench.running()
    assert bench.manifests() == []


def test_an_idle_job_notices_that_its_topic_is_another_one(bench, monkeypatch):
    monkeypatch.setattr(source_watch, "LOOK_EVERY_S", 0.02)
    life = bench.running()
    bench.source.parts = NEW
    assert type(life.ended().error) is IdentityChanged


def test_a_topic_that_appears_while_the_job_runs_is_recorded_and_from_then_on_compared(bench):
    life = bench.running()
    bench.source.parts = OLD | {"topic b": "7"}
    life.life.request_savepoint("s")
    life.epoch(2, 1)
    assert [each.source_identities["in"] for each in bench.manifests()] == [OLD, OLD | {"topic b": "7"}]
    bench.source.parts = OLD | {"topic b": "8"}
    life.life.request_savepoint("t")
    life.barrier(3)
    life.batch(2)
    assert type(life.ended().error) is IdentityChanged


def test_a_topic_that_a_starting_broker_does_not_list_yet_ends_nothing(bench):
    life = bench.running()
    bench.source.script = [SourceInvalid("starting")]
    life.life.request_savepoint("s")
    life.epoch(2, 1)
    assert life.stopped().outcome is Outcome.STOPPED


def test_a_source_that_does_not_answer_leaves_the_epoch_to_the_next_incarnation(bench):
    life = bench.running()
    bench.source.script = [SourceInvalid("no broker")] * 3
    life.life.request_savepoint("s")
    life.barrier(2)
    life.batch(1)
    error = life.ended().error
    assert (error.condition, error.retriable) == ("CKPT_SOURCE_SILENT", True)
    assert [each.epoch for each in bench.manifests()] == [1]
    life = bench.running()
    assert life.stopped(1).outcome is Outcome.STOPPED
    assert bench.sink.rows == [1]


def test_an_epoch_asks_each_source_once_and_the_connection_is_closed_at_the_end(bench):
    life = bench.running()
    before = bench.source.asked
    life.life.request_savepoint("s")
    life.epoch(2, 1)
    life.batch(2)
    life.taken_in()
    assert bench.source.asked == before + 1
    life.stopped()
    assert bench.source.disconnected == 1


def test_the_watch_survives_a_source_that_raises_anything(bench, monkeypatch):
    monkeypatch.setattr(source_watch, "LOOK_EVERY_S", 0.01)
    life = bench.running()
    bench.source.script = [RunFailed("x"), ValueError("y")]
    eventually(lambda: not bench.source.script, "both questions")
    assert life.stopped(1).outcome is Outcome.STOPPED
