"""Stages of one process: failures, drains and restarts, with fake runs."""

import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from spark_ckpt.api.stages import check_stages
from spark_ckpt.coordination.stage_process import Between
from spark_ckpt.driver import stages_run
from spark_ckpt.driver.stages_run import StagesRun, checked_starts
from spark_ckpt.epochs.partial_recovery import StageStatus, recovery_text
from spark_ckpt.epochs.records import Holder, Manifest
from spark_ckpt.errors import ConfigInvalid, DrainStopped, GraphInvalid, RunFailed, StoreForeign
from spark_ckpt.events.listener import IncarnationEvent
from spark_ckpt.plan.stages import StageGraph
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.location import Location
from spark_ckpt.store.stage_folder import Stages, read_stages, record_stages, stores_below
from spark_ckpt.store.store import Store


class FakeRun:
    """A run that ends on request."""

    def __init__(self, listeners):
        self.listeners = listeners
        self.has_ended = False
        self.error = self.stopped_by = None
        self.lastProgress = {"batch": 3}

    @property
    def isActive(self):
        return not self.has_ended

    def exception(self):
        return self.error

    def fail(self, error):
        self.error, self.has_ended = error, True

    def ask_to_stop(self):
        self.has_ended = True

    stop = ask_to_stop


@pytest.fixture
def stores(tmp_path: Path):
    return {name: Store.open(str(tmp_path / name), f"job.{name}") for name in ("first", "second", "third")}


class FakePage:
    """A page that records that it is served."""

    def __init__(self):
        self.is_served = None

    def start(self):
        self.is_served = True

    def close(self):
        self.is_served = False


def started(stores, available_now=False, companions=(), **instead):
    runs = {}

    def starting(name):
        def start(listeners):
            if name in instead:
                raise instead[name]
            runs[name] = FakeRun(listeners)
            return runs[name]

        return start

    return StagesRun.start("job", stores, {name: starting(name) for name in stores}, available_now, companions), runs


def test_the_other_stages_stop_when_one_fails_for_good(stores):
    run, runs = started(stores)
    runs["second"].fail(RunFailed("three times in a row"))
    with pytest.raises(RunFailed, match="three times in a row") as failed:
        run.awaitTermination(30)
    assert failed.value.context["stage"] == "second"
    assert run.exception() is failed.value
    assert all(each.has_ended for each in runs.values())


ADVICE = [
    ("go back with job.start(restore=4)", "go back with job.start_stages('second', restore=4)"),
    (
        "job.start(accept_new_sink='out') (--conf spark.ckpt.accept.new.sink=out)",
        "job.start_stages('second', accept_new_sink='out')",
    ),
    ("continue: job.start(); or wait", "continue: job.start_stages('second'); or wait"),
    ("and job.start(standby=True) waits for its end", "and Job(..., standby=True) waits for its end"),
]


@pytest.mark.parametrize(("hint", "wanted"), ADVICE)
def test_the_advice_of_a_stage_is_a_start_of_this_stage(stores, hint, wanted):
    # `job.start` refuses a program with stages.
    with pytest.raises(StoreForeign) as at_the_start:
        started(stores, second=StoreForeign("another job's", hint=hint))
    run, runs = started(stores)
    runs["second"].fail(RunFailed("three times in a row", hint=hint))
    with pytest.raises(RunFailed) as later:
        run.awaitTermination(30)
    for caught in (at_the_start, later):
        assert (caught.value.hint, caught.value.context["stage"]) == (wanted, "second")


def test_the_page_is_served_until_the_last_stage_of_a_drain_has_ended(stores):
    page = FakePage()
    run, runs = started(stores, available_now=True, companions=[page])
    for name, following in (("first", "second"), ("second", "third")):
        runs[name].has_ended = True
        while following not in run.stages:
            run.awaitTermination(0.05)
    assert page.is_served
    runs["third"].has_ended = True
    assert run.awaitTermination(30)
    assert page.is_served is False


def test_no_page_is_left_when_a_stage_does_not_start(stores):
    page = FakePage()
    with pytest.raises(StoreForeign):
        started(stores, companions=[page], second=StoreForeign("another job's"))
    assert page.is_served is False


def test_a_stop_ends_all_stages(stores):
    run, _ = started(stores)
    assert run.isActive
    assert not run.awaitTermination(0.01)
    assert run.lastProgress == {name: {"batch": 3} for name in stores}
    assert run.stop(30)
    assert not run.isActive
    assert all(each.has_ended for each in run.stages.values())


def test_a_drain_starts_a_stage_after_the_end_of_the_one_before(stores):
    run, runs = started(stores, available_now=True)
    assert list(runs) == ["first"]
    for name, following in (("first", "second"), ("second", "third")):
        runs[name].has_ended = True
        while following not in run.stages:
            run.awaitTermination(0.05)
    assert not run.awaitTermination(0.05)
    runs["third"].has_ended = True
    assert run.awaitTermination(30)


@pytest.mark.parametrize(("available_now", "again"), [(True, ["second", "third"]), (False, [])])
def test_each_later_stage_of_a_drain_is_checked_again_when_it_starts(stores, available_now, again):
    """A table may be another one by then."""
    checked = []

    def checking(name):
        def check():
            checked.append(name)
            return FakeRun

        return check

    starts = checked_starts({name: checking(name) for name in stores}, available_now)
    assert checked == list(stores)
    for start in starts.values():
        start([])
    assert checked[len(stores) :] == again


def test_no_stage_of_a_drain_starts_while_the_program_ends(stores, monkeypatch):
    """Python ends the runs at its exit: the drain would take the end of the first stage for its success."""
    exits = []
    monkeypatch.setattr(stages_run, "atexit", SimpleNamespace(register=exits.append, unregister=exits.remove))
    run, runs = started(stores, available_now=True)
    for each in exits[::-1]:
        each()
    runs["first"].has_ended = True
    assert run.awaitTermination(30)
    assert (list(runs), exits) == (["first"], [])


def test_a_drain_ends_at_the_stage_that_fails(stores):
    run, runs = started(stores, available_now=True)
    runs["first"].fail(RunFailed("no"))
    with pytest.raises(RunFailed):
        run.awaitTermination(30)
    assert list(runs) == ["first"]


def test_no_stage_of_a_drain_follows_one_that_fails_as_it_ends(stores):
    """The end is seen before the error is read."""
    run, runs = started(stores, available_now=True)
    first = runs["first"]

    class Failing(FakeRun):
        @property
        def has_ended(self):
            self.error = RunFailed("no")
            return True

    first.__class__ = Failing
    with pytest.raises(RunFailed):
        run.awaitTermination(30)
    assert list(runs) == ["first"]


def test_no_stage_of_a_drain_starts_after_a_signal_that_came_as_the_one_before_ended(stores):
    """A drain that was complete has no error, and the signal is not sent again to a program that watches its run."""
    run, runs = started(stores, available_now=True)
    runs["first"].stopped_by = "SIGTERM"
    runs["first"].has_ended = True
    with pytest.raises(DrainStopped, match="SIGTERM ended the program before stage 'second'"):
        run.awaitTermination(30)
    assert list(runs) == ["first"]


def test_a_stage_that_cannot_start_stops_those_before_it(stores):
    with pytest.raises(GraphInvalid):
        started(stores, second=GraphInvalid("no"))


def test_each_stage_stops_when_a_later_one_cannot_start_for_any_other_errors(stores):
    runs = {}

    class Failing(FakeRun):
        def stop(self):
            self.has_ended = True
            raise RunFailed("an executor is lost")

    def starting(name, kind):
        def start(listeners):
            runs[name] = kind(listeners)
            return runs[name]

        return start

    def refused(listeners):
        raise GraphInvalid("no")

    page = FakePage()
    starts = {"first": starting("first", Failing), "second": starting("second", FakeRun), "third": refused}
    with pytest.raises(GraphInvalid):
        StagesRun.start("job", stores, starts, False, [page])
    assert [each.has_ended for each in runs.values()] == [True, True]
    assert page.is_served is False


def test_a_stop_reaches_the_stage_of_a_drain_that_is_just_starting(stores):
    starts_now, resume, runs = threading.Event(), threading.Event(), {}

    def first(listeners):
        runs["first"] = FakeRun(listeners)
        return runs["first"]

    def second(listeners):
        starts_now.set()
        assert resume.wait(30)
        runs["second"] = FakeRun(listeners)
        return runs["second"]

    run = StagesRun.start("job", stores, {"first": first, "second": second}, True)
    runs["first"].has_ended = True
    assert starts_now.wait(30)
    assert not run.stop(0.01)
    resume.set()
    assert run.awaitTermination(30)
    assert runs["second"].has_ended


def test_a_program_may_read_its_stages_while_the_next_one_starts(stores):
    run, runs = started(stores, available_now=True)

    class EndsAsItIsLookedAt(FakeRun):
        @property
        def isActive(self):
            self.has_ended = True
            while "second" not in run.stages:
                time.sleep(0.01)
            return False

    runs["first"].__class__ = EndsAsItIsLookedAt
    assert run.isActive
    assert run.stop(30)


def logged(caplog):
    """Return the stages' log lines: a thread that another test has left may log, too."""
    return [each.getMessage() for each in caplog.records if each.name == stages_run.__name__]


def test_a_restart_logs_the_stages_that_kept_running(stores, caplog):
    _, runs = started(stores)
    stores["third"].reopened().log.begin_incarnation(current_holder("job.third"), "latest", 60_000)
    [listener] = runs["second"].listeners
    with caplog.at_level(logging.WARNING):
        for incarnation in (1, 2):
            listener.onIncarnationStarted(IncarnationEvent("job.second", incarnation, 0, ""))
    assert logged(caplog) == ["job=job restarted: second; went on: third; not running: first"]


def test_a_stage_whose_driver_died_is_restarted_by_its_next_start(stores, caplog):
    dead = Holder(name="job.second", host="another-host", pid=1)
    stores["second"].reopened().log.begin_incarnation(dead, "latest", 1)
    with caplog.at_level(logging.WARNING):
        started(stores)
    assert logged(caplog) == ["job=job restarted: second; not running: first, third"]


def test_a_first_start_and_a_start_after_a_stop_restart_nothing(stores, caplog):
    begun = stores["second"].reopened().log
    begun.release(begun.begin_incarnation(current_holder("job.second"), "latest", 60_000).incarnation)
    with caplog.at_level(logging.WARNING):
        started(stores)
    assert logged(caplog) == []


def test_the_log_line_omits_empty_parts():
    assert recovery_text({"a": StageStatus.RESTARTED}) == "restarted: a"


# -- the folder of a program --------------------------------------------------------------------------------------------


def test_the_folder_names_the_stores_of_its_stages(tmp_path):
    record_stages(Location(str(tmp_path)), Stages(job="fraud", stages={"main": (), "model": ("main",)}))
    assert stores_below(str(tmp_path), {}) == [str(tmp_path / "main"), str(tmp_path / "model")]
    assert stores_below(str(tmp_path / "main"), {}) == [str(tmp_path / "main")]


def test_a_folder_of_another_program_is_refused(tmp_path):
    root = Location(str(tmp_path))
    record_stages(root, Stages(job="fraud", stages={"main": ()}))
    with pytest.raises(StoreForeign, match="stages of job 'fraud'"):
        record_stages(root, Stages(job="sales", stages={"main": ()}))


def test_the_store_of_a_job_without_stages_is_refused(tmp_path):
    Store.open(str(tmp_path), "fraud")
    with pytest.raises(StoreForeign, match="which had no stages"):
        record_stages(Location(str(tmp_path)), Stages(job="fraud", stages={"main": ()}))


def test_a_stage_is_not_left_behind_while_its_store_has_an_epoch(tmp_path):
    root = Location(str(tmp_path / "program"))
    one, two = (Stages(job="fraud", stages=stages) for stages in ({"main": ()}, {"main": (), "model": ("main",)}))
    for known in (two, one, two):
        record_stages(root, known)  # without a store there is nothing to lose
    log = Store.open(root.child("model").uri, "fraud.model").log
    log.begin_incarnation(current_holder("fraud.model"))
    for known in (one, two):
        record_stages(root, known)  # nor without an epoch
    log.commit_epoch(Manifest(job="fraud.model", epoch=1, incarnation=1, attempt="a", created_ms=0))
    with pytest.raises(GraphInvalid, match="no longer has stage 'model'") as refused:
        record_stages(root, one)
    assert root.child("model").uri in refused.value.hint
    assert read_stages(root) == two
    (tmp_path / "program" / "model").rename(tmp_path / "model")
    record_stages(root, one)
    assert read_stages(root) == one


@pytest.mark.parametrize("text", ['{"job": "a", "stages": {"../b": []}}', '{"job": "a"}', "no json"])
def test_a_file_with_other_content_is_refused(tmp_path, text):
    (tmp_path / "stages.json").write_text(text)
    root, known = Location(str(tmp_path)), Stages(job="fraud", stages={"main": ()})
    with pytest.raises(ConfigInvalid, match=r"stages.json in .* cannot be read"):
        read_stages(root)
    # A start does not replace it, so its advice is to delete it first.
    with pytest.raises(ConfigInvalid) as refused:
        record_stages(root, known)
    assert "delete the file" in refused.value.hint
    (tmp_path / "stages.json").unlink()
    record_stages(root, known)
    assert read_stages(root) == known


# -- starts -------------------------------------------------------------------------------------------------------------


def graphs(**senders):
    return {name: StageGraph(name, (), (), {f"from-{each}": each for each in sent}) for name, sent in senders.items()}


def test_several_stages_refuse_a_restore_of_one_epoch_and_a_drained_loop():
    chain, loop = graphs(main=[], model=["main"]), graphs(main=["model"], model=["main"])
    with pytest.raises(ConfigInvalid, match="an epoch to restore is one of a single stage"):
        check_stages(chain, chain, Between.INDEPENDENT, True, False)
    check_stages(["main"], chain, Between.INDEPENDENT, True, False)
    with pytest.raises(GraphInvalid, match="stages main, model form a loop"):
        check_stages(loop, loop, Between.INDEPENDENT, False, True)
    check_stages(loop, loop, Between.INDEPENDENT, False, False)


def test_protocols_between_stages_refuse_drains_and_the_aligned_one_also_loops():
    chain, loop = graphs(main=[], model=["main"]), graphs(main=["model"], model=["main"])
    for between in (Between.UNALIGNED, Between.ALIGNED):
        check_stages(chain, chain, between, False, False)
        with pytest.raises(GraphInvalid, match="cannot drain"):
            check_stages(["main"], chain, between, False, True)
    check_stages(loop, loop, Between.UNALIGNED, False, False)
    with pytest.raises(GraphInvalid, match="each would wait for rows of the others"):
        check_stages(loop, loop, Between.ALIGNED, False, False)
