"""A job whose sink has epochs that its store never committed is refused before its first commit."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from incarnation_kit import JOB, SCHEMA, FakeSink, FakeSource
from run_kit import STOPPED, Bench

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import PublishedEpoch, SinkContext
from spark_ckpt.endpoints.markers import refuse_newer_sinks
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import Manifest, StagedOutput
from spark_ckpt.epochs.sinks_ahead import beyond, refusal
from spark_ckpt.errors import PublishConflict, StoreInUse
from spark_ckpt.plan.graph import SinkBinding, SourceNode
from spark_ckpt.store.epoch_log import wall_ms
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.store import Store


class MarkedSink(FakeSink):
    """A sink whose marker names the given epoch."""

    def __init__(self, marker: PublishedEpoch | None = None) -> None:
        super().__init__()
        self.marker = marker

    def newest_published(self, context: SinkContext) -> PublishedEpoch | None:
        return self.marker


def marker(manifest: Manifest) -> PublishedEpoch:
    return PublishedEpoch(
        Epoch(manifest.epoch), Incarnation(manifest.incarnation), lambda name: name == manifest.attempt
    )


def bound(sink: FakeSink) -> list[SinkBinding]:
    return [SinkBinding("out", sink, SourceNode("in", FakeSource(), SCHEMA), SCHEMA)]  # type: ignore[arg-type, list-item]


def commit(folder: Path, attempt: str) -> Manifest:
    """Commit one more epoch, by its own driver."""
    log = Store.open(str(folder), JOB).log
    point = log.begin_incarnation(current_holder(JOB), takeover=True)
    manifest = Manifest(
        job=JOB, epoch=point.last + 1, incarnation=point.incarnation, attempt=attempt, created_ms=wall_ms(),
        base=point.manifest.epoch, previous=point.last,
        outputs={"out": StagedOutput(sink="out")},
    )  # fmt: skip
    log.commit_epoch(manifest)
    return manifest


def test_a_store_restored_from_an_older_backup_is_refused_before_a_commit(tmp_path: Path) -> None:
    commit(tmp_path / "store", "first")
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    sink = MarkedSink(marker(commit(tmp_path / "store", "second")))
    refuse_newer_sinks(bound(sink), Store.open(str(tmp_path / "store"), JOB))

    restored = Store.open(str(tmp_path / "backup"), JOB)
    before = restored.log.state()
    with pytest.raises(PublishConflict, match="it has epoch 2, the log's newest is 1") as caught:
        refuse_newer_sinks(bound(sink), restored)
    assert restored.log.state() == before
    assert f"accept-loss {restored.location.uri} --epoch 2 --incarnation 2" in caught.value.hint


def test_a_start_with_a_sink_ahead_of_the_store_begins_no_incarnation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = Bench(tmp_path, monkeypatch)
    bench.decide(1)
    newest = PublishedEpoch(Epoch(2), Incarnation(2), lambda name: False)
    bench.sink_type = lambda: MarkedSink(newest)
    before = bench.store.reopened().log.state()
    with pytest.raises(PublishConflict, match="it has epoch 2, the log's newest is 1"):
        bench.run(STOPPED)
    assert (bench.incarnations, bench.store.reopened().log.state()) == ([], before)


def test_the_error_names_all_sinks_ahead_of_the_store_and_one_command_accepts_them(tmp_path: Path) -> None:
    commit(tmp_path / "store", "first")
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    second, third = (marker(commit(tmp_path / "store", attempt)) for attempt in ("second", "third"))
    sinks = {"out": MarkedSink(second), "tap": MarkedSink(third), "new": MarkedSink()}
    bindings = [replace(each, name=name) for name, sink in sinks.items() for each in bound(sink)]
    restored = Store.open(str(tmp_path / "backup"), JOB)

    with pytest.raises(
        PublishConflict, match=r"sink out is ahead .* epoch 2, .*; sink tap is ahead .* epoch 3"
    ) as caught:
        refuse_newer_sinks(bindings, restored)
    assert f"accept-loss {restored.location.uri} --epoch 3 --incarnation 3" in caught.value.hint

    restored.log.release(1)
    restored.log.accept_loss(3, 3)
    refuse_newer_sinks(bindings, restored)


def test_another_epoch_with_the_same_number_is_not_taken_for_the_first(tmp_path: Path) -> None:
    commit(tmp_path / "store", "first")
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    sink = MarkedSink(marker(commit(tmp_path / "store", "second")))
    commit(tmp_path / "backup", "another")

    store = Store.open(str(tmp_path / "backup"), JOB)
    with pytest.raises(PublishConflict, match="another epoch 2 than the log") as caught:
        refuse_newer_sinks(bound(sink), store)
    # The log has these numbers, so that an accepted loss changes nothing: a topic would be refused for ever.
    store.log.release(2)
    assert list(store.log.accept_loss(2, 2)) == []
    assert "accept_new_sink='out'" in caught.value.hint


def test_only_a_sink_with_another_epoch_of_a_number_is_to_be_replaced() -> None:
    """The command is enough for the other one."""
    ahead = PublishedEpoch(Epoch(9), Incarnation(2), lambda name: False)
    other = PublishedEpoch(Epoch(1), Incarnation(1), lambda name: False)
    log_state = LogState(incarnation=1, last=1, by_id={1: SimpleNamespace(attempt="a")})  # type: ignore[dict-item]
    found = refusal({"ahead": ahead, "other": other}, log_state, "/store")
    assert found is not None
    assert "accept_new_sink='other'" in found.hint
    found = refusal({"ahead": ahead}, log_state, "/store")
    assert found is not None
    assert "accept_new_sink" not in found.hint


def test_the_command_names_a_store_with_a_blank_as_a_shell_takes_it() -> None:
    found = refusal({"out": PublishedEpoch(Epoch(9), Incarnation(2), lambda name: True)}, LogState(), "/a store")
    assert found is not None
    assert "accept-loss '/a store' --epoch 9 --incarnation 2" in found.hint


@pytest.mark.parametrize(
    ("epoch", "incarnation", "last", "newest", "ahead"),
    [(5, 2, 5, 2, False), (4, 2, 5, 3, False), (5, 0, 5, 1, False), (6, 2, 5, 2, True), (5, 3, 5, 2, True)],
)
def test_a_sink_is_ahead_by_epoch_incarnation_and_attempt(
    epoch: int, incarnation: int, last: int, newest: int, ahead: bool
) -> None:
    published = PublishedEpoch(Epoch(epoch), Incarnation(incarnation), lambda name: False)
    assert bool(beyond(published, replace(LogState(), last=last, incarnation=newest))) is ahead


def test_a_sink_that_has_nothing_or_cannot_say_is_not_ahead(tmp_path: Path) -> None:
    store = Store.open(str(tmp_path / "store"), JOB)
    refuse_newer_sinks(bound(MarkedSink()), store)
    refuse_newer_sinks(bound(FakeSink()), store)


def test_a_job_whose_loss_is_accepted_continues_after_its_sinks_epochs(tmp_path: Path) -> None:
    commit(tmp_path / "store", "first")
    shutil.copytree(tmp_path / "store", tmp_path / "backup")
    for attempt in ("second", "third"):
        newest = commit(tmp_path / "store", attempt)
    log = Store.open(str(tmp_path / "backup"), JOB).log
    log.release(1)

    assert list(log.accept_loss(newest.epoch, newest.incarnation)) == [2, 3]
    assert list(log.accept_loss(newest.epoch, newest.incarnation)) == []

    refuse_newer_sinks(bound(MarkedSink(marker(newest))), Store.open(str(tmp_path / "backup"), JOB))
    point = log.begin_incarnation(current_holder(JOB))
    assert (point.incarnation, point.manifest.epoch, point.last) == (4, 1, 3)
    assert point.dropped == {"out": [2, 3]}


def test_a_loss_is_not_accepted_under_a_running_driver(tmp_path: Path) -> None:
    commit(tmp_path / "store", "first")
    held = Store.open(str(tmp_path / "store"), JOB).log
    with pytest.raises(StoreInUse):
        held.accept_loss(5, 5)
