"""Endpoints of an incarnation (tables, topics, folders) from epoch to epoch."""

from __future__ import annotations

import pytest
from incarnation_kit import Bench, FakeSource, eventually

from spark_ckpt.coordination.messages import Outcome
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import SinkIdentity
from spark_ckpt.errors import IdentityChanged, PublishConflict
from spark_ckpt.plan.graph import SourceNode


@pytest.fixture
def bench_of(tmp_path, monkeypatch):
    return lambda **options: Bench(tmp_path, monkeypatch, **options)


@pytest.fixture
def bench(bench_of):
    return bench_of()


def test_every_epoch_records_the_endpoints_of_sources_and_sinks(bench):
    parts = {"kind": "delta", "path": "/out", "table id": "1"}
    standing = Standing({"in": {"kind": "files", "path": "/in"}}, {"out": SinkIdentity(parts=parts)})
    incarnation = bench.begin(standing=standing)
    assert incarnation.stopped(1).outcome is Outcome.STOPPED
    assert [(each.reason, each.source_identities, each.sink_identities["out"].parts) for each in bench.manifests()] == [
        ("initial", {"in": {"kind": "files", "path": "/in"}}, parts),
        ("stop", {"in": {"kind": "files", "path": "/in"}}, parts),
    ]


def test_the_id_of_a_table_that_the_first_publish_makes_is_in_the_next_epoch(bench):
    known = []
    bench.sink.identity = lambda spark: {"path": "/out", "table id": "1" if known.append(1) is None else ""}
    standing = Standing(sinks={"out": SinkIdentity(parts={"path": "/out", "table id": ""})})
    incarnation = bench.begin(standing=standing)
    for epoch in (2, 3):
        incarnation.driver.request_savepoint(f"s{epoch}")
        incarnation.epoch(epoch, epoch)
        eventually(lambda epoch=epoch: epoch in bench.epochs_of("published"), "publish")
    assert incarnation.stopped().outcome is Outcome.STOPPED
    ids = [each.sink_identities["out"].parts["table id"] for each in bench.manifests()]
    assert ids == ["", "", "1", "1"]
    assert len(known) == 1, "it is asked for once"


def test_a_sink_that_cannot_say_which_one_it_is_still_ends_the_job_with_its_conflict(bench):
    """A bug of a connector: its exception is no error of this library."""

    def identity(spark):
        raise KeyError("table id")

    bench.sink.identity = identity
    bench.sink.script = [PublishConflict("the marker names epoch 7", sink="out", marker="7")]
    incarnation = bench.begin(standing=Standing(sinks={"out": SinkIdentity(parts={"table id": "1"})}))
    incarnation.driver.request_savepoint("s")
    incarnation.epoch(2, 1)
    assert isinstance(incarnation.ended().error, PublishConflict)


def test_a_sink_that_is_re_created_under_a_running_job_ends_it_with_the_start_for_the_new_one(bench):
    """A topic that is deleted takes its marker along, so that the publisher finds a conflict."""
    bench.sink.identity = lambda spark: {"topic out": "2"}
    bench.sink.script = [PublishConflict("there is no marker", sink="out")]
    incarnation = bench.begin(standing=Standing(sinks={"out": SinkIdentity(parts={"topic out": "1"})}))
    incarnation.driver.request_savepoint("s")
    incarnation.epoch(2, 1)
    error = incarnation.ended().error
    assert isinstance(error, IdentityChanged)
    assert {"recorded": "topic out 1", "found": "topic out 2", "restore": 1}.items() <= error.context.items()
    assert "job.start(restore=1, accept_new_sink='out')" in error.hint


def test_a_replaced_sink_begins_without_the_old_ones_markers(bench):
    assert bench.begin().stopped(1).outcome is Outcome.STOPPED
    replaced = Standing(sinks={"out": SinkIdentity(parts={"path": "/new"}, after=2)})
    incarnation = bench.begin(standing=replaced)
    incarnation.driver.request_savepoint("s")
    incarnation.epoch(3, 2)
    eventually(lambda: 3 in bench.epochs_of("published"), "publish")
    assert incarnation.stopped(3).outcome is Outcome.STOPPED
    outputs = [(each.epoch, each.previous, each.acked, each.begun_after) for each in bench.sink.outputs]
    assert outputs == [(2, 0, 0, None), (3, 0, 0, 2), (4, 3, 3, None)]


def test_a_replaced_source_is_pinned_at_its_start_and_the_state_is_kept(bench):
    assert bench.begin().stopped(1, 2).outcome is Outcome.STOPPED
    incarnation = bench.begin(standing=Standing({"in": {"path": "/new"}}, fresh=frozenset({"in"})))
    assert incarnation.stopped(9).outcome is Outcome.STOPPED
    found = [(each.reason, each.cursors["in"]["n"], each.source_identities) for each in bench.manifests()]
    assert found == [
        ("initial", 0, {}),
        ("stop", 2, {}),
        ("initial", 0, {"in": {"path": "/new"}}),
        ("stop", 1, {"in": {"path": "/new"}}),
    ]


class OfTwoTopics(FakeSource):
    """A source of two topics that keeps the cursors of unchanged ones."""

    def renewed(self, spark, cursor, changed):
        return {**cursor, "begun": sorted(changed)}


def test_a_source_of_several_topics_restarts_only_the_replaced_ones(bench):
    before, now = {"topic a": "1", "topic b": "2"}, {"topic a": "1", "topic b": "3"}
    assert bench.begin(standing=Standing({"in": before})).stopped(1, 2).outcome is Outcome.STOPPED
    bench.plan.sources[0] = SourceNode("in", OfTwoTopics(), bench.plan.sources[0].schema)
    incarnation = bench.begin(standing=Standing({"in": now}, fresh=frozenset({"in"})))
    assert incarnation.stopped(9).outcome is Outcome.STOPPED
    begun = [each for each in bench.manifests() if each.reason == "initial"][-1]
    assert begun.cursors["in"] == {"n": 2, "begun": ["topic b"]}
