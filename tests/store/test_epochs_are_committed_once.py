"""P4: at most one incarnation can commit an epoch, and a committed epoch stays committed."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_world import ELSEWHERE, JOB, SINK, Clock, World

from spark_ckpt.coordination.standby import NO_OTHERS
from spark_ckpt.delta_files import commit_name
from spark_ckpt.epochs.records import Manifest, SinkAck
from spark_ckpt.errors import EpochNotFound, Fenced, RunFailed, StoreFull, StoreInUse, StoreUnreachable
from spark_ckpt.store import delta_log, log_table
from spark_ckpt.store.delta_log import CommitLost
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.holder import current_holder, provably_dead
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_table import LogTable


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "store")


def test_a_zombie_cannot_commit_after_a_takeover(world: World, tmp_path: Path) -> None:
    world.begin()
    world.epoch({"a": 1})
    world.snapshot({"a": 2})
    late = world.manifest()
    other = World(tmp_path / "store")
    other.expected, other.chains = world.expected, world.chains
    other.begin(takeover=True)
    with pytest.raises(Fenced):
        world.store.log.commit_epoch(late)
    assert [brief.epoch for brief in world.store.log.state().epochs] == [1]
    other.epoch({"a": 3})
    assert other.state_at(2) == {"a": 3}


def test_a_zombie_that_saw_nothing_loses_the_compare_and_swap(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin()
    world.snapshot({"a": 1})
    late = world.manifest()
    commit = delta_log.commit

    def raced(*args: object, **kwargs: object) -> int:
        # The zombie has read the log and checked the fence; only now another driver takes over.
        monkeypatch.setattr(delta_log, "commit", commit)
        World(tmp_path / "store").begin(takeover=True)
        return commit(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(delta_log, "commit", raced)
    with pytest.raises(Fenced):
        world.store.log.commit_epoch(late)
    with pytest.raises(EpochNotFound):
        World(tmp_path / "store").store.log.manifest(late.epoch)


class Proposed(AssertionError):
    """The same row was proposed on the same log again."""


@pytest.mark.parametrize("reads", [True, pytest.param(False, id="planted: the remembered log survives a lost race")])
def test_a_driver_commits_on_the_log_it_remembers_and_reads_it_after_a_lost_race(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    world.begin()
    world.epoch({"a": 1}, materialize=False)
    world.snapshot({"a": 2})
    manifest = world.manifest()
    EpochLog.add_savepoint(world.store.reopened().log, "before", 1)
    assert "before" not in world.store.log.known().savepoints, "the driver has not read it, or nothing is tested"
    if not reads:
        monkeypatch.setattr(world.store.log, "state", world.store.log.known)
        monkeypatch.setattr(LogTable, "refresh", lambda self: None)
        commit, tries = delta_log.commit, iter(range(3))

        def counted(*args: object, **kwargs: object) -> int:
            if next(tries, None) is None:
                raise Proposed
            return commit(*args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(delta_log, "commit", counted)
        with pytest.raises(Proposed):
            world.store.log.commit_epoch(manifest)
        return
    before = world.store.log.commit_epoch(manifest)
    assert (before.savepoints, world.store.log.known().latest) == ({"before": 1}, 2)
    assert world.store.reopened().log.state() == world.store.log.known()


@pytest.mark.parametrize("reads", [True, pytest.param(False, id="planted: a refusal on the remembered log counts")])
def test_a_refusal_counts_only_after_the_log_was_read(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reads: bool
) -> None:
    world.begin()
    reader = world.store.reopened().log
    world.epoch({"a": 1}, materialize=False)
    if not reads:
        monkeypatch.setattr(reader, "state", reader.known)
        with pytest.raises(EpochNotFound):
            reader.add_savepoint("new", 1)
        return
    reader.add_savepoint("new", 1)
    assert world.store.log.state().savepoints == {"new": 1}


def test_an_error_after_the_commit_landed_is_a_success(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.begin()
    world.snapshot({"a": 1})
    manifest = world.manifest()
    commit = delta_log.commit

    def landed_but_failed(*args: object, **kwargs: object) -> int:
        commit(*args, **kwargs)  # type: ignore[arg-type]
        raise CommitLost("connection reset")

    monkeypatch.setattr(delta_log, "commit", landed_but_failed)
    world.store.log.commit_epoch(manifest)
    monkeypatch.undo()
    assert world.store.log.state().latest == 1


def test_an_error_before_the_commit_is_unreachable_and_can_be_retried(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin()
    world.snapshot({"a": 1})
    manifest = world.manifest()

    def failed(*args: object, **kwargs: object) -> int:
        raise CommitLost("no route to host")

    monkeypatch.setattr(delta_log, "commit", failed)
    with pytest.raises(StoreUnreachable) as caught:
        world.store.log.commit_epoch(manifest)
    assert caught.value.retriable
    monkeypatch.undo()
    assert world.store.log.state().latest == 0
    world.store.log.commit_epoch(manifest)
    assert world.store.log.state().latest == 1


def test_committing_the_same_manifest_again_changes_nothing(world: World) -> None:
    world.begin()
    manifest = world.epoch({"a": 1})
    world.store.log.commit_epoch(manifest)
    assert [brief.epoch for brief in world.store.log.state().epochs] == [1]


def test_another_manifest_for_a_committed_epoch_is_refused(world: World) -> None:
    world.begin()
    world.epoch({"a": 1}, materialize=False)
    world.last, world.line.base = 0, 0
    with pytest.raises(RunFailed, match="does not extend"):
        world.commit(world.manifest())


def test_a_manifest_that_skips_the_newest_epoch_is_refused(world: World) -> None:
    world.begin()
    world.epoch({"a": 1})
    stale = world.manifest().model_copy(update={"base": 0})
    with pytest.raises(RunFailed):
        world.store.log.commit_epoch(stale)


def test_a_sleeper_whose_version_was_cleaned_up_does_not_count_its_commit(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin()
    world.snapshot({"a": 1})
    late = world.manifest()
    commit = delta_log.commit

    def woke_up_much_later(*args: object, **kwargs: object) -> int:
        monkeypatch.setattr(delta_log, "commit", commit)
        other = World(tmp_path / "store")
        other.begin(takeover=True)
        table = delta_log.open_table(other.store.location.child("epochs"))
        assert table is not None
        delta_log.checkpoint(table, other.store.location.child("epochs"))
        # The log's cleanup frees the very version number that the sleeper is about to create.
        (tmp_path / "store/epochs/_delta_log" / commit_name(table.version())).unlink()
        boot = time.clock_gettime
        monkeypatch.setattr(time, "clock_gettime", lambda clock: boot(clock) + 3600)
        return commit(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(delta_log, "commit", woke_up_much_later)
    with pytest.raises(Fenced):
        world.store.log.commit_epoch(late)


def _append(uri: str, name: str, count: int) -> None:
    log = EpochLog.open(Location(uri), JOB)
    assert log is not None
    for number in range(count):
        log.add_savepoint(f"{name}-{number}", 1)


def test_many_writers_lose_nothing_and_share_one_order(world: World, tmp_path: Path) -> None:
    world.begin()
    world.epoch({"a": 1})
    uri, names, each = str(tmp_path / "store/epochs"), ["p", "q", "r"], 12
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append, args=(uri, name, each)) for name in names]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(120)
        assert writer.exitcode == 0
    rows = world.store.log
    assert set(rows.state().savepoints) == {f"{name}-{number}" for name in names for number in range(each)}
    table = LogTable.open(world.store.location.child("epochs"), world.clock, create=False)
    assert table is not None
    table.refresh()
    assert len({row.seq for row in table.rows}) == len(table.rows)
    for name in names:
        order = [row.brief for row in table.rows if f'"{name}-' in row.brief]
        assert order == sorted(order, key=lambda brief: int(brief.split(f'"{name}-')[1].split('"')[0]))


def test_a_second_driver_is_refused_until_the_lease_expires(world: World, tmp_path: Path) -> None:
    world.begin(lease_ms=10_000)
    second = World(tmp_path / "store", world.clock)
    with pytest.raises(StoreInUse) as caught:
        second.begin(takeover=False)
    shown = str(caught.value)
    assert "another-host" in shown
    assert "2023-11-14 22:13:20 UTC" in shown, "since when"
    assert "2023-11-14 22:13:30 UTC" in shown, "until when"


def test_a_lease_that_ran_out_is_free(world: World, tmp_path: Path) -> None:
    world.begin(lease_ms=10_000)
    world.clock.ms += 10_000
    assert World(tmp_path / "store", world.clock).begin(takeover=False).incarnation == 2


@pytest.mark.parametrize("renewal", ["heartbeat", "epoch"])
def test_commits_and_renewals_extend_the_lease(world: World, tmp_path: Path, renewal: str) -> None:
    world.begin(lease_ms=10_000)
    world.clock.ms += 9_000
    if renewal == "heartbeat":
        world.store.log.renew(1, 10_000)
    else:
        world.epoch({"a": 1})
    world.clock.ms += 9_000
    with pytest.raises(StoreInUse):
        World(tmp_path / "store", world.clock).begin(takeover=False)


def test_a_clean_stop_frees_the_lease_at_once(world: World, tmp_path: Path) -> None:
    world.begin(lease_ms=10_000)
    world.store.log.release(1)
    assert World(tmp_path / "store", world.clock).begin(takeover=False).incarnation == 2


def test_a_renewal_after_the_release_does_not_acquire_the_lease_again(world: World, tmp_path: Path) -> None:
    """The run does not wait for the thread that renews: it may have read before the stop and write after it."""
    world.begin(lease_ms=10_000)
    world.store.log.release(1)
    token = world.store.log.state().lease_token
    world.store.log.renew(1, 10_000)
    assert world.store.log.state().lease_token == token
    assert World(tmp_path / "store", world.clock).begin(takeover=False).incarnation == 2


def test_a_commit_after_the_release_does_not_acquire_the_lease_again(world: World, tmp_path: Path) -> None:
    """A commit without an answer continues, and may land after the run has ended."""
    world.begin(lease_ms=10_000)
    world.epoch({"a": 1})
    world.snapshot({"a": 2})
    late = world.manifest()
    world.store.log.release(1)
    world.commit(late)
    assert world.store.log.state().is_free
    following = World(tmp_path / "store", world.clock).store.log.begin_incarnation(ELSEWHERE)
    assert (following.incarnation, following.manifest.epoch) == (2, late.epoch)


def test_a_late_release_does_not_free_the_successors_lease(world: World, tmp_path: Path) -> None:
    world.begin(lease_ms=10_000)
    World(tmp_path / "store", world.clock).begin(takeover=True)
    world.store.log.release(1)
    with pytest.raises(StoreInUse):
        World(tmp_path / "store", world.clock).begin(takeover=False)


def test_the_same_process_may_begin_its_next_incarnation(world: World) -> None:
    world.begin(takeover=False)
    assert world.begin(takeover=False).incarnation == 2


def test_a_fenced_incarnation_can_neither_renew_nor_record_acks(world: World, tmp_path: Path) -> None:
    world.begin()
    World(tmp_path / "store").begin(takeover=True)
    with pytest.raises(Fenced):
        world.store.log.renew(1, 1000)
    with pytest.raises(Fenced):
        world.store.log.record_acks(1, [SinkAck(sink="out", epoch=1)])


def test_a_holder_is_dead_only_with_proof() -> None:
    here = current_holder("me")
    assert not provably_dead(here)
    assert not provably_dead(ELSEWHERE)
    assert not provably_dead(here.model_copy(update={"boot_id": "", "pid": 1, "pid_start": 1})), "no /proc, no proof"
    if here.boot_id:
        assert provably_dead(here.model_copy(update={"pid_start": here.pid_start + 1})), "a reused process number"


def test_a_killed_driver_on_this_host_does_not_block_its_successor(world: World, tmp_path: Path) -> None:
    if not current_holder().boot_id:
        pytest.skip("this platform has no /proc")
    code = (
        "import os, signal, sys\n"
        "from spark_ckpt.store.store import Store\n"
        "from spark_ckpt.store.holder import current_holder\n"
        f"store = Store.open(sys.argv[1], {JOB!r})\n"
        "store.log.begin_incarnation(current_holder('first'), lease_ms=3_600_000)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    driver = subprocess.run([sys.executable, "-c", code, str(tmp_path / "store")], env=dict(os.environ), check=False)
    assert driver.returncode == -9
    world.store.log.begin_incarnation(current_holder("second"), lease_ms=1000)
    assert world.store.log.state().incarnation == 2


def test_two_candidates_for_one_free_lease_get_different_incarnations(tmp_path: Path) -> None:
    clock = Clock()
    first, second = World(tmp_path / "store", clock), World(tmp_path / "store", clock)
    first.begin(takeover=False)
    with pytest.raises(StoreInUse):
        second.begin(takeover=False)
    assert first.store.log.state() == second.store.log.state()


def test_a_start_that_verifies_files_loses_to_a_concurrent_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The check of files outside of the store reads the log, and with it the other driver's row."""
    world.begin()
    world.snapshot({"a": 1})
    manifest = world.manifest()
    elsewhere = {"root": world.store.staged(SINK).location.uri}
    world.commit(manifest.model_copy(update={"outputs": {SINK: manifest.outputs[SINK].model_copy(update=elsewhere)}}))
    world.store.log.release(1)
    first, second = world.store.reopened().log, world.store.reopened().log
    verify, began = first.verify, list[int]()

    def starts_meanwhile(manifest: Manifest) -> None:
        if not began:
            began.append(second.begin_incarnation(ELSEWHERE).incarnation)
        verify(manifest)

    monkeypatch.setattr(first, "verify", starts_meanwhile)
    with pytest.raises(StoreInUse):
        first.begin_incarnation(ELSEWHERE)
    assert began == [2]
    assert [each.incarnation for each in second.state().incarnations] == [1, 2]


@pytest.mark.parametrize("ended", [None, NO_OTHERS])
def test_an_incarnation_whose_acknowledgement_failed_is_the_runs_own(
    world: World, monkeypatch: pytest.MonkeyPatch, ended: int | None
) -> None:
    def full(*_: object) -> None:
        raise StoreFull("no space left on device")

    monkeypatch.setattr(log_table, "acknowledge", full)
    with pytest.raises(StoreFull):
        world.store.log.begin_incarnation(ELSEWHERE)
    monkeypatch.undo()
    assert world.store.log.state().incarnation == world.store.log.own_incarnation == 1
    assert world.store.log.begin_incarnation(ELSEWHERE, ended=ended).incarnation == 2
    assert world.store.log.own_incarnation == 2


def test_a_row_counts_although_the_fold_after_it_meets_an_outage(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.begin()
    world.epoch({"a": 1})
    world.store.log.add_savepoint("kept", 1)

    def away(*_: object) -> None:
        raise StoreUnreachable("no answer")

    monkeypatch.setattr(LogTable, "fold_if_due", away)
    world.store.log.drop_savepoint("kept")
    assert world.begin().incarnation == 2
    assert world.store.log.state().savepoints == {}


def test_a_savepoint_is_dropped_although_retention_takes_the_row_before_its_lost_answer_is_resolved(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.begin()
    world.epoch({"a": 1})
    world.store.log.add_savepoint("kept", 1)
    world.epoch({"a": 2})
    commit, other = delta_log.commit, world.store.reopened()

    def lost(*args: object, **kwargs: object) -> int:
        monkeypatch.setattr(delta_log, "commit", commit)
        commit(*args, **kwargs)  # type: ignore[arg-type]
        other.log.shorten(lambda log_state: {log_state.latest})
        raise CommitLost("no answer")

    monkeypatch.setattr(delta_log, "commit", lost)
    world.store.log.drop_savepoint("kept")
    assert delta_log.commit is commit, "its answer was lost"
    assert world.store.log.state().savepoints == {}
    with pytest.raises(EpochNotFound, match="no savepoint 'kept'"):
        world.store.log.drop_savepoint("kept")
