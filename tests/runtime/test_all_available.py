"""`processAllAvailable` returns when every sink has the rows that the sources had, and the batch after them; not before."""

from __future__ import annotations

import pytest
from incarnation_kit import JOB, eventually
from run_kit import STOPPED, Bench, failed

from spark_ckpt.driver import all_available
from spark_ckpt.driver.all_available import AllAvailable, Arrivals, Step
from spark_ckpt.epochs.records import EdgeCut, Manifest, StagedFileRecord
from spark_ckpt.errors import ConfigInvalid, RunFailed
from spark_ckpt.events.listener import EpochEvent, IncarnationEvent

END = {"in": {"n": 5}}
IN_FLIGHT = StagedFileRecord(path="a", size_bytes=1, rows=1, lane=0, batch=0, task=0, part=0)


def reached(cursors, ends):
    return all(cursors[name]["n"] >= end["n"] for name, end in ends.items())


class Case:
    """A run, as its events show it: incarnation 1 continues from epoch 7."""

    def __init__(self, sinks=("out",)):
        self.arrivals = Arrivals(sinks)
        self.waiting = AllAvailable(END, reached, self.arrivals)
        self.begin(1, 7)

    def begin(self, incarnation, base, read=0):
        self.incarnation, self.read = incarnation, read
        self.arrivals.onIncarnationStarted(IncarnationEvent(JOB, incarnation, base, ""))

    def commit(self, epoch, in_flight=0):
        edge = EdgeCut(edge="loop", row_schema="v long", consumed=0, produced=in_flight, files=(IN_FLIGHT,) * in_flight)
        manifest = Manifest(
            job=JOB, epoch=epoch, incarnation=self.incarnation, attempt=f"a{epoch}", created_ms=0,
            cursors={"in": {"n": self.read}}, edges={"loop": edge},
        )  # fmt: skip
        self.arrivals.onEpochCommitted(EpochEvent(JOB, epoch, self.incarnation, {}, manifest))

    def publish(self, epoch, sink="out"):
        self.arrivals.onEpochPublished(EpochEvent(JOB, epoch, self.incarnation, {"sink": sink}))

    def step(self):
        return self.waiting.next_step(self.incarnation, {"in": {"n": self.read}})


def test_no_epoch_is_requested_before_the_rows_are_read():
    case = Case()
    assert case.step() is Step.WAIT
    case.read = 5
    assert [case.step(), case.step()] == [Step.ASK, Step.WAIT]


def test_the_epoch_after_the_one_that_was_open_is_waited_for():
    case = Case()
    case.read = 5
    case.step()
    case.commit(8)  # its barrier may be in the batch of the last row
    case.publish(8)
    assert case.step() is Step.ASK
    case.commit(9)
    assert case.step() is Step.WAIT
    case.publish(9)
    assert case.step() is Step.DONE


def test_one_epoch_would_miss_the_batch_after_the_last_row(monkeypatch):
    monkeypatch.setattr(all_available, "EPOCHS", 1)
    case = Case()
    case.read = 5
    case.step()
    case.commit(8)
    case.publish(8)
    assert case.step() is Step.DONE


def test_every_sink_has_to_publish():
    case = Case(("out", "alerts"))
    case.read = 5
    case.step()
    for epoch in (8, 9):
        case.commit(epoch)
        case.step()
    case.publish(9)
    assert case.step() is Step.WAIT
    case.publish(8, "alerts")
    assert case.step() is Step.WAIT
    case.publish(9, "alerts")
    assert case.step() is Step.DONE


def test_epochs_that_come_while_a_slow_sink_publishes_are_not_waited_for():
    case = Case()
    case.read = 5
    case.step()
    for epoch in (8, 9):
        case.commit(epoch)
        case.step()
    case.commit(10)
    case.publish(9)
    assert case.step() is Step.DONE


def test_rows_in_a_loop_are_waited_for():
    case = Case()
    case.read = 5
    case.step()
    for epoch in (8, 9):
        case.commit(epoch, in_flight=1)
        case.publish(epoch)
        assert case.step() is Step.ASK
    case.commit(10)
    case.publish(10)
    assert case.step() is Step.DONE


def test_an_incarnation_that_follows_reads_again_and_takes_two_epochs_of_its_own():
    case = Case()
    case.read = 5
    case.step()
    case.commit(8)
    case.begin(2, 8, read=3)
    assert case.step() is Step.WAIT
    case.read = 5
    assert case.step() is Step.ASK
    case.commit(9)
    case.publish(9)
    assert case.step() is Step.ASK
    case.commit(10)
    case.publish(10)
    assert case.step() is Step.DONE


@pytest.fixture
def bench(tmp_path, monkeypatch):
    return Bench(tmp_path, monkeypatch)


def test_a_run_that_takes_too_long_raises_a_timeout(bench):
    run = bench.run("running")
    assert not run.processAllAvailable(0.05)
    # On a busy machine the time may be over before the first request.
    eventually(lambda: run.processAllAvailable(0.05) or bench.incarnations[0].asked_epochs, "a request")
    assert run.stop()


def test_a_run_that_ends_first_raises_its_error(bench):
    run = bench.run(failed(), failed(), max_failed_epochs=1)
    with pytest.raises(RunFailed, match="executor lost"):
        run.processAllAvailable()


def test_a_run_that_is_stopped_first_is_no_success(bench):
    run = bench.run(STOPPED)
    with pytest.raises(RunFailed, match="before it had published"):
        run.processAllAvailable()


def test_a_source_without_an_end_is_refused(bench, monkeypatch):
    run = bench.run("running")
    monkeypatch.setattr("incarnation_kit.FakeSource.endless", "it says no end", raising=False)
    with pytest.raises(ConfigInvalid, match="cannot be drained"):
        run.processAllAvailable()
    assert run.stop()
