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
from spark_ckpt.coordination.markers import OPEN, ControlMarker
from spark_ckpt.coordination.messages import AcksRecorded, Outcome, RecordAcks
from spark_ckpt.coordination.reports import Report
from spark_ckpt.driver import incarnation as incarnation_module
from spark_ckpt.driver.effects import Effects
from spark_ckpt.driver.maintenance import duty, materializing
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
    life = bench.born()
    (manifest,) = bench.manifests()
    assert (manifest.reason, manifest.cursors, manifest.outputs["out"].files) == ("initial", {"in": {"n": 0}}, ())
    assert life.stopped().outcome is Outcome.STOPPED


@pytest.mark.parametrize("error", [None, SourceInvalid("no right to write there")])
def test_the_rows_after_a_sources_start_are_kept_for_it_before_the_start_is_pinned(bench, error):
    held = []

    def hold(kept):
        held.append((kept, bench.manifests()))
        if error is not None:
            raise error

    bench.plan.sources[0].source.hold = hold
    life = bench.born()
    assert (held, len(bench.manifests())) == ([([{"n": 0}], [])], 1)
    assert life.stopped().outcome is Outcome.STOPPED


def test_a_driver_that_is_replaced_while_it_pins_its_sources_does_not_begin(bench, monkeypatch):
    start = FakeSource.start

    def overtaken_meanwhile(self, spark):
        bench.overtaken()
        return start(self, spark)

    monkeypatch.setattr(FakeSource, "start", overtaken_meanwhile)
    with pytest.raises(Fenced, match="replaced by 2"):
        bench.born()
    assert (bench.manifests(), bench.queries) == ([], [])


def test_a_publish_does_not_wait_for_the_log_to_be_folded(bench, monkeypatch):
    fold, folded = LogTable.fold_if_due, []

    def behind_the_publish(self, extra):
        if decided := any((row.kind, row.epoch) == ("epoch", 2) for row in self.rows):
            eventually(lambda: bench.sink.published, "the publish")
        folded.append(decided)
        fold(self, extra)

    monkeypatch.setattr(LogTable, "fold_if_due", behind_the_publish)
    life = bench.born()
    life.life.request_epoch()
    life.epoch(2, 1)
    eventually(lambda: True in folded, "the fold")
    assert life.stopped().outcome is Outcome.STOPPED


def test_rows_up_to_the_barrier_are_published_and_later_ones_with_the_next_epoch(bench):
    life = bench.born()
    life.batch(1, 2)
    life.life.request_savepoint("named")
    life.epoch(2, 3)
    life.batch(4)
    assert life.stopped(5).outcome is Outcome.STOPPED
    assert bench.sink.published == [(2, [1, 2, 3]), (3, [4, 5])]
    assert [manifest.cursors["in"]["n"] for manifest in bench.manifests()] == [0, 3, 5]
    assert bench.state().savepoints == {"named": 2}


def test_a_batch_after_the_barriers_batch_does_not_end_the_epoch_again(bench):
    """The marker stays the source's offset until the next one comes."""
    life = bench.born()
    life.life.request_savepoint("named")
    life.epoch(2, 1)
    stale = life.marker()
    life.batch(2, marker=stale)
    life.stopped(3)
    assert bench.sink.published == [(2, [1]), (3, [2, 3])]


def test_an_idle_stream_takes_no_epochs_and_the_first_rows_wake_it(bench_of):
    bench = bench_of(interval="20 ms")
    life = bench.born()
    life.batch(marker=ControlMarker(1, OPEN, 1))
    eventually(lambda: life.protocol.postponed is not None, "an interval without rows")
    assert life.marker().kind == OPEN
    life.batch(1)
    life.epoch(2)
    assert bench.manifests()[-1].reason == "interval"
    life.life.request_stop()
    life.play_until(lambda: life.ending)  # on a slow machine the next interval has begun by now
    assert life.ended().outcome is Outcome.STOPPED


@pytest.mark.parametrize("waits", [True, False], ids=["a standby waits", "none does"])
def test_epochs_are_taken_sooner_while_a_standby_waits(bench_of, monkeypatch, waits):
    monkeypatch.setattr(materializing, "WATCH_S", 0.01)
    monkeypatch.setattr(duty, "LOOK_S", 0.0)
    bench = bench_of(standby_interval="20 ms")
    life, standbys = bench.born(), Standbys(bench.store.location)
    if waits:
        now_ms = {"waits_since_ms": 0, "told_ms": 0, "clock_ms": None}
        standbys.write("b", StandbyNote(holder=current_holder(JOB), lease_of=life.life.incarnation, **now_ms))
        eventually(lambda: life.protocol.standby_waits, "a look for standbys")
        assert life.query.description.admission.standby_waits
        life.batch(1)
        life.epoch(2, 2)
        standbys.withdraw("b")
        eventually(lambda: not life.protocol.standby_waits, "a look without standbys")
        assert not life.query.description.admission.standby_waits
    life.batch(3)
    life.life.request_stop()
    life.play_until(lambda: life.ending)
    assert {manifest.reason for manifest in bench.manifests()} == {"initial", "stop", *(["interval"] if waits else [])}


def test_a_barrier_that_comes_after_its_epoch_timed_out_ends_nothing_and_loses_no_row(bench_of):
    bench = bench_of(timeout="500 ms", max_failed_epochs=1000)
    life = bench.born()
    life.batch(1)
    life.life.request_savepoint("named")
    late = life.barrier(2)
    eventually(lambda: bench.heard_of("aborted") == [2], "abort")
    life.batch(2, marker=late)
    life.play_until(lambda: bench.state().savepoints)
    life.batch(3)
    life.life.request_stop()
    life.play_until(lambda: life.ending)
    assert bench.sink.rows == [1, 2, 3]
    assert 2 not in bench.heard_of("committed")
    assert bench.state().savepoints["named"] > 2, "a later epoch serves the request"


def test_an_epoch_waits_for_every_key_group(bench_of):
    bench = bench_of(operator=an_operator())
    life = bench.born()

    def acks(epoch, *groups):
        return [
            Report("operator", group, 1, "totals", {"epoch": epoch, "groups": [group], "files": []}) for group in groups
        ]

    life.life.request_savepoint("named")
    life.barrier(2)
    life.batch(1, reports=acks(2, 0))
    life.batch(2, reports=acks(2, 1))
    life.taken_in()
    assert bench.heard_of("committed") == [1], "the barrier's batch did not hold all acks: it is atomic"
    life.query.die(StreamingQueryException("stop the test"))
    life.ended()


def test_a_driver_that_was_replaced_cannot_commit_nor_publish(bench):
    life = bench.born()
    life.batch(1)
    life.life.request_savepoint("named")
    life.barrier(2)
    bench.overtaken()
    life.batch(2)
    ending = life.ended()
    assert (ending.outcome, ending.error.condition) == (Outcome.FENCED, "CKPT_FENCED")
    assert bench.sink.published == []
    log_state = bench.state()
    assert (log_state.latest, log_state.incarnation) == (1, 2)
    assert log_state.lease_expires_ms > time.time_ns() // 1_000_000, "the other driver's lease is its own"


def test_a_driver_that_was_replaced_leaves_its_successors_files_alone(bench):
    life = bench.born()
    bench.overtaken()
    successor = bench.plan.cache / "i2" / "control.json"
    successor.parent.mkdir(parents=True)
    successor.write_text("in use")
    life.life.request_savepoint("named")
    life.barrier(2)
    life.batch(1)
    assert life.ended().outcome is Outcome.FENCED
    assert successor.exists()
    assert not (bench.plan.cache / "i1").exists()


def test_a_replaced_driver_opens_no_publisher_for_what_it_decided(bench):
    bench.sink.released.clear()
    life = bench.born()
    life.life.request_savepoint("one")
    life.epoch(2, 1)
    life.life.request_savepoint("two")
    life.epoch(3, 2)
    bench.overtaken()
    bench.sink.released.set()
    assert life.ended().outcome is Outcome.FENCED
    assert [epoch for epoch, _ in bench.sink.published] == [2], "the attempt under way; the sink's own fence judges it"


def test_a_fence_in_the_publisher_ends_the_life(bench):
    bench.sink.script = [Fenced("producer epoch is old")]
    life = bench.born()
    life.life.request_savepoint("named")
    life.epoch(2, 1)
    ending = life.ended()
    assert (ending.outcome, ending.error.what) == (Outcome.FENCED, "producer epoch is old")


def test_a_publish_that_fails_for_now_is_tried_again_with_the_same_rows(bench):
    bench.sink.script = [PublishFailed("broker away"), None]
    life = bench.born()
    life.life.request_savepoint("named")
    life.epoch(2, 1, 2)
    assert life.stopped().outcome is Outcome.STOPPED
    assert bench.sink.published == [(2, [1, 2]), (3, [])]
    assert [(output.epoch, output.previous) for output in bench.sink.outputs] == [(2, 0), (2, 0), (3, 2)]


def test_a_publish_that_failed_for_good_ends_the_life_with_its_reason(bench):
    bench.sink.script = [PublishConflict("somebody else wrote the marker")]
    life = bench.born()
    life.life.request_savepoint("named")
    life.epoch(2, 1)
    ending = life.ended()
    assert (ending.outcome, type(ending.error)) == (Outcome.FAILED, PublishConflict)
    assert ending.progressed


def test_damaged_rows_end_the_life_after_one_attempt_with_the_epoch_to_go_back_to(bench):
    bench.sink.script = [damaged("f.parquet", "is missing", epoch=2, expected="9 bytes"), None]
    life = bench.born()
    life.life.request_savepoint("named")
    life.epoch(2, 1)
    ending = life.ended()
    assert (ending.outcome, type(ending.error)) == (Outcome.FAILED, EpochDamaged)
    assert "job.start(restore=1)" in ending.error.hint
    assert (len(bench.sink.outputs), bench.sink.published) == (1, [])


def test_a_publish_failure_that_passed_is_not_blamed_for_what_comes_later(bench_of):
    bench = bench_of(timeout="5 s", max_failed_epochs=0)
    bench.sink.script = [PublishFailed("broker away"), None]
    life = bench.born()
    life.life.request_savepoint("named")
    life.epoch(2, 1)
    eventually(lambda: bench.heard_of("published") == [2], "publish")
    life.life.request_savepoint("never")
    ending = life.ended()
    assert (type(ending.error), "aborted" in str(ending.error)) == (RunFailed, True)


def test_the_next_life_publishes_what_the_last_one_decided_first(bench):
    bench.sink.released.clear()
    life = bench.born()
    life.life.request_savepoint("named")
    life.epoch(2, 1)
    bench.sink.script = [PublishFailed("broker away")]
    life.query.die(StreamingQueryException("executor lost"))
    bench.sink.released.set()
    assert life.ended().outcome is Outcome.FAILED
    assert bench.sink.published == []
    begun = []
    bench.heard.onIncarnationStarted = begun.append
    following = bench.born()
    assert following.stopped(5).outcome is Outcome.STOPPED
    assert [event.unpublished for event in begun] == [{"out": [1, 2]}]
    assert bench.sink.published == [(1, []), (2, [1]), (3, [5])]


def test_a_restored_life_that_is_behind_ends_its_first_epoch_with_its_first_batch(bench):
    bench.born().stopped(1)
    bench.plan.sources[0].source.rows = 5
    life = bench.born()
    life.epoch(3, 2)
    assert life.stopped().outcome is Outcome.STOPPED


def test_a_restored_life_with_nothing_to_read_waits_for_its_interval(bench):
    bench.born().stopped(1)
    bench.plan.sources[0].source.rows = 1
    life = bench.born()
    life.batch()
    life.taken_in()
    assert life.marker().kind == OPEN
    assert life.stopped().outcome is Outcome.STOPPED


def test_rows_after_the_last_epoch_are_read_again_by_the_next_life(bench):
    life = bench.born()
    life.life.request_savepoint("named")
    life.epoch(2, 1)
    life.batch(2)
    life.query.die(StreamingQueryException("executor lost"))
    life.ended()
    following = bench.born()
    assert following.query.description.cursors == {"in": {"n": 1}}
    assert following.life.incarnation == 2
    following.stopped(2)
    assert bench.sink.rows == [1, 2]


def test_a_restore_fences_the_publishers_of_epochs_that_it_leaves(bench):
    """A driver that was paused within its publish must not show such an epoch afterwards."""
    life = bench.born()
    life.life.request_epoch()
    life.epoch(2, 1)
    eventually(lambda: bench.sink.published, "publish")
    bench.sink.script = [PublishFailed("no answer")] * 9
    life.life.request_epoch()
    life.epoch(3, 2)
    life.query.die(StreamingQueryException("executor lost"))
    life.ended()
    bench.sink.script = []
    assert bench.sink.fences == 0
    following = bench.born(restore=2)
    eventually(lambda: bench.sink.fences == 1, "the fence")
    assert bench.sink.rows == [1]
    following.stopped(2)
    assert bench.sink.rows == [1, 2]


def test_a_query_that_dies_says_why(bench):
    life = bench.born()
    life.query.die(StreamingQueryException("x: [CKPT_SOURCE_INVALID] the topic is gone\n  topic: orders\n"))
    ending = life.ended()
    assert (ending.outcome, type(ending.error), ending.progressed) == (Outcome.FAILED, SourceInvalid, False)
    assert not bench.state().is_free, "the run may go on, under its lease"


def test_an_error_on_the_coordinators_thread_ends_the_life(bench, monkeypatch):
    life = bench.born()
    monkeypatch.setattr(type(bench.plan.sources[0].source), "cursor", lambda *_: 1 / 0)
    life.batch(1)
    ending = life.ended()
    assert (ending.outcome, type(ending.error)) == (Outcome.FAILED, ZeroDivisionError)


def test_a_stop_while_an_epoch_is_open_waits_for_it_and_takes_another(bench):
    life = bench.born()
    life.life.request_savepoint("named")
    life.barrier(2)
    life.life.request_stop()
    life.batch(1)
    life.barrier(3)
    life.batch(2)
    ending = life.ended()
    assert (ending.outcome, ending.error) == (Outcome.STOPPED, None)
    assert bench.sink.published == [(2, [1]), (3, [2])]
    assert [manifest.reason for manifest in bench.manifests()] == ["initial", "savepoint", "stop"]


def test_a_clean_stop_frees_the_lease_and_tells_the_log_what_was_published(bench):
    life = bench.born()
    life.stopped(1)
    log_state = bench.state()
    assert (log_state.lease_expires_ms, log_state.acked) == (0, {"out": 2})
    assert bench.heard.events[-1] == ("ended", 1)


def test_a_stop_that_could_not_publish_in_time_says_so(bench_of, monkeypatch):
    monkeypatch.setattr(incarnation_module, "JOIN_S", 0.05)
    bench = bench_of(publish_timeout="80 ms")
    bench.sink.released.clear()
    life = bench.born()
    ending = life.stopped(1)
    bench.sink.released.set()
    assert (ending.outcome, type(ending.error)) == (Outcome.STOPPED, PublishFailed)
    assert "staged" in ending.error.hint


class Unreachable(FakeSink):
    """Tries for ever, until it is given up."""

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
    life = bench.born()
    assert life.stopped(1).outcome is Outcome.STOPPED
    eventually(lambda: not any(each.is_alive() for each in life.lanes.threads()), "the publishing thread's end")


def test_a_record_that_is_never_taken_ends_the_life_after_one_attempt_with_the_epoch_to_go_back_to(bench):
    bench.sink.script = [RowsRefused("no key", hint="a key", topic="t"), None]
    life = bench.born()
    life.life.request_savepoint("named")
    life.epoch(2, 1)
    ending = life.ended()
    assert (ending.outcome, type(ending.error)) == (Outcome.FAILED, RowsRefused)
    assert "job.start(restore=1)" in ending.error.hint and "next start publishes" not in ending.error.hint
    assert ending.error.context["sink"] == "out"
    assert (len(bench.sink.outputs), bench.sink.published) == (1, [])


def test_reaching_the_targets_ends_the_job_on_a_published_epoch(bench):
    life = bench.born(targets={"in": {"n": 3}})
    life.batch(1, 2)
    assert life.protocol.open_epoch is None, "not there yet"
    life.batch(3)
    life.barrier(life.final())
    life.batch()
    assert life.ended().outcome is Outcome.STOPPED
    assert bench.sink.rows == [1, 2, 3]
    assert bench.manifests()[-1].reason == "drained"


def test_an_idle_driver_keeps_its_lease(bench_of):
    bench = bench_of(lease="300 ms")
    life = bench.born()
    before = bench.state().lease_expires_ms
    eventually(lambda: bench.state().lease_expires_ms > before + 400, "two renewals")
    assert life.stopped().outcome is Outcome.STOPPED


def test_a_lease_that_cannot_be_renewed_for_now_ends_nothing(bench_of, monkeypatch):
    bench = bench_of(lease="300 ms")
    life = bench.born()
    attempts = []
    renew = bench.store.log.renew

    def flaky(*arguments):
        attempts.append(arguments)
        if len(attempts) < 3:
            raise StoreUnreachable("timeout")
        return renew(*arguments)

    monkeypatch.setattr(bench.store.log, "renew", flaky)
    eventually(lambda: len(attempts) > 3, "renewals")
    assert life.stopped().outcome is Outcome.STOPPED


def test_a_slow_table_does_not_hold_up_the_renewal(bench_of, monkeypatch):
    bench = bench_of(lease="300 ms")
    life = bench.born()
    served = threading.Event()
    monkeypatch.setattr(bench.store, "materialize", lambda *_: served.wait(60))
    life.life.request_savepoint("named")
    life.epoch(2, 1)
    before = bench.state().lease_expires_ms
    eventually(lambda: bench.state().lease_expires_ms > before + 400, "two renewals")
    served.set()
    assert life.stopped().outcome is Outcome.STOPPED


def test_an_idle_job_on_a_full_disk_says_so_until_a_renewal_succeeds(bench_of, monkeypatch):
    bench = bench_of(lease="300 ms")
    life = bench.born()
    life.batch(1)
    life.taken_in()
    renew, progress = bench.store.log.renew, life.progress
    full = StoreFull("no space left")
    monkeypatch.setattr(bench.store.log, "renew", lambda *_: (_ for _ in ()).throw(full))
    outage = eventually(lambda: progress.last()["outage"], "outage")
    assert (outage["condition"], outage["attempt"]) == ("CKPT_STORE_FULL", 0)
    assert ("outage", "CKPT_STORE_FULL") in bench.heard.events
    monkeypatch.setattr(bench.store.log, "renew", renew)
    eventually(lambda: progress.last()["outage"] is None, "its end")
    assert life.stopped().outcome is Outcome.STOPPED


def test_a_java_process_that_is_gone_ends_the_life(bench, monkeypatch):
    life = bench.born()

    def nobody_there(query):
        raise Py4JNetworkError("Answer from Java side is empty")

    monkeypatch.setattr(type(life.query), "isActive", property(nobody_there), raising=False)
    ending = life.ended()
    assert (ending.outcome, ending.error.condition) == (Outcome.FAILED, "CKPT_JVM_GONE")


def test_a_query_that_cannot_say_why_it_died_leaves_nothing_open(bench, monkeypatch):
    life = bench.born()

    def unspeakable():
        raise RuntimeError("no words")

    monkeypatch.setattr(life.query, "exception", unspeakable)
    life.query.isActive = False
    ending = life.ended()
    assert (ending.outcome, str(ending.error)) == (Outcome.FAILED, "no words")
    assert not life.loop.is_alive()


def test_a_query_that_cannot_be_stopped_does_not_hold_up_the_end(bench, monkeypatch):
    life = bench.born()
    never = threading.Event()
    monkeypatch.setattr(life.query, "stop", lambda: never.wait(60))
    life.life.abandon(0.05)
    assert life.ended().outcome is Outcome.STOPPED
    assert bench.state().lease_expires_ms == 0
    never.set()


def test_a_heartbeat_finds_out_that_another_driver_runs_the_job(bench_of):
    bench = bench_of(lease="300 ms")
    life = bench.born()
    bench.overtaken()
    assert life.ended().outcome is Outcome.FENCED


def test_a_savepoints_name_that_is_taken_meanwhile_does_not_end_the_job(bench):
    life = bench.born()
    life.life.request_savepoint("named")
    life.barrier(2)
    bench.store.reopened().log.add_savepoint("named", 1)
    life.batch(1)
    assert life.stopped().outcome is Outcome.STOPPED
    assert bench.state().savepoints == {"named": 1}
    assert bench.sink.rows == [1]


def test_a_log_that_does_not_answer_when_an_epoch_is_named_ends_the_incarnation(bench_of, monkeypatch):
    monkeypatch.setattr(epoch_log, "Turns", partial(Turns, wait_s=0.2))
    bench, go_on, append = bench_of(timeout="2 seconds"), threading.Event(), LogTable.append

    def slow(table, row):
        assert row.kind != "savepoint" or go_on.wait(60)
        append(table, row)

    monkeypatch.setattr(LogTable, "append", slow)
    life = bench.born()
    life.life.request_savepoint("named")
    life.barrier(2)
    life.batch(1)
    ending = life.ended()
    assert (ending.outcome, type(ending.error)) == (Outcome.FAILED, StoreUnreachable)
    assert "epoch 2 was named 'named'" in str(ending.error)
    go_on.set()


@pytest.mark.parametrize(("known", "renewed"), [(0, 1), (1, 0)])
def test_only_a_row_of_acknowledgements_postpones_the_renewal_of_the_lease(known, renewed):
    """The row of a call that got no answer may have landed before the next call."""
    acks, before, answers, served = (SinkAck(sink="out", epoch=1),), LogState(acked={"out": known}), [], []
    log = SimpleNamespace(record_acks=lambda by, acks: before)
    plan = SimpleNamespace(store=SimpleNamespace(log=log), config=JobConfig.of({}, {}), graph=())
    loop, announcer = SimpleNamespace(handle=answers.append), SimpleNamespace(incarnation=1)
    effects = Effects(plan, announcer, None, None, None, None, loop, None, None, served.append, None)
    effects.carry_out(RecordAcks(acks))
    assert (answers, served) == ([AcksRecorded(acks, None)], [before] * renewed)


def test_an_unknown_outcome_of_the_decision_is_left_to_the_next_life(bench, monkeypatch):
    commit = bench.store.log.commit_epoch

    def unknown(manifest, index, fold):
        commit(manifest, index, fold=fold)
        raise StoreUnreachable("no answer")

    life = bench.born()
    monkeypatch.setattr(bench.store.log, "commit_epoch", unknown)
    life.life.request_savepoint("named")
    life.barrier(2)
    life.batch(1)
    ending = life.ended()
    assert (ending.outcome, ending.error.retriable) == (Outcome.FAILED, True)
    monkeypatch.undo()
    bench.plays_spark(monkeypatch)
    bench.born().stopped(2)
    assert bench.sink.rows == [1, 2]


def test_a_log_that_does_not_answer_is_waited_for_for_so_long_and_what_it_took_counts(bench_of, monkeypatch):
    monkeypatch.setattr(epoch_log, "Turns", partial(Turns, wait_s=1.0))
    bench = bench_of(timeout="3 seconds")
    go_on, landed = threading.Event(), threading.Event()
    append = LogTable.append

    def slow(table, row):
        assert go_on.wait(60)
        append(table, row)
        landed.set()

    life = bench.born()
    life.life.request_savepoint("named")
    life.barrier(2)
    monkeypatch.setattr(LogTable, "append", slow)
    life.batch(1)
    ending = life.ended()
    assert (ending.outcome, type(ending.error)) == (Outcome.FAILED, StoreUnreachable)
    assert "epoch 2 of incarnation 1 is in the log is unknown" in str(ending.error)
    with pytest.raises(StoreUnreachable, match="has not answered an earlier call"):
        bench.store.log.state()
    go_on.set()
    assert landed.wait(60)
    monkeypatch.undo()
    bench.plays_spark(monkeypatch)
    bench.born().stopped(2)
    assert bench.sink.rows == [1, 2]


def test_tables_are_settled_behind_the_decision(bench):
    life = bench.born()
    life.life.request_savepoint("named")
    life.epoch(2, 1, 2)
    life.stopped()
    outbox = DeltaTable(str(bench.folder / "store" / "edges" / "out"))
    rows = pa.table(QueryBuilder().register("t", outbox).execute("select v from t").read_all())
    assert sorted(rows.column("v").to_pylist()) == [1, 2]


def test_sparks_checkpoints_of_dead_lives_are_removed(bench):
    for expected in (1, 2, 3):
        life = bench.born()
        life.batch(expected)
        life.stopped()
    runs = sorted(path.name for path in (bench.folder / "store" / "runs").iterdir())
    assert runs == ["3"]


def test_a_driver_that_is_asked_to_hand_over_takes_a_final_epoch_and_ends(bench_of):
    bench = bench_of(lease="300 ms")
    life = bench.born()
    bench.store.reopened().log.ask_handover(1)
    life.barrier(life.final())
    life.batch(1)
    assert life.ended().outcome is Outcome.STOPPED
    assert bench.manifests()[-1].reason == "stop"
    assert (bench.state().is_free, bench.sink.rows) == (True, [1])
    assert bench.heard.events.count(("handover", 1)) == 1


def test_the_lease_is_given_up_before_the_query_is_stopped(bench, monkeypatch):
    """A standby waits for it, and nothing of this incarnation can be decided any more."""
    life, seen = bench.born(), []
    monkeypatch.setattr(life.query, "stop", lambda: seen.append(bench.state().is_free))
    life.stopped(1)
    assert seen == [True]


def test_local_levels_that_a_standby_kept_are_the_incarnations(bench):
    kept = bench.plan.cache / "standby"
    kept.mkdir(parents=True)
    (kept / "some.level").write_bytes(b"level")
    folder = LocalFolder(bench.plan.cache, 7)
    folder.make(kept)
    assert (folder.path / "some.level").read_bytes() == b"level"
    folder.make(kept)
    assert list(folder.path.iterdir()) == [], "what is not there costs time and nothing else"


def test_an_incarnation_begins_although_another_one_removes_the_empty_folder_of_both(bench, monkeypatch):
    folder, mkdir = LocalFolder(bench.plan.cache, 7), os.mkdir

    def raced(path, mode=0o777):
        if Path(path) == folder.path and bench.plan.cache.exists():
            monkeypatch.setattr(os, "mkdir", mkdir)
            bench.plan.cache.rmdir()
        mkdir(path, mode)

    monkeypatch.setattr(os, "mkdir", raced)
    folder.make()
    assert folder.path.is_dir()


def level_of(bench, incarnation):
    """A level of an incarnation on this host; its path."""
    level = LocalFolder(bench.plan.cache, incarnation).path / "sum" / "some.level"
    level.parent.mkdir(parents=True, exist_ok=True)
    level.write_bytes(b"level")
    return level


def test_a_failed_incarnation_leaves_its_levels_until_the_next_one_has_committed_an_epoch(bench):
    older, life = level_of(bench, 0), bench.born()
    before = level_of(bench, 1)
    life.query.die(ValueError("no words"))
    assert (life.ended().outcome, before.exists()) == (Outcome.FAILED, True)
    life = bench.born()
    assert (older.exists(), before.exists()) == (False, True)
    life.life.request_savepoint("named")
    life.epoch(2, 1)
    eventually(lambda: not before.exists(), "the end of the levels before")


def test_a_stopped_incarnation_leaves_no_levels(bench):
    before, life, own = level_of(bench, 0), bench.born(), level_of(bench, 1)
    life.stopped()
    assert not before.exists() and not own.exists()
    assert list((bench.folder / "local").iterdir()) == [], "the job's folder would stay for ever"


def test_a_stopped_incarnation_leaves_the_levels_of_a_standby_on_its_host(bench):
    life, standby = bench.born(), bench.plan.cache / "standby-1-2-x" / "sum"
    standby.mkdir(parents=True)
    life.stopped()
    assert standby.exists()


def test_spark_plans_no_batch_before_the_rules_have_the_one_before(bench_of, monkeypatch):
    """The batch ends while the epoch of the one before is committed, and that commit ends first."""
    bench = bench_of(interval="0 seconds")
    life = bench.born()
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

    life.batch(1)
    life.barrier(2)
    second = life.batches + 1
    monkeypatch.setattr(EpochLog, "commit_epoch", slow)
    monkeypatch.setattr(Stage, "batch_done", held)
    life.batch(2)
    assert committing.wait(WAIT_S)

    def on_sparks_thread():
        life.batch(3)
        let_on.set()

    threading.Thread(target=on_sparks_thread, daemon=True).start()
    eventually(lambda: life.batches == second + 1, "the second batch")
    commits.set()
    assert plans.wait(WAIT_S)
    assert let_on.wait(WAIT_S)
    assert early == [False]
    life.life.request_stop()
    life.play_until(lambda: life.ending)
    assert life.ended().outcome is Outcome.STOPPED
