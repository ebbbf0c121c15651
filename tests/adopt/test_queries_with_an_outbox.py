"""A query becomes a job in the store of its outbox: its sinks' markers stay valid, and no other query can use the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from spark_ckpt_delta import DeltaSink

from spark_ckpt import failpoints
from spark_ckpt.endpoints.markers import refuse_newer_sinks, sinks_taken_back
from spark_ckpt.epochs.identity import Confirmed
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.restore import ADOPTING, LATEST
from spark_ckpt.errors import (
    AdoptionRefused,
    EpochDamaged,
    EpochNotFound,
    StoreForeign,
    StoreInUse,
    StoreUnreachable,
)
from spark_ckpt.failpoints import FailpointHit
from spark_ckpt.outbox.running import BoundSink, OutboxRun
from spark_ckpt.store import proposals
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.existing import existing_store, job_of
from spark_ckpt.store.holder import current_holder
from spark_ckpt.store.store import Store
from spark_rewind.adopt import adopting
from spark_rewind.adopt.adopting import Adoption, AdoptTarget, adopt, would_adopt
from spark_rewind.adopt.plan import AdoptRequest
from tests.adopt.adopt_kit import JOB, no_session
from tests.rewind.outbox_world import Rows, TopicSink, World


class Clicks(World):
    """The query reads a topic and keeps its sum outside of Spark, so it has no state for Spark."""

    def ends(self, number: int) -> list[str]:
        return [json.dumps({"clicks": {"0": number + 1}})]

    def write(self, folder: str, name: str, text: str) -> None:
        if folder.startswith("state"):
            (self.root / name).write_text(text)
        else:
            super().write(folder, name, text)

    def total(self, number: int) -> int:
        return json.loads((self.root / f"{number + 1}.delta").read_text()) if number >= 0 else 0

    def next(self) -> tuple[int, bool]:
        found = super().next()
        state = self.checkpoint / "state"
        if state.exists():
            (state / "0" / "0").rmdir()
            (state / "0").rmdir()
            state.rmdir()
        return found

    def adopt(self, how=adopt, **request: object) -> Adoption:
        target = AdoptTarget(self.store, JOB, {}, None)
        return how(AdoptRequest(str(self.checkpoint), ("clicks",), **request), target, no_session)

    def job(self) -> Store:
        return Store.open(self.store, JOB)

    def sinks(self) -> list[BoundSink]:
        return [BoundSink("gold", DeltaSink(str(self.gold))), BoundSink("alerts", TopicSink(self.topic))]


@pytest.fixture
def world(tmp_path: Path) -> Clicks:
    made = Clicks(tmp_path)
    made.run(5)
    return made


def test_the_job_continues_the_log_and_the_markers(world: Clicks) -> None:
    id_before = existing_store(world.store).id
    assert world.adopt().epoch == 6
    job = world.job()
    manifest = job.log.manifest(6)
    assert (job.id, job_of(job.location)) == (id_before, JOB)
    assert (manifest.job, manifest.base, manifest.reason, manifest.spark_batch) == (JOB, 5, "adopt", None)
    assert manifest.cursors["clicks"] == {"clicks": {"0": 5}}
    assert manifest.rows_before == {"gold": 5, "alerts": 5}
    refuse_newer_sinks(world.sinks(), job)
    assert sinks_taken_back(world.sinks(), job, LATEST, Confirmed()) == {}
    point = job.log.begin_incarnation(current_holder(JOB), LATEST)
    assert (point.manifest.epoch, point.last, point.unpublished, point.dropped) == (6, 6, {}, {})


def test_a_preview_changes_nothing(world: Clicks) -> None:
    before = world.log().state()
    assert world.adopt(would_adopt).epoch is None
    assert world.log().state() == before


@pytest.mark.parametrize("published", [True, False])
def test_the_outbox_answers_for_a_batch_that_was_not_committed(world: Clicks, published: bool) -> None:
    if published:
        world.run(1, dies=True)
    else:
        world.plan(5)
    found = world.adopt()
    assert found.taking.batch == (5 if published else 4)
    assert world.job().log.manifest(found.epoch).cursors["clicks"] == {"clicks": {"0": 6 if published else 5}}


def test_an_answer_that_the_outbox_contradicts_is_refused(world: Clicks) -> None:
    world.run(1, dies=True)
    with pytest.raises(AdoptionRefused, match="has batch 5"):
        world.adopt(unfinished="again")


def test_a_running_driver_is_refused(world: Clicks) -> None:
    running = OutboxRun(world.settings())
    world.plan(5)
    running.call(Rows(5, [(5, 15)]))
    with pytest.raises(StoreInUse):
        world.adopt()
    running.close()


def test_sinks_that_may_lack_rows_are_refused(world: Clicks) -> None:
    with failpoints.armed("ACKED:raise"), pytest.raises(FailpointHit):
        world.run(2)
    with pytest.raises(AdoptionRefused, match="not known to have"):
        world.adopt()


def test_another_querys_outbox_is_refused(world: Clicks) -> None:
    (world.checkpoint / "metadata").write_text(json.dumps({"id": "query-2"}))
    with pytest.raises(AdoptionRefused, match="query-1"):
        world.adopt()


def test_a_checkpoint_that_is_ahead_of_the_outbox_is_refused(world: Clicks) -> None:
    world.plan(5)
    world.write("commits", "5", 'v1\n{"nextBatchWatermarkMs":0}')
    with pytest.raises(AdoptionRefused, match="ends with batch 4"):
        world.adopt()


def test_the_query_does_not_start_again(world: Clicks) -> None:
    world.adopt()
    with pytest.raises(StoreForeign):
        world.run(1)


def test_a_job_does_not_continue_from_a_batch_of_the_query(world: Clicks) -> None:
    world.adopt()
    with pytest.raises(EpochDamaged, match="epoch 5"):
        world.job().log.begin_incarnation(current_holder(JOB), 5)


def test_an_adoption_that_fails_leaves_the_outbox_as_it_was(world: Clicks) -> None:
    with failpoints.armed("ADOPTING:raise"), pytest.raises(FailpointHit):
        world.adopt()
    world.run(2)
    assert world.log().state().latest == 7


@pytest.mark.parametrize("error", [StoreUnreachable("no answer"), KeyboardInterrupt()])
def test_an_epoch_in_the_log_makes_the_store_the_jobs_without_an_answer(
    world: Clicks, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    commit = EpochLog.commit_epoch

    def without_an_answer(log: EpochLog, manifest: Manifest, **more: object) -> None:
        commit(log, manifest, **more)
        raise error

    monkeypatch.setattr(EpochLog, "commit_epoch", without_an_answer)
    if isinstance(error, KeyboardInterrupt):
        with pytest.raises(KeyboardInterrupt):
            world.adopt()
    else:
        assert world.adopt().epoch == 6
    assert world.job().log.begin_incarnation(current_holder(JOB), LATEST).manifest.epoch == 6


def test_an_adoption_that_was_killed_runs_again_and_nothing_starts_before(
    world: Clicks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying, failpoints.armed("ADOPTING:raise"):
        dying.setattr(adopting, "suppress", _Dead)
        with pytest.raises(FailpointHit):
            world.adopt()
    with pytest.raises(EpochNotFound, match="adopted"):
        world.job().log.begin_incarnation(current_holder(JOB), LATEST, takeover=True)
    with pytest.raises(StoreForeign):
        world.run(1)
    with pytest.raises(StoreInUse):
        world.adopt()
    monkeypatch.setattr(proposals, "provably_dead", lambda holder: holder.name == ADOPTING)
    assert world.adopt().epoch == 6
    assert world.job().log.begin_incarnation(current_holder(JOB), LATEST).manifest.epoch == 6


def test_an_adoption_that_was_killed_with_its_epoch_in_the_log_is_done(
    world: Clicks, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as dying, pytest.raises(FailpointHit):
        dying.setattr(EpochLog, "release", _killed)
        world.adopt()
    monkeypatch.setattr(proposals, "provably_dead", lambda holder: holder.name == ADOPTING)
    with pytest.raises(StoreForeign, match="already, as epoch 6") as again:
        world.adopt()
    assert f"start job '{JOB}'" in again.value.hint
    assert world.job().log.begin_incarnation(current_holder(JOB), LATEST).manifest.epoch == 6


def test_a_driver_that_begins_during_an_adoption_keeps_its_store(
    world: Clicks, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify = Store.verify

    def meanwhile(store: Store, manifest: Manifest) -> None:
        verify(store, manifest)
        if manifest.reason == "adopt":
            world.log().begin_incarnation(current_holder("the query"), LATEST, takeover=True)

    with monkeypatch.context() as racing:
        racing.setattr(Store, "verify", meanwhile)
        with pytest.raises(AdoptionRefused, match="began while") as refused:
            world.adopt()
    assert "stop the query, then adopt" in refused.value.hint
    world.log().release(3)
    assert world.adopt().epoch == 6


def test_a_query_that_waited_for_rows_while_it_was_adopted_does_not_fence_the_job(world: Clicks) -> None:
    waiting = OutboxRun(world.settings())
    world.adopt()
    job = world.job().log
    job.begin_incarnation(current_holder(JOB), LATEST)
    world.plan(5)
    with pytest.raises(StoreForeign, match=f"belongs to job '{JOB}'"):
        waiting.call(Rows(5, [(5, 15)]))
    job.renew(job.own_incarnation, 1000)
    waiting.close()


def _killed(*arguments: object, **named: object) -> None:
    raise FailpointHit


class _Dead:
    """Replaces `suppress` as in a dead process: it raises at entry, so its body does not run."""

    def __init__(self, *kinds: object) -> None:
        pass

    def __enter__(self) -> None:
        raise FailpointHit

    def __exit__(self, *of: object) -> None:
        pass
