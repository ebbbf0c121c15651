"""A standby takes over when the log says that the lease is free or silent, once, and for no other reason."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from incarnation_kit import ELSEWHERE, JOB, WAIT_S, FakeSink, eventually
from run_kit import Bench, LossySource, ended, failed, sink_of

from spark_ckpt.connector import StagePlan
from spark_ckpt.coordination.standby import TakeoverLost
from spark_ckpt.driver.query.failures import QueryFailed
from spark_ckpt.driver.run import Run
from spark_ckpt.driver.standby import follower as follower_module
from spark_ckpt.driver.standby import lookout as lookout_module
from spark_ckpt.driver.standby import standing_by as standing_by_module
from spark_ckpt.driver.standby.lookout import Lookout
from spark_ckpt.endpoints import identities
from spark_ckpt.epochs.identity import Confirmed, Found
from spark_ckpt.epochs.records import Manifest, OperatorSnapshot, SinkIdentity
from spark_ckpt.epochs.restore import RESTORING_LINE
from spark_ckpt.errors import GraphInvalid, IdentityChanged, SourceSilent, StoreFull, StoreInUse, StoreUnreachable
from spark_ckpt.events.listener import RunListener
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.standbys import Standbys
from spark_ckpt.store.store import Store

FAR_MS = 4_000_000_000_000
"""A time in the year 2096: the other host's clock is wrong."""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.setattr(follower_module, "can_rehearse", lambda *_: False)
    monkeypatch.setattr(follower_module, "FOLLOW_S", 0.01)
    monkeypatch.setattr(lookout_module, "READ_S", 0.01)
    return Bench(tmp_path, monkeypatch)


@pytest.fixture
def elsewhere(bench):
    """The log as another host sees it, whose clock is decades ahead."""
    return Store.open(str(bench.folder / "store"), JOB, now_ms=lambda: FAR_MS).log


def waiting(bench, *endings, **options):
    """Start a standby of the running job."""
    run = bench.run(*(endings or ("running",)), standby=True, local_dir=bench.folder / "local", **options)
    assert run.isStandby
    return run


def taken_over(bench, run):
    """Wait for the takeover; return the first incarnation."""
    eventually(lambda: not run.isStandby, "takeover")  # it is made before the run counts as taken over
    return bench.incarnations[0]


def test_a_job_without_a_driver_begins_at_once(bench):
    run = bench.run("running", standby=True)
    assert (run.isStandby, run.incarnation) == (False, 1)
    assert run.stop(WAIT_S)


def test_a_job_whose_driver_died_on_this_host_begins_at_once(bench):
    here = current_holder(JOB)
    bench.store.reopened().log.begin_incarnation(
        here.model_copy(update={"pid_start": here.pid_start + 1}), "latest", 600_000
    )
    run = bench.run("running", standby=True)
    assert (run.isStandby, run.incarnation) == (False, 2)
    assert run.stop(WAIT_S)


def test_a_standby_waits_until_the_lease_is_released(bench, elsewhere):
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    run = waiting(bench)
    assert not run.awaitTermination(0.05)
    assert bench.incarnations == []
    elsewhere.release(1)
    assert taken_over(bench, run).incarnation == 2
    assert run.stop(WAIT_S)


def test_a_silent_driver_is_replaced_by_the_standbys_own_clock(bench, elsewhere):
    """The clock of the driver's host says that the lease lasts for seventy years."""
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 400)
    with pytest.raises(StoreInUse):
        bench.run("running")
    # `waiting` would be too late on a slow machine: the driver is silent for 0.4 s soon.
    run = bench.run("running", standby=True, local_dir=bench.folder / "local")
    assert taken_over(bench, run).incarnation == 2
    assert run.stop(WAIT_S)


def test_a_driver_that_renews_with_a_slow_clock_is_not_replaced(bench):
    """The clock of the driver's host says that the lease was over in 1970."""
    elsewhere = Store.open(str(bench.folder / "store"), JOB, now_ms=lambda: 1).log
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 30_000)
    run = waiting(bench)
    for seen in range(1, 6):
        elsewhere.renew(1, 30_000)
        eventually(lambda seen=seen: run.lastProgress["standby"]["renewals"] >= seen, "renewal")
    assert bench.incarnations == []
    assert run.stop(WAIT_S)


def test_of_two_standbys_one_begins(bench, elsewhere, monkeypatch, tmp_path):
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    other = Bench(tmp_path, monkeypatch)
    both = [(bench, waiting(bench)), (other, waiting(other))]
    elsewhere.release(1)
    eventually(lambda: bench.incarnations or other.incarnations, "takeover")
    eventually(lambda: sum(run.isStandby for _, run in both) == 1, "the other one continues to wait")
    assert elsewhere.state().incarnation == 2
    for _, run in both:
        assert run.stop(WAIT_S)
    assert len(bench.incarnations) + len(other.incarnations) == 1


def test_a_stopped_standby_removes_its_note_and_folder(bench, elsewhere):
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    run = waiting(bench)
    eventually(lambda: Standbys(bench.store.location).waiting(), "its note")
    (bench.folder / "local" / f"spark-ckpt-{bench.store.id}").mkdir(parents=True)
    assert run.stop(WAIT_S)
    assert (run.exception(), bench.incarnations) == (None, [])
    assert Standbys(bench.store.location).waiting() == []
    assert list((bench.folder / "local").iterdir()) == []
    assert elsewhere.state().incarnation == 1


def test_a_standby_whose_job_no_longer_fits_the_store_ends_before_a_takeover(bench, elsewhere):
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    run = waiting(bench)
    state = OperatorSnapshot(operator="new", key_groups=1, key_schema="k STRING", state_schema="v BIGINT")
    cursors = {"in": {"n": 0}}
    elsewhere.commit_epoch(
        Manifest(job=JOB, epoch=1, incarnation=1, attempt="a", created_ms=0, operators={"new": state}, cursors=cursors)
    )
    error = ended(run)
    assert type(error) is GraphInvalid
    assert "operator 'new'" in error.what


@pytest.mark.parametrize("confirmed", [True, False])
def test_a_standby_takes_over_with_the_table_that_its_driver_confirmed_meanwhile(
    bench, elsewhere, monkeypatch, confirmed
):
    tables = {number: {"kind": "delta", "table id": number} for number in ("1", "2")}
    bench.sink_type = sink_of(tables["2"])
    # The plan of the standby's start is of the table before, which had no partitions.
    monkeypatch.setattr(FakeSink, "stage", lambda sink, schema: StagePlan(partition_by=("day",)))
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    bench.endings = ["running"]
    plan = bench.plan(local_dir=bench.folder / "local")
    run = Run.start(replace(plan, found=Found({}, {"out": tables["1"]})), "latest", False, [], standby=True)
    of_the_log = SinkIdentity(parts=tables["2" if confirmed else "1"])
    elsewhere.commit_epoch(
        Manifest(job=JOB, epoch=1, incarnation=1, attempt="a", created_ms=0, sink_identities={"out": of_the_log})
    )
    elsewhere.release(1)
    if confirmed:
        incarnation = taken_over(bench, run)
        assert (incarnation.incarnation, incarnation.plan.stage_plans["out"].partition_by) == (2, ("day",))
        assert run.stop(WAIT_S)
    else:
        assert type(ended(run)) is IdentityChanged


def confirming(bench, confirmed, **found):
    """Start a standby whose user confirmed changes."""
    plan = replace(bench.plan(local_dir=bench.folder / "local"), confirmed=confirmed, found=Found(**found))
    return Run.start(plan, "latest", False, [], standby=True)


@pytest.mark.parametrize("read_on", [True, False])
def test_a_standbys_confirmation_of_lost_rows_counts_until_the_job_reads_on(bench, elsewhere, read_on):
    bench.source_type = LossySource
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    run = confirming(bench, Confirmed(lost_rows=frozenset({"in"})), sources={"in": {}}, sinks={"out": {}})
    if read_on:
        elsewhere.commit_epoch(Manifest(job=JOB, epoch=1, incarnation=1, attempt="a", created_ms=0))
    elsewhere.release(1)
    assert taken_over(bench, run).plan.confirmed.lost_rows == ({"in"} if not read_on else set())
    assert run.stop(WAIT_S)


@pytest.mark.parametrize("replaced", [True, False])
def test_a_standby_confirms_no_table_that_is_younger_than_its_start(bench, elsewhere, replaced):
    tables = {number: {"kind": "delta", "table id": number} for number in ("1", "2", "3")}
    bench.sink_type = sink_of(tables["3" if replaced else "2"])
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    of_the_log = SinkIdentity(parts=tables["1"])
    elsewhere.commit_epoch(
        Manifest(job=JOB, epoch=1, incarnation=1, attempt="a", created_ms=0, sink_identities={"out": of_the_log})
    )
    run = confirming(bench, Confirmed(new_sinks=frozenset({"out"})), sinks={"out": tables["2"]})
    elsewhere.release(1)
    if replaced:
        assert type(ended(run)) is IdentityChanged
    else:
        assert taken_over(bench, run).incarnation == 2
        assert run.stop(WAIT_S)


def test_a_standby_keeps_waiting_during_an_outage_of_the_store(bench, elsewhere, monkeypatch):
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    run = waiting(bench)
    log_state, missed = bench.store.log.state, []

    def away():
        missed.append(1)
        raise StoreUnreachable("timeout")

    monkeypatch.setattr(bench.store.log, "state", away)
    eventually(lambda: len(missed) > 3, "attempts")
    monkeypatch.setattr(bench.store.log, "state", log_state)
    elsewhere.release(1)
    assert taken_over(bench, run).incarnation == 2
    assert run.stop(WAIT_S)


def test_an_untyped_error_leaves_out_one_epoch_only(bench, elsewhere, monkeypatch):
    stage_behind, failures = follower_module.stage_behind, []

    def fails_once(*arguments):
        if not failures:
            failures.append(1)
            raise RuntimeError("Java had no memory")
        return stage_behind(*arguments)

    monkeypatch.setattr(follower_module, "stage_behind", fails_once)
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    run, cursors = waiting(bench), {"in": {"n": 0}}
    first = Manifest(job=JOB, epoch=1, incarnation=1, attempt="a", created_ms=0, cursors=cursors)
    elsewhere.commit_epoch(first)
    eventually(lambda: failures, "the epoch that is left out")
    elsewhere.commit_epoch(first.model_copy(update={"epoch": 2, "base": 1, "previous": 1, "attempt": "b"}))
    assert eventually(lambda: run.lastProgress["standby"]["epoch"], "the next one") == 2
    assert run.stop(WAIT_S)


def test_an_epoch_that_an_outage_kept_from_a_standby_is_followed_later(bench, elsewhere, monkeypatch):
    """The job is quiet: no next epoch comes."""
    monkeypatch.setattr(follower_module, "RETRY_S", 0.01)
    stage_behind, failures = follower_module.stage_behind, []

    def fails_once(*given):
        if not failures:
            failures.append(1)
            raise StoreUnreachable("timeout")
        return stage_behind(*given)

    monkeypatch.setattr(follower_module, "stage_behind", fails_once)
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    cursors = {"in": {"n": 0}}
    elsewhere.commit_epoch(Manifest(job=JOB, epoch=1, incarnation=1, attempt="a", created_ms=0, cursors=cursors))
    run = waiting(bench)
    eventually(lambda: run.lastProgress["standby"]["epoch"] == 1, "epoch 1 followed")
    assert run.stop(WAIT_S)


def test_a_standby_that_loses_the_takeover_keeps_waiting(bench, elsewhere, monkeypatch):
    """Between the read that sees the end of the lease and the append, another standby appends its incarnation."""
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    begin = bench.store.log.begin_incarnation

    def overtaken(*arguments, **options):
        monkeypatch.setattr(bench.store.log, "begin_incarnation", begin)
        elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
        return begin(*arguments, **options)

    run = waiting(bench)
    monkeypatch.setattr(bench.store.log, "begin_incarnation", overtaken)
    elsewhere.release(1)
    eventually(lambda: elsewhere.state().incarnation == 2, "the other one's")
    eventually(lambda: run.lastProgress["standby"]["leaseOf"] == 2, "it waits behind that one")
    assert bench.incarnations == []
    elsewhere.release(2)
    assert taken_over(bench, run).incarnation == 3
    assert run.stop(WAIT_S)


def test_a_takeover_that_the_store_refuses_is_not_tried_at_each_look(bench, elsewhere, monkeypatch):
    """A full disk can be read: the lease is seen to be free at each look, and each attempt to take it fails."""
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    run, tried = waiting(bench), []

    def refused(*arguments, **options):
        tried.append(1)
        raise StoreFull("no space left on device")

    monkeypatch.setattr(standing_by_module, "OUTAGE_S", 3600.0)
    monkeypatch.setattr(bench.store.log, "begin_incarnation", refused)
    elsewhere.release(1)
    eventually(lambda: tried, "the first attempt")
    assert not run.awaitTermination(0.3)
    assert (len(tried), run.isStandby) == (1, True)
    assert run.stop(WAIT_S)


def test_a_failed_takeover_is_retried(bench, elsewhere):
    """The cause of the driver's end may exist here, too: a running job would begin its next incarnation."""
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    run = waiting(bench, beginnings=[SourceSilent("no broker"), QueryFailed("no executors")])
    elsewhere.release(1)
    eventually(lambda: not run.isStandby, "takeover")
    assert (run.incarnation, len(bench.incarnations)) == (4, 3)
    assert run.stop(WAIT_S)


def test_a_takeover_that_a_full_disk_of_this_host_fails_is_retried(bench, elsewhere, monkeypatch):
    """The error comes from the library of a source or sink, which is asked for its endpoint first."""
    found_again, full = identities.found_again, [OSError(errno.ENOSPC, "No space left on device", "/tmp/x")]

    def asked(*arguments):
        if full:
            raise full.pop()
        return found_again(*arguments)

    monkeypatch.setattr(standing_by_module, "OUTAGE_S", 0.01)
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    run = waiting(bench)
    monkeypatch.setattr(identities, "found_again", asked)
    elsewhere.release(1)
    eventually(lambda: not run.isStandby or run.exception(), "takeover")
    assert (run.exception(), run.incarnation) == (None, 2)
    assert run.stop(WAIT_S)


def test_repeated_failed_takeovers_end_the_wait(bench, elsewhere):
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    run = waiting(bench, beginnings=[QueryFailed("no executors")] * 9, max_failed_epochs=2)
    elsewhere.release(1)
    error = ended(run)
    assert "3 incarnations in a row failed" in error.what
    assert elsewhere.state().is_free


def test_a_standby_waits_until_a_restore_of_several_stores_is_over(bench, elsewhere):
    """The command was killed between two stores, and is repeated."""
    here = current_holder(f"{RESTORING_LINE}line-20")
    dead = here.model_copy(update={"pid_start": here.pid_start + 1})
    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    run = waiting(bench)
    elsewhere.begin_incarnation(dead, "latest", 60_000, takeover=True)
    eventually(lambda: run.lastProgress["standby"]["leaseOf"] == 2, "the restore is seen")
    assert not run.awaitTermination(0.2)
    assert (run.isStandby, bench.incarnations) == (True, [])
    elsewhere.release(2)
    assert taken_over(bench, run).incarnation == 3
    assert run.stop(WAIT_S)


def test_listeners_receive_the_events_of_a_standby(bench, elsewhere):
    received = []

    class Ear(RunListener):
        def onStandby(self, event):
            received.append((event.what, event.lease_of, event.epoch))

    elsewhere.begin_incarnation(ELSEWHERE, "latest", 600_000)
    run = waiting(bench, listeners=[Ear()])
    cursors = {"in": {"n": 0}}
    elsewhere.commit_epoch(Manifest(job=JOB, epoch=1, incarnation=1, attempt="a", created_ms=0, cursors=cursors))
    eventually(lambda: ("follows", 1, 1) in received, "epoch 1 followed")
    elsewhere.release(1)
    taken_over(bench, run)
    assert [what for what, _, _ in received] == ["waits", "follows", "takes over"]
    assert run.stop(WAIT_S)


def test_a_driver_between_two_incarnations_keeps_its_lease(bench):
    """Otherwise a standby would take a job whose driver is about to continue, and failures in a row would never be counted."""
    seen = []
    log_state = bench.store.reopened().log.state

    def dies():
        seen.append(log_state().is_free)
        return failed()

    run = bench.run(dies, lambda: seen.append(log_state().is_free) or failed(), dies, max_failed_epochs=2)
    assert ended(run) is not None
    assert seen == [False, False, False]
    assert log_state().is_free, "a run that gives up frees it"


def test_in_an_outage_a_standby_reads_the_store_no_more_often_than_before(monkeypatch):
    asked = []

    class Away:
        def state(self):
            asked.append(1)
            raise StoreUnreachable("timeout")

    monkeypatch.setattr(lookout_module, "READ_S", 3600.0)
    lookout = Lookout(Away(), 30_000)
    with pytest.raises(StoreUnreachable):
        lookout.look()
    assert (lookout.look(), len(asked)) == (None, 1)


def test_a_holder_that_is_gone_makes_a_standby_read_the_log_once_more(bench, monkeypatch):
    """A restore of several stores that was killed blocks every start until it is run again: hours of needless reads."""
    here = current_holder(f"{RESTORING_LINE}line-20")
    dead = here.model_copy(update={"pid_start": here.pid_start + 1})
    bench.store.reopened().log.begin_incarnation(dead, "latest", 60_000)
    monkeypatch.setattr(lookout_module, "READ_S", 3600.0)
    lookout, seen = Lookout(bench.store.log, 30_000), []
    for _ in range(5):
        seen.append(lookout.look() is not None)
        if seen[-1]:
            lookout.rules.handle(TakeoverLost())
    assert seen == [True, True, False, False, False]
