"""Which tables, topics and folders a life's names mean, from epoch to epoch."""

from __future__ import annotations

import pytest
from incarnation_kit import Bench, FakeSource, eventually

from spark_ckpt.coordination.messages import Outcome
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import SinkIdentity
from spark_ckpt.plan.graph import SourceNode


@pytest.fixture
def bench_of(tmp_path, monkeypatch):
    return lambda **options: Bench(tmp_path, monkeypatch, **options)


@pytest.fixture
def bench(bench_of):
    return bench_of()


def test_the_first_epoch_says_what_sources_and_sinks_are_and_each_later_one_too(bench):
    parts = {"kind": "delta", "path": "/out", "table id": "1"}
    standing = Standing({"in": {"kind": "files", "path": "/in"}}, {"out": SinkIdentity(parts=parts)})
    life = bench.born(standing=standing)
    assert life.stopped(1).outcome is Outcome.STOPPED
    assert [(each.reason, each.source_identities, each.sink_identities["out"].parts) for each in bench.manifests()] == [
        ("initial", {"in": {"kind": "files", "path": "/in"}}, parts),
        ("stop", {"in": {"kind": "files", "path": "/in"}}, parts),
    ]


def test_the_id_of_a_table_that_the_first_publish_makes_is_in_the_next_epoch(bench):
    known = []
    bench.sink.identity = lambda spark: {"path": "/out", "table id": "1" if known.append(1) is None else ""}
    standing = Standing(sinks={"out": SinkIdentity(parts={"path": "/out", "table id": ""})})
    life = bench.born(standing=standing)
    for epoch in (2, 3):
        life.life.request_savepoint(f"s{epoch}")
        life.epoch(epoch, epoch)
        eventually(lambda epoch=epoch: epoch in bench.heard_of("published"), "publish")
    assert life.stopped().outcome is Outcome.STOPPED
    ids = [each.sink_identities["out"].parts["table id"] for each in bench.manifests()]
    assert ids == ["", "", "1", "1"]
    assert len(known) == 1, "it is asked for once"


def test_a_sink_that_took_the_place_of_another_begins_without_the_old_ones_markers(bench):
    assert bench.born().stopped(1).outcome is Outcome.STOPPED
    replaced = Standing(sinks={"out": SinkIdentity(parts={"path": "/new"}, after=2)})
    life = bench.born(standing=replaced)
    life.life.request_savepoint("s")
    life.epoch(3, 2)
    eventually(lambda: 3 in bench.heard_of("published"), "publish")
    assert life.stopped(3).outcome is Outcome.STOPPED
    told = [(each.epoch, each.previous, each.acked, each.begun_after) for each in bench.sink.outputs]
    assert told == [(2, 0, 0, None), (3, 0, 0, 2), (4, 3, 3, None)]


def test_a_source_that_took_the_place_of_another_is_pinned_at_its_start_and_the_state_goes_on(bench):
    assert bench.born().stopped(1, 2).outcome is Outcome.STOPPED
    life = bench.born(standing=Standing({"in": {"path": "/new"}}, fresh=frozenset({"in"})))
    assert life.stopped(9).outcome is Outcome.STOPPED
    found = [(each.reason, each.cursors["in"]["n"], each.source_identities) for each in bench.manifests()]
    assert found == [
        ("initial", 0, {}),
        ("stop", 2, {}),
        ("initial", 0, {"in": {"path": "/new"}}),
        ("stop", 1, {"in": {"path": "/new"}}),
    ]


class OfTwoTopics(FakeSource):
    """Goes on with what did not change."""

    def renewed(self, spark, cursor, changed):
        return {**cursor, "begun": sorted(changed)}


def test_a_source_of_several_topics_begins_only_those_again_that_are_other_ones(bench):
    before, now = {"topic a": "1", "topic b": "2"}, {"topic a": "1", "topic b": "3"}
    assert bench.born(standing=Standing({"in": before})).stopped(1, 2).outcome is Outcome.STOPPED
    bench.plan.sources[0] = SourceNode("in", OfTwoTopics(), bench.plan.sources[0].schema)
    life = bench.born(standing=Standing({"in": now}, fresh=frozenset({"in"})))
    assert life.stopped(9).outcome is Outcome.STOPPED
    begun = [each for each in bench.manifests() if each.reason == "initial"][-1]
    assert begun.cursors["in"] == {"n": 2, "begun": ["topic b"]}
