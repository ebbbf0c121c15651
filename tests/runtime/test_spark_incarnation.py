"""One incarnation against every order of events: no row lost or twice, no commit after a fence, a reason at the end."""

from __future__ import annotations

import os
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from incarnation_kit import JOB, WAIT_S, Bench, FakeSink, FakeSource, an_operator, eventually
from py4j.protocol import Py4JNetworkError
from pyspark.errors import StreamingQueryException

from spark_ckpt.config import JobConfig
from spark_ckpt.content import damaged
from spark_ckpt.coordination.markers import BARRIER, OPEN, ControlMarker
from spark_ckpt.coordination.messages import AcksRecorded, Outcome, RecordAcks
from spark_ckpt.coordination.reports import Report
from spark_ckpt.driver import incarnation as incarnation_module
from spark_ckpt.driver.effects import Effects
from spark_ckpt.driver.maintenance import delegating, materializing
from spark_ckpt.driver.query.stage import Stage
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import SinkAck
from spark_ckpt.errors import (
    EpochDamaged,
    Fenced,
    PublishConflict,
    PublishFailed,
    RowsRefused,
    RunFailed,
    SourceInvalid,
    StoreFull,
    StoreUnreachable,
)
from spark_ckpt.store import epoch_log
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.log_table import LogTable
from spark_ckpt.store.standbys import StandbyNote, Standbys
from spark_ckpt.store.turns import Turns
from spark_ckpt.tasks.state.local_folder import LocalFolder


@pytest.fixture
def bench_of(tmp_path, monkeypatch):
    return lambda **options: Bench(tmp_path, monkeypatch, **options)


@pytest.fixture
def bench(bench_of):
    return bench_of()


def test_the_sources_starts_are_the_first_epoch(bench):
    incarnation = bench.begin()
    (manifest,) = bench.manifests()
    assert (manifest.reason, manifest.cursors, manifest.outputs["out"].files) == ("initial", {"in": {"n": 0}}, ())
    assert incarnation.stopped().outcome is Outcome.STOPPED


@pytest.mark.parametrize("error", [None, SourceInvalid("no right to write there")])
def test_the_rows_after_a_sources_start_are_kept_for_it_before_the_start_is_pinned(bench, error):
    held = []

    def hold(kept):
        held.append((kept, bench.manifests()))
        if error is not None:
            raise error

    bench.plan.sources[0].source.hold = hold
    incarnation = bench.begin()
    assert (held, len(bench.manifests())) == ([([{"n": 0}], [])], 1)
    assert incarnation.stopped().outcome is Outcome.STOPPED


def test_a_driver_that_is_fenced_while_it_pins_its_sources_does_not_begin(bench, monkeypatch):
    start = FakeSource.start

    def overtaken_before_start(self, spark):
        bench.overtaken()
        return start(self, spark)

    monkeypatch.setattr(FakeSource, "start", overtaken_before_start)
    with pytest.raises(Fenced, match="replaced by 2"):
        bench.begin()
    assert (bench.manifests(), bench.queries) == ([], [])


def test_a_publish_does_not_wait_for_the_log_to_be_folded(bench, monkeypatch):
    fold, folded = LogTable.fold_if_due, []

    def behind_the_publish(self, extra):
        if decided := any((row.kind, row.epoch) == ("epoch", 2) for row in self.rows):
            eventually(lambda: bench.sink.published, "the publish")
        folded.append(decided)
        fold(self, extra)

    monkeypatch.setattr(LogTable, "fold_if_due", behind_the_publish)
    incarnation = bench.begin()
    incarnation.driver.request_epoch()
    incarnation.epoch(2, 1)
    eventually(lambda: True in folded, "the fold")
    assert incarnation.stopped().outcome is Outcome.STOPPED


def test_rows_up_to_the_barrier_are_published_and_later_ones_with_the_next_epoch(bench):
    incarnation = bench.begin()
    incarnation.batch(1, 2)
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 3)
    incarnation.batch(4)
    assert incarnation.stopped(5).outcome is Outcome.STOPPED
    assert bench.sink.published == [(2, [1, 2, 3]), (3, [4, 5])]
    assert [manifest.cursors["in"]["n"] for manifest in bench.manifests()] == [0, 3, 5]
    assert bench.state().savepoints == {"named": 2}


def test_a_batch_after_the_barriers_batch_does_not_end_the_epoch_again(bench):
    """The marker stays the source's offset until the next one comes."""
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1)
    stale = incarnation.marker()
    incarnation.batch(2, marker=stale)
    incarnation.stopped(3)
    assert bench.sink.published == [(2, [1]), (3, [2, 3])]


def test_an_idle_stream_takes_no_epochs_until_its_first_rows(bench_of):
    bench = bench_of(interval="20 ms")
    incarnation = bench.begin()
    incarnation.batch(marker=ControlMarker(1, OPEN, 1))
    eventually(lambda: incarnation.protocol.postponed is not None, "an interval without rows")
    assert incarnation.marker().kind == OPEN
    incarnation.batch(1)
    incarnation.epoch(2)
    assert bench.manifests()[-1].reason == "interval"
    incarnation.driver.request_stop()
    incarnation.play_until(lambda: incarnation.ending)  # on a slow machine the next interval has begun by now
    assert incarnation.ended().outcome is Outcome.STOPPED


@pytest.mark.parametrize("waits", [True, False], ids=["a standby waits", "none does"])
def test_epochs_are_taken_sooner_while_a_standby_waits(bench_of, monkeypatch, waits):
    monkeypatch.setattr(materializing, "WATCH_S", 0.01)
    monkeypatch.setattr(delegating, "LOOK_S", 0.0)
    bench = bench_of(standby_interval="20 ms")
    incarnation, standbys = bench.begin(), Standbys(bench.store.location)
    if waits:
        now_ms = {"waits_since_ms": 0, "told_ms": 0, "clock_ms": None}
        standbys.write("b", StandbyNote(holder=current_holder(JOB), lease_of=incarnation.driver.incarnation, **now_ms))
        eventually(lambda: incarnation.protocol.standby_waits, "a look for standbys")
        assert incarnation.query.description.admission.standby_waits
        incarnation.batch(1)
        incarnation.epoch(2, 2)
        standbys.withdraw("b")
        eventually(lambda: not incarnation.protocol.standby_waits, "a look without standbys")
        assert not incarnation.query.description.admission.standby_waits
    incarnation.batch(3)
    incarnation.driver.request_stop()
    incarnation.play_until(lambda: incarnation.ending)
    assert {manifest.reason for manifest in bench.manifests()} == {"initial", "stop", *(["interval"] if waits else [])}


def test_a_barrier_that_comes_after_its_epoch_timed_out_ends_nothing_and_loses_no_row(bench_of):
    bench = bench_of(timeout="500 ms", max_failed_epochs=1000)
    incarnation = bench.begin()
    incarnation.batch(1)
    incarnation.driver.request_savepoint("named")
    # On a slow machine the first epochs time out before the test sees them.
    late = eventually(lambda: (marker := incarnation.marker()).kind == BARRIER and marker, "a barrier")
    eventually(lambda: late.epoch in bench.epochs_of("aborted"), "abort")
    incarnation.batch(2, marker=late)
    incarnation.play_until(lambda: bench.state().savepoints)
    incarnation.batch(3)
    incarnation.driver.request_stop()
    incarnation.play_until(lambda: incarnation.ending)
    assert bench.sink.rows == [1, 2, 3]
    assert late.epoch not in bench.epochs_of("committed")
    assert bench.state().savepoints["named"] > late.epoch, "a later epoch serves the request"


def test_an_epoch_waits_for_every_key_group(bench_of):
    bench = bench_of(operator=an_operator())
    incarnation = bench.begin()

    def acks(epoch, *groups):
        return [
            Report("operator", group, 1, "totals", {"epoch": epoch, "groups": [group], "files": []}) for group in groups
        ]

    incarnation.driver.request_savepoint("named")
    incarnation.barrier(2)
    incarnation.batch(1, reports=acks(2, 0))
    incarnation.batch(2, reports=acks(2, 1))
    incarnation.taken_in()
    assert bench.epochs_of("committed") == [1], "the barrier's batch did not hold all acks: it is atomic"
    incarnation.query.die(StreamingQueryException("stop the test"))
    incarnation.ended()


def test_a_fenced_driver_can_neither_commit_nor_publish(bench):
    incarnation = bench.begin()
    incarnation.batch(1)
    incarnation.driver.request_savepoint("named")
    incarnation.barrier(2)
    bench.overtaken()
    incarnation.batch(2)
    ending = incarnation.ended()
    assert (ending.outcome, ending.error.condition) == (Outcome.FENCED, "CKPT_FENCED")
    assert bench.sink.published == []
    log_state = bench.state()
    assert (log_state.latest, log_state.incarnation) == (1, 2)
    assert log_state.lease_expires_ms > time.time_ns() // 1_000_000, "the other driver's lease is its own"


def test_a_fenced_driver_does_not_delete_its_successors_files(bench):
    incarnation = bench.begin()
    bench.overtaken()
    successor = bench.plan.cache / "i2" / "control.json"
    successor.parent.mkdir(parents=True)
    successor.write_text("in use")
    incarnation.driver.request_savepoint("named")
    incarnation.barrier(2)
    incarnation.batch(1)
    assert incarnation.ended().outcome is Outcome.FENCED
    assert successor.exists()
    assert not (bench.plan.cache / "i1").exists()


def test_a_fenced_driver_opens_no_publisher_for_its_committed_epochs(bench):
    bench.sink.released.clear()
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("one")
    incarnation.epoch(2, 1)
    incarnation.driver.request_savepoint("two")
    incarnation.epoch(3, 2)
    bench.overtaken()
    bench.sink.released.set()
    assert incarnation.ended().outcome is Outcome.FENCED
    assert [epoch for epoch, _ in bench.sink.published] == [2], "the attempt under way; the sink's own fence judges it"


def test_a_fence_in_the_publisher_ends_the_incarnation(bench):
    bench.sink.script = [Fenced("producer epoch is old")]
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1)
    ending = incarnation.ended()
    assert (ending.outcome, ending.error.what) == (Outcome.FENCED, "producer epoch is old")


def test_a_retriable_publish_failure_is_retried_with_the_same_rows(bench):
    bench.sink.script = [PublishFailed("broker away"), None]
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1, 2)
    assert incarnation.stopped().outcome is Outcome.STOPPED
    assert bench.sink.published == [(2, [1, 2]), (3, [])]
    assert [(output.epoch, output.previous) for output in bench.sink.outputs] == [(2, 0), (2, 0), (3, 2)]


def test_a_final_publish_failure_ends_the_incarnation_with_its_reason(bench):
    bench.sink.script = [PublishConflict("somebody else wrote the marker")]
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1)
    ending = incarnation.ended()
    assert (ending.outcome, type(ending.error)) == (Outcome.FAILED, PublishConflict)
    assert ending.progressed


def test_damaged_rows_end_the_incarnation_after_one_attempt_and_name_the_epoch_to_restore(bench):
    bench.sink.script = [damaged("f.parquet", "is missing", epoch=2, expected="9 bytes"), None]
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1)
    ending = incarnation.ended()
    assert (ending.outcome, type(ending.error)) == (Outcome.FAILED, EpochDamaged)
    assert "job.start(restore=1)" in ending.error.hint
    assert (len(bench.sink.outputs), bench.sink.published) == (1, [])


def test_a_publish_failure_that_passed_is_not_the_reason_of_a_later_end(bench_of):
    bench = bench_of(timeout="5 s", max_failed_epochs=0)
    bench.sink.script = [PublishFailed("broker away"), None]
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1)
    eventually(lambda: bench.epochs_of("published") == [2], "publish")
    incarnation.driver.request_savepoint("never")
    ending = incarnation.ended()
    assert (type(ending.error), "aborted" in str(ending.error)) == (RunFailed, True)


def test_the_next_incarnation_first_publishes_the_epochs_committed_before_it(bench):
    bench.sink.released.clear()
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1)
    bench.sink.script = [PublishFailed("broker away")]
    incarnation.query.die(StreamingQueryException("executor lost"))
    bench.sink.released.set()
    assert incarnation.ended().outcome is Outcome.FAILED
    assert bench.sink.published == []
    begun = []
    bench.listener.onIncarnationStarted = begun.append
    following = bench.begin()
    assert following.stopped(5).outcome is Outcome.STOPPED
    assert [event.unpublished for event in begun] == [{"out": [1, 2]}]
    assert bench.sink.published == [(1, []), (2, [1]), (3, [5])]


def test_a_restored_incarnation_with_a_backlog_ends_its_first_epoch_with_its_first_batch(bench):
    bench.begin().stopped(1)
    bench.plan.sources[0].source.rows = 5
    incarnation = bench.begin()
    incarnation.epoch(3, 2)
    assert incarnation.stopped().outcome is Outcome.STOPPED


def test_a_restored_incarnation_without_a_backlog_waits_for_its_interval(bench):
    bench.begin().stopped(1)
    bench.plan.sources[0].source.rows = 1
    incarnation = bench.begin()
    incarnation.batch()
    incarnation.taken_in()
    assert incarnation.marker().kind == OPEN
    assert incarnation.stopped().outcome is Outcome.STOPPED


def test_the_next_incarnation_reads_the_rows_after_the_last_epoch_again(bench):
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1)
    incarnation.batch(2)
    incarnation.query.die(StreamingQueryException("executor lost"))
    incarnation.ended()
    following = bench.begin()
    assert following.query.description.cursors == {"in": {"n": 1}}
    assert following.driver.incarnation == 2
    following.stopped(2)
    assert bench.sink.rows == [1, 2]


def test_a_restore_fences_the_publishers_of_diverged_epochs(bench):
    """A driver that was paused within its publish must not publish such an epoch afterwards."""
    incarnation = bench.begin()
    incarnation.driver.request_epoch()
    incarnation.epoch(2, 1)
    eventually(lambda: bench.sink.published, "publish")
    bench.sink.script = [PublishFailed("no answer")] * 9
    incarnation.driver.request_epoch()
    incarnation.epoch(3, 2)
    incarnation.query.die(StreamingQueryException("executor lost"))
    incarnation.ended()
    bench.sink.script = []
    assert bench.sink.fences == 0
    following = bench.begin(restore=2)
    eventually(lambda: bench.sink.fences == 1, "the fence")
    assert bench.sink.rows == [1]
    following.stopped(2)
    assert bench.sink.rows == [1, 2]


def test_a_query_that_dies_ends_the_incarnation_with_its_error(bench):
    incarnation = bench.begin()
    incarnation.query.die(StreamingQueryException("x: [CKPT_SOURCE_INVALID] the topic is gone\n  topic: orders\n"))
    ending = incarnation.ended()
    assert (ending.outcome, type(ending.error), ending.progressed) == (Outcome.FAILED, SourceInvalid, False)
    assert not bench.state().is_free, "the run may go on, under its lease"


def test_an_error_on_the_coordinators_thread_ends_the_incarnation(bench, monkeypatch):
    incarnation = bench.begin()
    monkeypatch.setattr(type(bench.plan.sources[0].source), "cursor", lambda *_: 1 / 0)
    incarnation.batch(1)
    ending = incarnation.ended()
    assert (ending.outcome, type(ending.error)) == (Outcome.FAILED, ZeroDivisionError)


def test_a_stop_while_an_epoch_is_open_waits_for_it_and_takes_another(bench):
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.barrier(2)
    incarnation.driver.request_stop()
    incarnation.batch(1)
    incarnation.barrier(3)
    incarnation.batch(2)
    ending = incarnation.ended()
    assert (ending.outcome, ending.error) == (Outcome.STOPPED, None)
    assert bench.sink.published == [(2, [1]), (3, [2])]
    assert [manifest.reason for manifest in bench.manifests()] == ["initial", "savepoint", "stop"]


def test_a_clean_stop_frees_the_lease_and_logs_the_published_epochs(bench):
    incarnation = bench.begin()
    incarnation.stopped(1)
    log_state = bench.state()
    assert (log_state.lease_expires_ms, log_state.acked) == (0, {"out": 2})
    assert bench.listener.events[-1] == ("ended", 1)


def test_a_stop_that_could_not_publish_in_time_raises_an_error(bench_of, monkeypatch):
    monkeypatch.setattr(incarnation_module, "JOIN_S", 0.05)
    bench = bench_of(publish_timeout="80 ms")
    bench.sink.released.clear()
    incarnation = bench.begin()
    ending = incarnation.stopped(1)
    bench.sink.released.set()
    assert (ending.outcome, type(ending.error)) == (Outcome.STOPPED, PublishFailed)
    assert "staged" in ending.error.hint


class Unreachable(FakeSink):
    """A sink that retries forever, until `give_up`."""

    def publish(self, output):
        assert self.released.wait(WAIT_S)
        raise PublishFailed("given up")

    def give_up(self):
        self.released.set()


def test_an_attempt_to_publish_ends_with_its_run(bench_of, monkeypatch):
    monkeypatch.setattr(incarnation_module, "JOIN_S", 0.05)
    bench = bench_of(publish_timeout="80 ms")
    bench.sink.__class__ = Unreachable
    bench.sink.released.clear()
    incarnation = bench.begin()
    assert incarnation.stopped(1).outcome is Outcome.STOPPED
    eventually(lambda: not any(each.is_alive() for each in incarnation.lanes.threads()), "the publishing thread's end")


def test_a_record_that_the_sink_refuses_ends_the_incarnation_after_one_attempt_and_names_the_epoch_to_restore(bench):
    bench.sink.script = [RowsRefused("no key", hint="a key", topic="t"), None]
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1)
    ending = incarnation.ended()
    assert (ending.outcome, type(ending.error)) == (Outcome.FAILED, RowsRefused)
    assert "job.start(restore=1)" in ending.error.hint and "next start publishes" not in ending.error.hint
    assert ending.error.context["sink"] == "out"
    assert (len(bench.sink.outputs), bench.sink.published) == (1, [])


def test_reaching_the_targets_ends_the_job_on_a_published_epoch(bench):
    incarnation = bench.begin(targets={"in": {"n": 3}})
    incarnation.batch(1, 2)
    assert incarnation.protocol.open_epoch is None, "not there yet"
    incarnation.batch(3)
    incarnation.barrier(incarnation.final())
    incarnation.batch()
    assert incarnation.ended().outcome is Outcome.STOPPED
    assert bench.sink.rows == [1, 2, 3]
    assert bench.manifests()[-1].reason == "drained"


def test_an_idle_driver_keeps_its_lease(bench_of):
    bench = bench_of(lease="300 ms")
    incarnation = bench.begin()
    before = bench.state().lease_expires_ms
    eventually(lambda: bench.state().lease_expires_ms > before + 400, "two renewals")
    assert incarnation.stopped().outcome is Outcome.STOPPED


def test_a_start_that_takes_longer_than_the_lease_keeps_it(bench_of, monkeypatch):
    """The query's checkpoint gets the state of Spark's operators, whose files are copied and compared: minutes if many."""
    bench = bench_of(lease="300 ms")
    begun = []

    def slow(stage):
        expires_ms = bench.state().lease_expires_ms
        eventually(lambda: bench.state().lease_expires_ms > expires_ms + 400, "two renewals")
        begun.append(bench.state().incarnation)
        return False

    monkeypatch.setattr(Stage, "is_behind", slow)
    assert bench.begin().stopped().error is None
    assert begun == [1]


def test_a_failed_renewal_of_the_lease_is_retried(bench_of, monkeypatch):
    bench = bench_of(lease="300 ms")
    incarnation = bench.begin()
    attempts = []
    renew = bench.store.log.renew

    def flaky(*arguments):
        attempts.append(arguments)
        if len(attempts) < 3:
            raise StoreUnreachable("timeout")
        return renew(*arguments)

    monkeypatch.setattr(bench.store.log, "renew", flaky)
    eventually(lambda: len(attempts) > 3, "renewals")
    assert incarnation.stopped().outcome is Outcome.STOPPED


def test_a_slow_table_does_not_delay_the_renewal(bench_of, monkeypatch):
    bench = bench_of(lease="300 ms")
    incarnation = bench.begin()
    served = threading.Event()
    monkeypatch.setattr(bench.store, "materialize", lambda *_: served.wait(60))
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1)
    before = bench.state().lease_expires_ms
    eventually(lambda: bench.state().lease_expires_ms > before + 400, "two renewals")
    served.set()
    assert incarnation.stopped().outcome is Outcome.STOPPED


def test_an_idle_job_on_a_full_disk_reports_an_outage_until_a_renewal_succeeds(bench_of, monkeypatch):
    bench = bench_of(lease="300 ms")
    incarnation = bench.begin()
    incarnation.batch(1)
    incarnation.taken_in()
    renew, progress = bench.store.log.renew, incarnation.progress
    full = StoreFull("no space left")
    monkeypatch.setattr(bench.store.log, "renew", lambda *_: (_ for _ in ()).throw(full))
    outage = eventually(lambda: progress.last()["outage"], "outage")
    assert (outage["condition"], outage["attempt"]) == ("CKPT_STORE_FULL", 0)
    assert ("outage", "CKPT_STORE_FULL") in bench.listener.events
    monkeypatch.setattr(bench.store.log, "renew", renew)
    eventually(lambda: progress.last()["outage"] is None, "its end")
    assert incarnation.stopped().outcome is Outcome.STOPPED


def test_an_outage_that_an_epoch_ends_as_it_is_announced_is_over_for_listeners_too(bench_of, monkeypatch):
    """The commit is on another thread than the renewal that failed. A listener that is late must not keep the outage."""
    bench, told = bench_of(lease="300 ms"), []
    incarnation = bench.begin()
    renew, failures = bench.store.log.renew, [StoreFull("no space left")]

    def committed_meanwhile(event):
        incarnation.progress.outage_over()
        told.append("outage")

    bench.listener.onOutage = committed_meanwhile
    incarnation.progress.outage_ended = lambda event: told.append("over")

    def renewed(*given):
        if failures:
            raise failures.pop()
        return renew(*given)

    monkeypatch.setattr(bench.store.log, "renew", renewed)
    eventually(lambda: told[-1:] == ["over"] and "outage" in told, "its end")
    assert told == ["outage", "over"]
    assert incarnation.stopped().outcome is Outcome.STOPPED


def test_a_java_process_that_is_gone_ends_the_incarnation(bench, monkeypatch):
    incarnation = bench.begin()

    def no_java(query):
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(type(incarnation.query), "isActive", property(no_java), raising=False)
    ending = incarnation.ended()
    assert (ending.outcome, ending.error.condition) == (Outcome.FAILED, "CKPT_JVM_GONE")


def test_a_query_without_a_readable_error_still_closes_everything(bench, monkeypatch):
    incarnation = bench.begin()

    def no_message():
        raise RuntimeError("no words")

    monkeypatch.setattr(incarnation.query, "exception", no_message)
    incarnation.query.isActive = False
    ending = incarnation.ended()
    assert (ending.outcome, str(ending.error)) == (Outcome.FAILED, "no words")
    assert not incarnation.loop.is_alive()


def test_a_query_that_cannot_be_stopped_does_not_delay_the_end(bench, monkeypatch):
    incarnation = bench.begin()
    never = threading.Event()
    monkeypatch.setattr(incarnation.query, "stop", lambda: never.wait(60))
    incarnation.driver.abandon(0.05)
    assert incarnation.ended().outcome is Outcome.STOPPED
    assert bench.state().lease_expires_ms == 0
    never.set()


def test_a_renewal_notices_that_another_driver_runs_the_job(bench_of):
    bench = bench_of(lease="300 ms")
    incarnation = bench.begin()
    bench.overtaken()
    assert incarnation.ended().outcome is Outcome.FENCED


def test_a_savepoint_name_taken_before_the_commit_does_not_end_the_job(bench):
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.barrier(2)
    bench.store.reopened().log.add_savepoint("named", 1)
    incarnation.batch(1)
    assert incarnation.stopped().outcome is Outcome.STOPPED
    assert bench.state().savepoints == {"named": 1}
    assert bench.sink.rows == [1]


def test_a_log_that_does_not_answer_when_an_epoch_is_named_ends_the_incarnation(bench_of, monkeypatch):
    monkeypatch.setattr(epoch_log, "Turns", partial(Turns, wait_s=0.2))
    bench, resume, append = bench_of(timeout="2 seconds"), threading.Event(), LogTable.append

    def slow(table, row):
        assert row.kind != "savepoint" or resume.wait(60)
        append(table, row)

    monkeypatch.setattr(LogTable, "append", slow)
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.barrier(2)
    incarnation.batch(1)
    ending = incarnation.ended()
    assert (ending.outcome, type(ending.error)) == (Outcome.FAILED, StoreUnreachable)
    assert "epoch 2 was named 'named'" in str(ending.error)
    resume.set()


@pytest.mark.parametrize(("known", "renewed"), [(0, 1), (1, 0)])
def test_only_a_row_of_acknowledgements_postpones_the_renewal_of_the_lease(known, renewed):
    """The row of a call without an answer may have landed before the next call."""
    acks, before, answers, served = (SinkAck(sink="out", epoch=1),), LogState(acked={"out": known}), [], []
    log = SimpleNamespace(record_acks=lambda by, acks: before)
    plan = SimpleNamespace(store=SimpleNamespace(log=log), config=JobConfig.of({}, {}), graph=())
    loop, announcer = SimpleNamespace(handle=answers.append), SimpleNamespace(incarnation=1)
    effects = Effects(plan, announcer, None, None, None, None, loop, None, None, served.append, None)
    effects.carry_out(RecordAcks(acks))
    assert (answers, served) == ([AcksRecorded(acks, None)], [before] * renewed)


def test_an_unknown_outcome_of_the_commit_is_resolved_by_the_next_incarnation(bench, monkeypatch):
    commit = bench.store.log.commit_epoch

    def unknown(manifest, index, fold):
        commit(manifest, index, fold=fold)
        raise StoreUnreachable("no answer")

    incarnation = bench.begin()
    monkeypatch.setattr(bench.store.log, "commit_epoch", unknown)
    incarnation.driver.request_savepoint("named")
    incarnation.barrier(2)
    incarnation.batch(1)
    ending = incarnation.ended()
    assert (ending.outcome, ending.error.retriable) == (Outcome.FAILED, True)
    monkeypatch.undo()
    bench.plays_spark(monkeypatch)
    bench.begin().stopped(2)
    assert bench.sink.rows == [1, 2]


def test_a_log_that_does_not_answer_ends_the_incarnation_and_its_commit_still_counts(bench_of, monkeypatch):
    monkeypatch.setattr(epoch_log, "Turns", partial(Turns, wait_s=1.0))
    bench = bench_of(timeout="3 seconds")
    resume, landed = threading.Event(), threading.Event()
    append = LogTable.append

    def slow(table, row):
        assert resume.wait(60)
        append(table, row)
        landed.set()

    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.barrier(2)
    monkeypatch.setattr(LogTable, "append", slow)
    incarnation.batch(1)
    ending = incarnation.ended()
    assert (ending.outcome, type(ending.error)) == (Outcome.FAILED, StoreUnreachable)
    assert "epoch 2 of incarnation 1 is in the log is unknown" in str(ending.error)
    with pytest.raises(StoreUnreachable, match="has not answered an earlier call"):
        bench.store.log.state()
    resume.set()
    assert landed.wait(60)
    monkeypatch.undo()
    bench.plays_spark(monkeypatch)
    bench.begin().stopped(2)
    assert bench.sink.rows == [1, 2]


def test_tables_are_materialized_after_the_commit(bench):
    incarnation = bench.begin()
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1, 2)
    incarnation.stopped()
    outbox = DeltaTable(str(bench.folder / "store" / "edges" / "out"))
    rows = pa.table(QueryBuilder().register("t", outbox).execute("select v from t").read_all())
    assert sorted(rows.column("v").to_pylist()) == [1, 2]


def test_sparks_checkpoints_of_ended_incarnations_are_removed(bench):
    for expected in (1, 2, 3):
        incarnation = bench.begin()
        incarnation.batch(expected)
        incarnation.stopped()
    runs = sorted(path.name for path in (bench.folder / "store" / "runs").iterdir())
    assert runs == ["3"]


def test_a_driver_with_a_handover_request_takes_a_final_epoch_and_ends(bench_of):
    bench = bench_of(lease="300 ms")
    incarnation = bench.begin()
    bench.store.reopened().log.ask_handover(1)
    incarnation.barrier(incarnation.final())
    incarnation.batch(1)
    assert incarnation.ended().outcome is Outcome.STOPPED
    assert bench.manifests()[-1].reason == "stop"
    assert (bench.state().is_free, bench.sink.rows) == (True, [1])
    assert bench.listener.events.count(("handover", 1)) == 1


def test_the_lease_is_released_before_the_query_is_stopped(bench, monkeypatch):
    """A standby waits for it, and this incarnation can commit nothing any more."""
    incarnation, seen = bench.begin(), []
    monkeypatch.setattr(incarnation.query, "stop", lambda: seen.append(bench.state().is_free))
    incarnation.stopped(1)
    assert seen == [True]


def test_an_incarnation_takes_the_local_levels_of_its_standby(bench):
    kept = bench.plan.cache / "standby"
    kept.mkdir(parents=True)
    (kept / "some.level").write_bytes(b"level")
    folder = LocalFolder(bench.plan.cache, 7)
    folder.make(kept)
    assert (folder.path / "some.level").read_bytes() == b"level"
    folder.make(kept)
    assert list(folder.path.iterdir()) == [], "missing levels only cost time"


def test_an_incarnation_begins_although_another_one_removes_the_empty_folder_of_both(bench, monkeypatch):
    folder, mkdir = LocalFolder(bench.plan.cache, 7), os.mkdir

    def raced(path, mode=0o777):
        if Path(path) == folder.path and bench.plan.cache.exists():
            monkeypatch.setattr(os, "mkdir", mkdir)
            bench.plan.cache.rmdir()
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", raced)
    folder.make()
    assert (os.mkdir, folder.path.is_dir()) == (mkdir, True)  # the other one was there


def level_of(bench, incarnation):
    """Create a level of an incarnation on this host; return its path."""
    level = LocalFolder(bench.plan.cache, incarnation).path / "sum" / "some.level"
    level.parent.mkdir(parents=True, exist_ok=True)
    level.write_bytes(b"level")
    return level


def test_a_failed_incarnation_leaves_its_levels_until_the_next_one_has_committed_an_epoch(bench):
    older, incarnation = level_of(bench, 0), bench.begin()
    before = level_of(bench, 1)
    incarnation.query.die(ValueError("no words"))
    assert (incarnation.ended().outcome, before.exists()) == (Outcome.FAILED, True)
    incarnation = bench.begin()
    assert (older.exists(), before.exists()) == (False, True)
    incarnation.driver.request_savepoint("named")
    incarnation.epoch(2, 1)
    eventually(lambda: not before.exists(), "the end of the levels before")


def test_a_stopped_incarnation_leaves_no_levels(bench):
    before, incarnation, own = level_of(bench, 0), bench.begin(), level_of(bench, 1)
    incarnation.stopped()
    assert not before.exists() and not own.exists()
    assert list((bench.folder / "local").iterdir()) == [], "the job's folder would stay for ever"


def test_a_stopped_incarnation_leaves_the_levels_of_a_standby_on_its_host(bench):
    incarnation, standby = bench.begin(), bench.plan.cache / "standby-1-2-x" / "sum"
    standby.mkdir(parents=True)
    incarnation.stopped()
    assert standby.exists()


def test_spark_plans_no_batch_before_the_coordinator_has_the_one_before(bench_of, monkeypatch):
    """The batch ends during the commit of the epoch before it, and that commit ends first."""
    bench = bench_of(interval="0 seconds")
    incarnation = bench.begin()
    committing, commits, let_on, plans = (threading.Event() for _ in range(4))
    commit, batch_done = EpochLog.commit_epoch, Stage.batch_done
    early = []

    def slow(log, manifest, *arguments, **options):
        committing.set()
        assert commits.wait(WAIT_S)
        return commit(log, manifest, *arguments, **options)

    def held(stage, offsets, *arguments):
        if offsets.batch == second:
            early.append(let_on.wait(0.5))
            plans.set()
        return batch_done(stage, offsets, *arguments)

    incarnation.batch(1)
    incarnation.barrier(2)
    second = incarnation.batches + 1
    monkeypatch.setattr(EpochLog, "commit_epoch", slow)
    monkeypatch.setattr(Stage, "batch_done", held)
    incarnation.batch(2)
    assert committing.wait(WAIT_S)

    def on_sparks_thread():
        incarnation.batch(3)
        let_on.set()

    threading.Thread(target=on_sparks_thread, daemon=True).start()
    eventually(lambda: incarnation.batches == second + 1, "the second batch")
    commits.set()
    assert plans.wait(WAIT_S)
    assert let_on.wait(WAIT_S)
    assert early == [False]
    incarnation.driver.request_stop()
    incarnation.play_until(lambda: incarnation.ending)
    assert incarnation.ended().outcome is Outcome.STOPPED
