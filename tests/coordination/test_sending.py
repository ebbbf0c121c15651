"""Early sends: a sink gets rows of an epoch before its commit."""

from __future__ import annotations

from dataclasses import replace

import pytest
from test_epochs_of_an_incarnation import SHAPE, Bench

from spark_ckpt.connector import StagedFile
from spark_ckpt.coordination.job_shape import SinkPlace
from spark_ckpt.coordination.messages import (
    ArmTimer,
    BatchDone,
    CommitEpoch,
    DropEarlySend,
    EarlySendEnded,
    End,
    EpochRequested,
    OfferMarker,
    Outcome,
    Publish,
    PublishEnded,
    Reason,
    SendEarly,
    TimeoutElapsed,
)
from spark_ckpt.coordination.publication import EarlySends
from spark_ckpt.coordination.reports import Report
from spark_ckpt.errors import Fenced, PublishFailed

OUT = SinkPlace("file:/out", {"region": "here"}, sends_early=True)


class EarlySendBench(Bench):
    """A bench in which each batch stages a file for the sink."""

    shape = replace(SHAPE, sinks={"out": OUT})

    def batch(self, markers, rows=1):
        self.rows += rows
        name = f"{self.rows}.parquet"
        staged = {"path": name, "size_bytes": 1, "rows": rows, "lane": 0, "batch": self.rows, "task": 0, "part": 0}
        reports = (
            Report("input", 0, 0, "sources", {"rows_in": rows}),
            Report("tap", 0, 0, "out/file", {**staged, "rows": rows}),
        )
        return self.tell(BatchDone(0, {"in": {"n": self.rows}}, 0, markers, reports))

    def sent(self):
        """Return the epoch and files of the last early send that the sink was requested to do."""
        return [(each.staged.epoch, [file.path for file in each.staged.files]) for each in self.of(SendEarly)]

    def ended(self, epoch, error=None):
        return self.tell(EarlySendEnded("out", epoch, 1, error))


class EveryBatch(EarlySendBench):
    shape = replace(EarlySendBench.shape, every_batch=True)


@pytest.fixture
def bench():
    return EarlySendBench().begun()


def test_rows_are_sent_early_batch_by_batch_under_the_number_of_their_future_epoch(bench):
    bench.batch(markers=1)
    assert bench.sent() == [(2, ["1.parquet"])]
    (send,) = bench.of(SendEarly)
    assert (send.sink, send.staged.incarnation, send.staged.root) == ("out", 1, "file:/out")
    assert dict(send.staged.storage_options) == {"region": "here"}

    bench.ended(2)
    assert bench.sent() == []
    bench.batch(markers=1)
    assert bench.sent() == [(2, ["1.parquet", "2.parquet"])]


def test_one_call_is_under_way_at_a_time(bench):
    bench.batch(markers=1)
    bench.batch(markers=1)
    assert bench.sent() == []
    bench.ended(2)
    assert bench.sent() == [(2, ["1.parquet", "2.parquet"])]


def test_the_rows_of_the_barriers_batch_are_sent_before_the_commit(bench):
    """The coordinator waits for the log; a lane does not wait for the coordinator."""
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    bench.batch(markers=2)
    kinds = [type(each) for each in bench.effects]
    assert kinds.index(SendEarly) < kinds.index(CommitEpoch)
    (store,) = bench.of(CommitEpoch)
    (send,) = bench.of(SendEarly)
    assert [file.path for file in store.manifest.outputs["out"].files] == [file.path for file in send.staged.files]
    assert (store.manifest.epoch, store.manifest.incarnation) == (send.staged.epoch, send.staged.incarnation)


def test_nothing_is_sent_early_while_an_earlier_epoch_is_unpublished(bench):
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    bench.batch(markers=2)
    bench.stored()
    assert [each.output.epoch for each in bench.of(Publish)] == [2]
    bench.ended(2)
    bench.batch(markers=2)
    assert bench.sent() == []
    bench.tell(PublishEnded("out", 2, 1))
    assert bench.sent() == [(3, ["2.parquet"])]


def test_an_unopened_epoch_is_sent_early_once_the_one_before_is_published():
    bench = EveryBatch().begun()
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    bench.batch(markers=2)
    assert bench.sent() == [(2, ["1.parquet"])]
    bench.stored()
    bench.batch(markers=3)
    assert bench.sent() == []
    bench.ended(2)
    bench.tell(PublishEnded("out", 2, 1))
    assert bench.sent() == [(3, ["2.parquet"])]


def test_rows_of_an_aborted_epoch_are_dropped_and_sent_under_the_next_number(bench):
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    (bound,) = [each.elapsed for each in bench.of(ArmTimer) if isinstance(each.elapsed, TimeoutElapsed)]
    bench.batch(markers=1)
    assert bench.sent() == [(2, ["1.parquet"])]
    bench.ended(2)
    bench.tell(bound)
    assert [each.sink for each in bench.of(DropEarlySend)] == ["out"]
    assert bench.sent() == [(3, ["1.parquet"])]
    kinds = [type(each) for each in bench.effects]
    assert kinds.index(DropEarlySend) < kinds.index(SendEarly)


def test_a_failed_sink_gets_no_early_send_until_it_has_published(bench):
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    bench.batch(markers=1)
    bench.ended(2, PublishFailed("away"))
    assert bench.of(End) == []
    bench.batch(markers=2)
    assert bench.sent() == []
    bench.stored()
    bench.batch(markers=2)
    bench.tell(PublishEnded("out", 2, 1))
    assert bench.sent() == [(3, ["3.parquet"])]


def test_a_fence_during_an_early_send_ends_the_incarnation(bench):
    bench.batch(markers=1)
    (end,) = bench.ended(2, Fenced("newer"))
    assert (end.outcome, type(end.error)) == (Outcome.FENCED, Fenced)
    assert bench.batch(markers=1) == []


@pytest.mark.parametrize("place", [replace(OUT, sends_early=False), replace(OUT, publish_every_ms=1)])
def test_a_sink_without_early_sends_or_with_deferred_rows_gets_none(place):
    class Bench(EarlySendBench):
        shape = replace(SHAPE, sinks={"out": place})

    bench = Bench().begun()
    bench.batch(markers=1)
    assert bench.sent() == []
    assert not bench.core.publication.early.possible


def test_nothing_is_sent_of_an_epoch_without_rows(bench):
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    super(EarlySendBench, bench).batch(markers=2)
    assert bench.sent() == []
    assert [each.manifest.epoch for each in bench.of(CommitEpoch)] == [2]


def test_files_that_were_sent_are_not_requested_again():
    def file(number):
        return StagedFile(f"{number}", 1, 1, 0, 0, 0, number)

    sending = EarlySends({"out": OUT}, 1)
    first = sending.due(3, {"out": [file(1)]}, ())
    sending.ended(EarlySendEnded("out", 3, 1))
    again = sending.due(3, {"out": [file(1)]}, ())
    other = sending.due(4, {"out": [file(1)]}, {"out"})
    assert ([each.sink for each in first], again, other) == (["out"], [], [])
    assert [each.staged.epoch for each in sending.due(4, {"out": [file(1)]}, ())] == [4]


def test_markers_are_offered_before_early_sends():
    """Spark waits for them."""
    bench = EveryBatch().begun()
    bench.tell(EpochRequested(Reason.SAVEPOINT, "named"))
    bench.batch(markers=2)
    kinds = [type(each) for each in bench.effects if isinstance(each, OfferMarker | SendEarly | CommitEpoch)]
    assert kinds == [OfferMarker, SendEarly, CommitEpoch]
