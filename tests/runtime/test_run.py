"""The supervisor starts incarnations until one ends cleanly, fails for good, or too many fail in a row."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
from incarnation_kit import JOB, SCHEMA, WAIT_S, FakeSource, an_operator, eventually
from run_kit import STOPPED, Bench, FakeIncarnation, LossySource, ended, failed, sink_of

from spark_ckpt.coordination.messages import Outcome
from spark_ckpt.driver import run as run_module
from spark_ckpt.driver import supervisor as supervisor_module
from spark_ckpt.driver.incarnation import Ending
from spark_ckpt.driver.query.failures import QueryFailed
from spark_ckpt.driver.run import Run
from spark_ckpt.epochs.identity import Confirmed, Found
from spark_ckpt.epochs.records import (
    Manifest,
    OperatorSnapshot,
    SinkIdentity,
    SparkState,
    StagedFileRecord,
    StagedOutput,
)
from spark_ckpt.errors import (
    ConfigInvalid,
    DrainStopped,
    EpochDamaged,
    EpochTimedOut,
    Fenced,
    GraphInvalid,
    PublishFailed,
    RunFailed,
    StartOutOfRange,
    StopTimedOut,
    StoreFull,
    StoreUnreachable,
    WorkersNotStarted,
)
from spark_ckpt.events.announcer import Announcer
from spark_ckpt.events.listener import RunListener
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.store import Store

NO_TOPIC = {"kind": "kafka", "topic id": ""}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return Bench(tmp_path, monkeypatch)


def test_an_incarnation_that_stops_ends_the_run(bench):
    run = bench.run(STOPPED)
    assert ended(run) is None
    assert (run.isActive, run.exception(), len(bench.incarnations)) == (False, None, 1)


def test_a_program_that_ends_waits_until_its_run_has_ended_in_order(bench, monkeypatch):
    at_exit = []
    monkeypatch.setattr(run_module, "atexit", SimpleNamespace(register=at_exit.append, unregister=at_exit.remove))
    run = bench.run("running")
    (end,) = at_exit
    end()
    assert (run.isActive, run.exception(), bench.incarnations[0].abandoned) == (False, None, True)


def test_a_run_that_has_ended_leaves_no_exit_handler(bench, monkeypatch):
    registered = []
    monkeypatch.setattr(run_module, "atexit", SimpleNamespace(register=registered.append, unregister=registered.remove))
    run = bench.run(STOPPED)
    assert ended(run) is None
    eventually(lambda: registered == [], "the end of the run's thread")


def test_a_failure_leads_to_a_new_incarnation(bench):
    run = bench.run(failed(), STOPPED)
    assert ended(run) is None
    assert [each.incarnation for each in bench.incarnations] == [1, 2]


class SourceWithoutStart(FakeSource):
    def start(self, spark):
        raise StartOutOfRange("the topic begins later")

    def columns(self, spark):
        return SCHEMA


def test_a_new_source_whose_start_is_gone_is_refused_before_an_incarnation(bench):
    bench.source_type = SourceWithoutStart
    with pytest.raises(StartOutOfRange):
        bench.run(STOPPED)
    assert bench.store.log.state().incarnation == 0


def test_a_source_with_an_epoch_needs_its_start_no_more(bench):
    bench.decide(1, cursors={"in": {"n": 5}})
    bench.source_type = SourceWithoutStart
    assert ended(bench.run(STOPPED)) is None


def test_a_job_continues_without_a_source_once_its_removal_is_confirmed(bench):
    bench.decide(1, cursors={"in": {"n": 5}, "old": {"n": 7}})
    with pytest.raises(GraphInvalid) as refused:
        bench.run(STOPPED)
    assert "job.start(accept_dropped_source='old')" in refused.value.hint
    operator = replace(bench.plan(), confirmed=Confirmed(dropped_operators=frozenset({"sums"})))
    with pytest.raises(GraphInvalid) as refused:
        Run.start(operator, "latest", False, [])
    assert "job.start(accept_dropped_operator='sums', accept_dropped_source='old')" in refused.value.hint
    bench.endings = [STOPPED]
    plan = replace(bench.plan(), confirmed=Confirmed(dropped_sources=frozenset({"old"})))
    assert ended(Run.start(plan, "latest", False, [])) is None


def test_the_confirmation_of_a_removal_keeps_the_epoch_that_the_start_restores(bench):
    snapshot = OperatorSnapshot(operator="sums", key_groups=4, key_schema="k string", state_schema="total bigint")
    bench.decide(1, cursors={"in": {"n": 5}, "old": {"n": 7}})
    bench.decide(2, cursors={"in": {"n": 6}, "old": {"n": 7}}, operators={"sums": snapshot})
    with pytest.raises(GraphInvalid) as source:
        bench.run(STOPPED, restore=1)
    assert "job.start(restore=1, accept_dropped_source='old')" in source.value.hint
    bench.decide(3, cursors={"in": {"n": 6}})
    with pytest.raises(GraphInvalid) as operator:
        Run.start(replace(bench.plan(), confirmed=Confirmed(dropped_sources=frozenset({"old"}))), 2, False, [])
    assert "job.start(restore=2, accept_dropped_operator='sums', accept_dropped_source='old')" in operator.value.hint
    of_spark = SparkState(
        incarnation=1, batch=1, index="i", size_bytes=1, sha256="0" * 64, files=1, state_bytes=1, provider="rocksdb",
        checkpoint_format=1, partitions=1, operators=("dedupe",),
    )  # fmt: skip
    base = bench.store.log.manifest(1).model_copy(update={"spark_state": of_spark})
    plan = replace(bench.plan(), confirmed=Confirmed(dropped_sources=frozenset({"old"})))
    with pytest.raises(GraphInvalid) as sparks:
        plan.check_base(base, restore=1)
    call = "job.start(restore=1, accept_dropped_operator='spark operators', accept_dropped_source='old')"
    assert f"{call} (--conf 'spark.ckpt.accept.dropped.operator=spark operators' --conf " in sparks.value.hint


def test_a_removed_sink_with_unpublished_epochs_that_is_gone_for_good_has_a_way_on(bench):
    """A restore of an epoch before them drops the epochs that only the removed sink lacks."""
    bench.decide(1, outputs={"out": StagedOutput(sink="out")})
    bench.decide(2, outputs={name: StagedOutput(sink=name) for name in ("out", "old")})
    bench.decide(3, outputs={name: StagedOutput(sink=name) for name in ("out", "also")})
    with pytest.raises(GraphInvalid, match="no longer has: also, old") as refused:
        bench.run(STOPPED)
    assert "job.start(restore=1) produces the rows again" in refused.value.hint
    assert ended(bench.run(STOPPED, restore=1)) is None


def test_a_source_that_the_job_has_cannot_be_dropped(bench):
    plan = replace(bench.plan(), confirmed=Confirmed(dropped_sources=frozenset({"in"})))
    with pytest.raises(ConfigInvalid, match="names 'in', which the job has"):
        Run.start(plan, "latest", False, [])


@pytest.mark.parametrize(("progressed", "kept"), [(False, {"in"}), (True, set())], ids=["no epoch yet", "an epoch"])
def test_a_confirmed_loss_is_confirmed_until_an_epoch_is_behind_it(bench, progressed, kept):
    """Rows that the source loses days later, while the run continues, are another loss."""
    bench.source_type = LossySource
    bench.endings = [failed(progressed), STOPPED]
    plan = replace(bench.plan(), confirmed=Confirmed(lost_rows=frozenset({"in"})), found=Found({"in": {}}, {}))
    assert ended(Run.start(plan, "latest", False, [])) is None
    assert [set(each.plan.confirmed.lost_rows) for each in bench.incarnations] == [{"in"}, kept]


def test_a_new_sink_is_new_once_also_if_its_topic_has_no_id_yet(bench):
    """A restart before the first publish must not take the rows of its own epoch for those of the sink before."""
    bench.sink_type = sink_of(NO_TOPIC)
    bench.decide(1, sink_identities={"out": SinkIdentity(parts={**NO_TOPIC, "topic id": "a"})})
    rows = StagedFileRecord(path="f", size_bytes=1, rows=1, lane=0, batch=0, task=0, part=0)
    bench.store.staged("out").location.write_bytes("f", b"x")
    mine = {
        "outputs": {"out": StagedOutput(sink="out", files=(rows,), rows=1)},
        "sink_identities": {"out": SinkIdentity(parts=NO_TOPIC, after=1)},
    }

    def fails_after_an_epoch():
        bench.store.log.commit_epoch(
            Manifest(job=JOB, epoch=2, incarnation=2, attempt="a2", created_ms=0, base=1, previous=1, **mine)
        )
        return failed(progressed=True)

    bench.endings = [fails_after_an_epoch, STOPPED]
    plan = replace(bench.plan(), confirmed=Confirmed(new_sinks=frozenset({"out"})), found=Found({}, {"out": NO_TOPIC}))
    assert ended(Run.start(plan, "latest", False, [])) is None


def test_failures_in_a_row_are_bounded_and_the_error_has_the_last_reason(bench):
    run = bench.run(*[failed()] * 9, max_failed_epochs=2)
    error = ended(run)
    assert type(error) is RunFailed
    assert "3 incarnations in a row" in error.what
    assert "executor lost" in error.what
    assert len(bench.incarnations) == 3
    assert run.exception() is error


def test_no_failure_is_tolerated_when_none_may_be(bench):
    assert type(ended(bench.run(failed(), max_failed_epochs=0))) is RunFailed
    assert len(bench.incarnations) == 1


def test_a_new_epoch_starts_the_count_again(bench):
    run = bench.run(failed(), failed(), failed(progressed=True), failed(), failed(progressed=True), failed(), STOPPED)
    assert ended(run) is None
    assert len(bench.incarnations) == 7


@pytest.mark.parametrize("error", [EpochDamaged("file gone"), GraphInvalid("no such column"), RunFailed("bug")])
def test_an_error_that_no_restart_cures_ends_the_run_as_it_is(bench, error):
    assert ended(bench.run(failed(error=error))) is error
    assert len(bench.incarnations) == 1


def test_an_unexpected_error_ends_the_run_by_its_name(bench):
    error = ended(bench.run(failed(error=ZeroDivisionError("division by zero"))))
    assert type(error) is RunFailed
    assert "ZeroDivisionError: division by zero" in error.what


def test_a_fence_ends_the_run_at_once(bench):
    fence = Fenced("incarnation 9 took over")
    assert ended(bench.run(Ending(Outcome.FENCED, fence, True))) is fence
    assert type(ended(bench.run(Ending(Outcome.FENCED, None, True)))) is Fenced
    assert len(bench.incarnations) == 2


def test_a_zombie_ends_as_fenced_for_any_failure_of_its_query(bench):
    def replaced():
        other = Store.open(str(bench.folder / "store"), JOB).log
        other.begin_incarnation(supervisor_module.current_holder(JOB), "latest", 600_000, takeover=True)
        return failed(progressed=True)

    assert type(ended(bench.run(replaced, STOPPED))) is Fenced
    assert len(bench.incarnations) == 1
    assert bench.store.reopened().log.state().incarnation == 2


def test_a_run_continues_only_under_its_own_lease_for_any_clock(bench):
    """Another driver takes over during the pause, with a lease that is already over by this host's clock."""

    def overtaken(*_):
        other = Store.open(str(bench.folder / "store"), JOB, now_ms=lambda: 1).log
        other.begin_incarnation(supervisor_module.current_holder(JOB), "latest", 1, takeover=True)

    pausing = OutageListener()
    pausing.onOutage = overtaken
    outage = failed(error=StoreFull("no space left"))
    assert type(ended(bench.run(outage, STOPPED, listeners=[pausing]))) is Fenced
    assert (len(bench.incarnations), bench.store.reopened().log.state().incarnation) == (1, 2)


def test_a_stop_that_left_rows_unpublished_raises_it(bench):
    error = PublishFailed("broker away")
    assert ended(bench.run(Ending(Outcome.STOPPED, error, True))) is error


def test_an_incarnation_that_cannot_begin_counts_as_a_failure(bench):
    run = bench.run(failed(), STOPPED, beginnings=[None, QueryFailed("no executors"), QueryFailed("no executors")])
    error = ended(run)
    assert type(error) is RunFailed
    assert "3 incarnations in a row" in error.what

    again = bench.run(failed(), STOPPED, beginnings=[None, QueryFailed("no executors")])
    assert ended(again) is None


# -- outages ---------------------------------------------------------------------------------------------------------


def test_an_outage_is_outlasted_by_more_incarnations_than_may_fail(bench):
    outages = [StoreFull("full"), OSError(28, "No space left on device"), StoreUnreachable("timeout")] * 4
    run = bench.run(failed(error=StoreFull("full")), STOPPED, beginnings=[None, *outages], max_failed_epochs=0)
    assert ended(run) is None
    assert len(bench.incarnations) == 14


LATE = RuntimeError(
    "An error occurred while calling o1.load.\n: org.apache.spark.SparkException: Python worker failed to connect back."
)


def test_workers_that_do_not_start_are_waited_for_by_more_incarnations_than_may_fail(bench):
    late = failed(error=WorkersNotStarted("late"))
    run = bench.run(late, STOPPED, beginnings=[None, *[LATE] * 5], max_failed_epochs=0)
    assert ended(run) is None
    assert len(bench.incarnations) == 7


def test_workers_that_do_not_start_within_patience_end_the_run_with_what_to_do(bench):
    late = [failed(error=WorkersNotStarted("late", hint="stop other programs")) for _ in range(999)]
    error = ended(bench.run(*late, store_patience="50 ms", max_failed_epochs=0))
    assert (error.condition, error.hint) == ("CKPT_WORKERS_NOT_STARTED", "stop other programs")
    assert "store_patience" in error.context["waited"]
    assert len(bench.incarnations) > 1


def test_an_outage_longer_than_patience_ends_the_run_with_its_own_error(bench):
    full = [failed(error=StoreFull("no space left", location="/data", hint="free space")) for _ in range(999)]
    listener = OutageListener()
    error = ended(bench.run(*full, store_patience="50 ms", max_failed_epochs=0, listeners=[listener]))
    assert (type(error), error.what, error.context["location"]) == (StoreFull, "no space left", "/data")
    assert listener.over[-1] == listener.outages[-1], "it is over with the run"
    assert "store_patience" in error.context["waited"]
    assert len(bench.incarnations) > 1


@pytest.mark.parametrize("error", [QueryFailed("a file of the checkpoint is gone"), EpochDamaged("a file is gone")])
def test_failures_while_the_store_is_unreachable_count_as_its_outage(bench, monkeypatch, error):
    log_state = bench.store.log.state

    def away():
        raise StoreUnreachable("not mounted")

    def ends():
        monkeypatch.setattr(bench.store.log, "state", away)
        monkeypatch.setattr(bench.store.log, "begin_incarnation", lambda *_, **__: away())
        return failed(error=error)

    run = bench.run(ends, "running", max_failed_epochs=0, store_patience="1 hour")
    outage = eventually(lambda: (run.lastProgress or {}).get("outage"), "outage")
    assert outage["condition"] == "CKPT_STORE_UNREACHABLE"
    monkeypatch.undo()
    monkeypatch.setattr(
        supervisor_module, "SparkIncarnation", lambda plan, point, *_: FakeIncarnation(bench, plan, point)
    )
    eventually(lambda: len(bench.incarnations) == 2, "the next incarnation")
    assert log_state().incarnation == 2
    assert run.stop(WAIT_S)


class OutageListener(RunListener):
    def __init__(self):
        self.outages, self.over = [], []
        self.onOutage, self.onOutageOver = self.outages.append, self.over.append


def test_an_outage_is_in_progress_and_events_until_it_is_over(bench):
    over, listener = threading.Event(), OutageListener()
    bench.endings, bench.beginnings = [failed(error=StoreFull("no space left")), "running"], [None, over]
    run = Run.start(bench.plan(store_patience="1 hour"), "latest", False, [listener])
    outage = eventually(lambda: (run.lastProgress or {}).get("outage"), "outage in progress")
    assert (outage["condition"], outage["patience_ms"], outage["attempt"]) == ("CKPT_STORE_FULL", 3_600_000, 1)
    assert [(event.job, event.condition) for event in listener.outages] == [(JOB, "CKPT_STORE_FULL")]
    over.set()
    eventually(lambda: listener.over == listener.outages, "the end of the outage")
    assert run.lastProgress is None
    assert run.stop(WAIT_S)


def test_a_stop_during_an_outage_ends_within_its_bound_and_says_why(bench, monkeypatch):
    monkeypatch.setattr(supervisor_module, "PAUSE_S", 10_000.0)
    monkeypatch.setattr(supervisor_module, "SPARE_S", 0.0)
    full = [failed(error=StoreFull("no space left")) for _ in range(999)]
    run = bench.run(*full, store_patience="1 hour", stop_timeout="100 ms")
    eventually(lambda: run.lastProgress, "outage")
    with pytest.raises(StoreFull) as caught:
        run.stop(WAIT_S)
    assert "no final epoch" in caught.value.context["waited"]
    assert not run.isActive


def test_a_stop_as_the_store_comes_back_takes_its_final_epoch(bench, monkeypatch):
    monkeypatch.setattr(supervisor_module, "PAUSE_S", 10_000.0)
    run = bench.run(failed(error=StoreFull("no space left")), "running")
    eventually(lambda: run.lastProgress, "outage")
    assert run.stop(WAIT_S)
    assert bench.incarnations[1].asked.is_set()


def test_a_full_disk_at_the_start_raises_store_full_for_every_library(bench):
    with pytest.raises(StoreFull) as caught:
        bench.run(beginnings=[OSError(28, "No space left on device", "/cache")])
    assert caught.value.context["location"] == "/cache"


# -- signals ---------------------------------------------------------------------------------------------------------


def test_a_signal_takes_a_final_epoch(bench):
    run = bench.run("running")
    run.stop_for_signal("SIGTERM")
    assert (run.isActive, run.exception(), bench.incarnations[0].abandoned) == (False, None, False)


@pytest.mark.parametrize("has_drained", [False, True])
def test_a_drain_that_a_signal_ends_early_is_an_error(bench, has_drained):
    bench.has_drained = has_drained
    run = bench.run("running", drain=True)
    run.stop_for_signal("SIGTERM")
    assert type(run.exception()) is (type(None) if has_drained else DrainStopped)
    assert not bench.incarnations[0].abandoned


@pytest.mark.parametrize("drain", [True, False])
def test_no_drain_starts_after_a_signal_that_ended_a_complete_one(bench, monkeypatch, drain):
    """The first job of a program had read everything, so nothing else tells the program of the signal."""
    monkeypatch.setattr(run_module.stops, "ends_program", "SIGTERM", raising=False)
    if drain:
        with pytest.raises(DrainStopped, match="SIGTERM ended the program before job"):
            bench.run("running", drain=True)
    else:
        assert bench.run("running").stop(WAIT_S)


@pytest.mark.parametrize("has_drained", [False, True])
def test_a_drain_that_is_handed_over_early_is_an_error(bench, has_drained):
    bench.has_drained, bench.hands_over = has_drained, True
    error = ended(bench.run(STOPPED, drain=True))
    assert type(error) is (type(None) if has_drained else DrainStopped)


def test_a_drain_that_its_program_stops_is_no_error(bench):
    run = bench.run("running", drain=True)
    assert run.stop(WAIT_S)
    assert run.exception() is None


def test_a_failure_is_raised_rather_than_the_signal_that_came_with_it(bench):
    error = EpochDamaged("file gone")
    run = bench.run(lambda: failed(error=error) if bench.incarnations[0].asked.wait(WAIT_S) else None, drain=True)
    run.stop_for_signal("SIGTERM")
    assert run.exception() is error


def test_a_signal_ends_a_run_that_takes_no_final_epoch_within_its_bound(bench):
    hangs = threading.Event()

    def hanging():
        assert hangs.wait(WAIT_S)
        return STOPPED

    run = bench.run(hanging, stop_timeout="50 ms")
    bench.incarnations[0].abandon = lambda close_within_s: hangs.set()
    run.stop_for_signal("SIGTERM")
    with pytest.raises(StopTimedOut, match="SIGTERM"):
        run.awaitTermination(WAIT_S)


def test_a_signal_ends_even_a_run_that_cannot_close(bench, monkeypatch):
    monkeypatch.setattr(run_module, "CLOSE_S", 0.05)
    never = threading.Event()
    run = bench.run(lambda: STOPPED if never.wait(WAIT_S) else None, stop_timeout="50 ms")
    bench.incarnations[0].abandon = lambda close_within_s: None
    run.stop_for_signal("SIGTERM")
    assert not run.isActive
    assert type(run.exception()) is StopTimedOut
    never.set()


def test_a_listener_that_waits_for_its_own_run_gets_an_error(bench):
    """The run continues when the listener returns: with `stop` in a listener it stood still for ever."""
    bench.decide(1)
    run, refused = bench.run("running"), []

    class Ear(RunListener):
        def onHandover(self, event):
            for wait in (run.stop, run.awaitTermination, run.processAllAvailable, lambda: run.savepoint("named")):
                with pytest.raises(ConfigInvalid, match="ask_to_stop"):
                    wait()
                refused.append(wait)
            assert not run.awaitTermination(0.01)
            run.ask_to_stop()

    Announcer(JOB, 1, [Ear()]).hands_over(1)
    assert len(refused) == 4
    assert run.awaitTermination(WAIT_S)
    assert bench.incarnations[0].savepoints == []


def test_a_run_records_that_its_program_polls_it(bench):
    run = bench.run("running")
    assert not run.notices_its_end
    assert run.isActive
    assert run.notices_its_end
    run.stop(WAIT_S)


def test_an_error_at_the_start_is_raised_by_start_and_frees_the_lease(bench):
    with pytest.raises(StoreUnreachable):
        bench.run(beginnings=[StoreUnreachable("timeout")])
    assert [type(ending.error) for ending in bench.closed] == [StoreUnreachable]
    assert bench.store.reopened().log.state().lease_expires_ms == 0


def test_a_stop_during_the_pause_starts_one_more_incarnation_to_end_cleanly(bench, monkeypatch):
    monkeypatch.setattr(supervisor_module, "PAUSE_S", 10_000.0)
    run = bench.run(failed())
    eventually(lambda: bench.endings == [], "the first failure")
    assert run.stop(WAIT_S)
    assert run.exception() is None
    assert len(bench.incarnations) == 2
    assert bench.incarnations[1].asked.is_set()


def test_a_stop_is_requested_from_the_running_incarnation(bench):
    run = bench.run("running")
    assert run.isActive
    assert run.awaitTermination(0.01) is False
    assert run.stop(WAIT_S)
    assert bench.incarnations[0].asked.is_set()


# -- the epoch to start from -----------------------------------------------------------------------------------------


def an_epoch(bench, **fields):
    bench.decide(1, cursors={"in": {"n": 0}})
    bench.decide(2, cursors={"in": {"n": 5}}, **fields)


def test_a_start_that_cannot_work_leaves_the_log_as_it_was(bench):
    """A new incarnation on epoch 1 would make it the newest of the lineage, permanently."""
    an_epoch(bench)
    before = bench.store.reopened().log.state()
    with pytest.raises(GraphInvalid, match="cursors of sources that the job no longer has: in"):
        bench.run(restore=1, source="renamed")
    after = bench.store.reopened().log.state()
    assert (after.latest, after.incarnation) == (before.latest, before.incarnation) == (2, 2)


def test_later_incarnations_continue_from_the_restored_epoch(bench):
    an_epoch(bench)
    run = bench.run(failed(), STOPPED, restore=1)
    assert ended(run) is None
    assert [each.base for each in bench.incarnations] == [1, 1]


def test_an_operator_that_is_gone_or_renamed_is_refused_by_name(bench):
    snapshot = OperatorSnapshot(operator="totals", key_groups=4, key_schema="k string", state_schema="total bigint")
    an_epoch(bench, operators={"totals": snapshot})
    with pytest.raises(GraphInvalid, match="totals"):
        bench.run()
    renamed = an_operator()
    renamed.name = "sums"
    with pytest.raises(GraphInvalid, match="totals"):
        bench.run(operator=renamed)
    assert ended(bench.run(STOPPED, operator=an_operator())) is None


def test_another_number_of_key_groups_is_refused(bench):
    snapshot = OperatorSnapshot(operator="totals", key_groups=4, key_schema="k string", state_schema="total bigint")
    an_epoch(bench, operators={"totals": snapshot})
    with pytest.raises(ConfigInvalid, match="4 key groups"):
        bench.run(operator=an_operator(), key_groups=8)


@pytest.mark.parametrize(
    ("key", "state", "fits"),
    [("k string", "total bigint, n bigint", True), ("k string", "total double", False),
     ("k int", "total bigint", False), ("k string", "n bigint, total bigint", False),
     ("k string", "total bigints", False), ("k string", "", False)],
)  # fmt: skip
def test_state_columns_may_be_added_at_the_end_and_nothing_else(bench, key, state, fits):
    snapshot = OperatorSnapshot(operator="totals", key_groups=4, key_schema="k string", state_schema="total bigint")
    an_epoch(bench, operators={"totals": snapshot})
    operator = an_operator()
    operator.key_ddl, operator.state_ddl = key, state
    error = ended(bench.run(STOPPED, operator=operator)) if fits else None
    if not fits:
        with pytest.raises(Exception, match="totals") as refused:
            bench.run(operator=operator)
        assert refused.value.condition == "CKPT_STATE_SCHEMA_CHANGED"
    assert error is None


def test_a_sink_with_unpublished_epochs_cannot_be_dropped(bench):
    an_epoch(bench, outputs={"out": StagedOutput(sink="out"), "other": StagedOutput(sink="other")})
    with pytest.raises(GraphInvalid, match="other") as refused:
        bench.run()
    assert "availableNow" in refused.value.hint


# -- savepoints ------------------------------------------------------------------------------------------------------


def in_background(call):
    found = []

    def caught():
        try:
            found.append(call())
        except Exception as error:  # noqa: BLE001 - for the test to look at
            found.append(error)

    thread = threading.Thread(target=caught, daemon=True)
    thread.start()
    return thread, found


def test_a_savepoint_is_requested_from_the_running_incarnation_and_returns_its_epoch(bench):
    bench.decide(1)
    run = bench.run("running")
    thread, found = in_background(lambda: run.savepoint("named"))
    eventually(lambda: bench.incarnations[0].savepoints == ["named"], "request")
    bench.store.reopened().log.add_savepoint("named", 1)
    thread.join(WAIT_S)
    assert found == [1]
    run.stop(WAIT_S)


def test_a_savepoint_is_requested_again_when_the_incarnation_ended_without_it(bench):
    bench.decide(1)
    dies = threading.Event()
    run = bench.run(lambda: failed() if dies.wait(WAIT_S) else None, "running")
    thread, found = in_background(lambda: run.savepoint("named"))
    eventually(lambda: bench.incarnations[0].savepoints == ["named"], "first request")
    dies.set()
    eventually(lambda: [each.savepoints for each in bench.incarnations] == [["named"]] * 2, "second request")
    bench.store.reopened().log.add_savepoint("named", 1)
    thread.join(WAIT_S)
    assert found == [1]
    run.stop(WAIT_S)
    assert ended(run) is None


@pytest.mark.parametrize("name", ["latest", "42", "../x", ""])
def test_a_name_that_would_be_taken_for_something_else_is_refused_at_once(bench, name):
    run = bench.run("running")
    with pytest.raises(ConfigInvalid):
        run.savepoint(name)
    assert bench.incarnations[0].savepoints == []
    run.stop(WAIT_S)


def test_a_savepoint_that_is_not_taken_in_time_raises_a_timeout(bench):
    run = bench.run("running")
    with pytest.raises(EpochTimedOut):
        run.savepoint("named", timeout=0.05)
    run.stop(WAIT_S)


def test_a_savepoint_that_is_taken_as_the_time_ends_is_returned(bench, monkeypatch):
    bench.decide(1)
    run, now_s = bench.run("running"), [0.0]

    def taken(name):
        bench.store.reopened().log.add_savepoint(name, 1)
        now_s[0] = 9.0

    monkeypatch.setattr(run_module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(bench.incarnations[0], "request_savepoint", taken)
    assert run.savepoint("named", timeout=5) == 1
    run.stop(WAIT_S)


def test_a_savepoint_is_waited_for_during_an_outage_of_the_store(bench, monkeypatch):
    bench.decide(1)
    run, state, missed = bench.run("running"), EpochLog.state, []

    def away(log):
        if bench.incarnations[0].savepoints and len(missed) < 3:
            missed.append(1)
            raise StoreUnreachable("timeout")
        return state(log)

    monkeypatch.setattr(EpochLog, "state", away)
    thread, found = in_background(lambda: run.savepoint("named"))
    eventually(lambda: len(missed) == 3, "the outage")
    bench.store.reopened().log.add_savepoint("named", 1)
    thread.join(WAIT_S)
    assert found == [1]
    run.stop(WAIT_S)


def test_a_savepoint_that_exists_is_refused(bench):
    bench.decide(1)
    bench.store.reopened().log.add_savepoint("named", 1)
    run = bench.run("running")
    with pytest.raises(ConfigInvalid, match="already"):
        run.savepoint("named")
    run.stop(WAIT_S)


def test_a_savepoint_that_a_stop_takes_with_its_final_epoch_is_returned(bench, monkeypatch):
    """The log gets it between the caller's last check and the end, so only a check after the end finds it."""
    bench.decide(1)

    def final():
        eventually(lambda: bench.incarnations[0].savepoints == ["named"], "request")
        bench.store.reopened().log.add_savepoint("named", 1)
        return STOPPED

    monkeypatch.setattr(run_module, "POLL_S", 3600.0)
    run = bench.run(final)
    assert run.savepoint("named") == 1


def test_a_run_that_ends_before_the_savepoint_raises_an_error(bench):
    run = bench.run("running")
    thread, found = in_background(lambda: run.savepoint("named"))
    eventually(lambda: bench.incarnations[0].savepoints == ["named"], "request")
    run.stop(WAIT_S)
    thread.join(WAIT_S)
    assert type(found[0]) is RunFailed
