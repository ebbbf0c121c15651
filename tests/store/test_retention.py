"""Retention deletes only files that no kept epoch needs, wherever it stops; and it deletes all others."""

from __future__ import annotations

import shutil
import tempfile
import uuid
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from hypothesis import HealthCheck, Phase, assume, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from store_world import ELSEWHERE, JOB, OPERATOR, SINK, Clock, World

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import Manifest, Position, ReaderMoved
from spark_ckpt.epochs.retention import Retention, incarnation_of, kept_epochs
from spark_ckpt.errors import EpochNotFound, Fenced
from spark_ckpt.store import data_table, durable, epoch_log
from spark_ckpt.store import trim as trim_module
from spark_ckpt.store.epoch_log import EpochLog
from spark_ckpt.store.location import FileInfo, Location
from spark_ckpt.store.log_rows import manifest_of
from spark_ckpt.store.log_table import LogRow
from spark_ckpt.store.store import Store
from spark_ckpt.store.trim import HORIZON_MS, TRIM_EVERY_MS

NO_STEP = durable.on_step


def files_below(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.parquet")}


def test_the_last_k_epochs_stay(world: World) -> None:
    for number in range(1, 8):
        world.epoch({"a": number}, full=True, acked=number)
    report = world.store.retain(Retention(keep_last=3, slack=0))
    assert report.epochs == (1, 2, 3, 4)
    assert [brief.epoch for brief in world.store.log.state().epochs] == [5, 6, 7]
    with pytest.raises(EpochNotFound):
        world.store.log.manifest(4)


def test_files_of_dropped_epochs_are_deleted_and_those_of_kept_chains_stay(world: World, tmp_path: Path) -> None:
    world.epoch({"a": 1}, full=True, acked=1)
    world.epoch({"a": 2}, full=True, acked=2)
    for number in range(3, 6):
        world.epoch({"a": number}, acked=number)
    world.store.retain(Retention(keep_last=1, slack=0))
    assert files_below(tmp_path / "store/state" / OPERATOR) == {file.path for file in world.line.chain}
    assert len(world.line.chain) == 4
    assert len(files_below(tmp_path / "store/edges" / SINK)) == 1
    assert len(DeltaTable(world.store.staged(SINK).location.uri).file_uris()) == 1


def test_a_standbys_retention_drops_epochs_that_it_had_not_read(world: World) -> None:
    policy = Retention(keep_last=1, slack=0)
    world.epoch({"a": 1}, full=True, acked=1)
    standby = world.store.reopened()
    standby.retain(policy)  # the first retention lists the files of ended incarnations
    for number in range(2, 5):
        world.epoch({"a": number}, full=True, acked=number)
    assert standby.retain(policy).epochs == (1, 2, 3)


def test_a_sweep_parses_no_manifest_twice(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 8):
        world.epoch({"a": number}, full=True, acked=number)
    parsed: list[int] = []

    def counted(row: LogRow, body: str) -> Manifest:
        parsed.append(row.epoch)
        return manifest_of(row, body)

    monkeypatch.setattr(epoch_log, "manifest_of", counted)
    assert world.store.retain(Retention(keep_last=3, slack=0)).epochs == (1, 2, 3, 4)
    assert sorted(parsed) == list(range(1, 8))


def test_files_that_a_stopped_retention_has_left_go_with_the_next_one(world: World, tmp_path: Path) -> None:
    def over() -> None:
        raise Fenced("the lease's time is up")

    world.epoch({"a": 1}, full=True, acked=1)
    world.store.retain(Retention(keep_last=1, slack=0))
    for number in range(2, 5):
        world.epoch({"a": number}, full=True, acked=number)
    with pytest.raises(Fenced):
        world.store.retain(Retention(keep_last=1, slack=0), over)
    report = world.store.retain(Retention(keep_last=1, slack=0))
    assert report.epochs == (1, 2, 3)
    assert files_below(tmp_path / "store/state" / OPERATOR) == {file.path for file in world.line.chain}


def test_young_epochs_stay(world: World) -> None:
    world.epoch({"a": 1}, acked=1)
    world.clock.ms += 10_000
    for number in range(2, 5):
        world.epoch({"a": number}, acked=number)
    world.store.retain(Retention(keep_last=1, keep_age_ms=5_000, slack=0))
    assert [brief.epoch for brief in world.store.log.state().epochs] == [2, 3, 4]


def test_an_accepted_loss_is_recorded_forever(world: World) -> None:
    world.epoch({"a": 1}, acked=1)
    world.store.log.release(1)
    for newest, incarnation in ((3, 1), (5, 3)):
        world.store.log.accept_loss(newest, incarnation)
    lost = world.store.log.state().lost
    for number in range(2):
        world.begin()
        world.epoch({"a": number}, full=True, acked=6 + number)
    world.store.retain(Retention(keep_last=1, slack=0))

    assert sorted(lost) == [2, 3, 4, 5]
    assert World(world.store.location.uri).store.log.state().lost == lost


def test_savepoints_stay_until_they_are_dropped(world: World) -> None:
    for number in range(1, 6):
        world.epoch({"a": number}, full=True, acked=number)
    world.store.log.add_savepoint("keep", 2)
    world.store.retain(Retention(keep_last=1, slack=0))
    assert world.state_at(2) == {"a": 2}
    assert world.begin("keep").manifest.epoch == 2
    world.begin(5)
    world.store.log.drop_savepoint("keep")
    world.epoch({"b": 1}, acked=5)
    world.store.log.record_acks(world.line.incarnation, [])
    world.store.retain(Retention(keep_last=1, slack=0))
    assert 2 not in world.store.log.state().by_id


def test_unpublished_epochs_stay(world: World) -> None:
    for number in range(1, 6):
        world.epoch({"a": number}, full=True, acked=1 if number == 5 else 0)
    world.store.retain(Retention(keep_last=1, slack=0))
    point = world.begin()
    assert [manifest.epoch for manifest in point.unpublished[SINK]] == [2, 3, 4, 5]


def test_deferred_rows_stay_and_so_does_the_epoch_to_restore_if_they_are_damaged(world: World, tmp_path: Path) -> None:
    for number in range(1, 4):
        world.epoch({"a": number}, full=True, acked=number)
    deferred = [world.deferred_epoch({"a": number}) for number in range(4, 7)]
    world.store.retain(Retention(keep_last=1, slack=0))
    assert [brief.epoch for brief in world.store.log.state().epochs] == [3, 6]
    kept = files_below(tmp_path / "store/edges" / SINK)
    assert {file.path for file in deferred[-1].held[SINK].files} <= kept
    assert not {file.path for file in deferred[0].held[SINK].files} & kept


def test_slack_drops_several_epochs_at_once(world: World) -> None:
    for number in range(1, 6):
        world.epoch({"a": number}, full=True, acked=number)
    assert world.store.retain(Retention(keep_last=2, slack=3)).epochs == ()
    world.epoch({"a": 6}, full=True, acked=6)
    assert world.store.retain(Retention(keep_last=2, slack=3)).epochs == (1, 2, 3, 4)


def test_garbage_of_ended_incarnations_is_deleted_and_that_of_the_running_one_stays(
    world: World, tmp_path: Path
) -> None:
    world.epoch({"a": 1})
    world.snapshot({"a": 2})
    dead_state, dead_row = world.line.chain[-1].path, world.staged(["dead"]).path
    world.begin()
    world.snapshot({"a": 3})
    living_state, living_row = world.line.chain[-1].path, world.staged(["living"]).path
    world.store.retain(Retention())
    state, edges = files_below(tmp_path / "store/state" / OPERATOR), files_below(tmp_path / "store/edges" / SINK)
    assert dead_state not in state
    assert dead_row not in edges
    assert living_state in state
    assert living_row in edges
    assert world.state_at(1) == {"a": 1}


def test_a_zombies_retention_is_fenced(world: World, tmp_path: Path) -> None:
    for number in range(1, 4):
        world.epoch({"a": number}, full=True, acked=number)
    World(tmp_path / "store").store.log.begin_incarnation(ELSEWHERE, takeover=True)
    with pytest.raises(Fenced):
        world.store.retain(Retention(keep_last=1, slack=0))


def test_a_command_during_a_job_deletes_no_file_of_its_driver(world: World, tmp_path: Path) -> None:
    world.epoch({"a": 1})
    world.snapshot({"a": 2})
    world.store.reopened().retain(Retention(keep_last=1, slack=0))
    world.commit(world.manifest())
    assert world.state_at(2) == {"a": 2}


def test_spark_checkpoints_of_ended_incarnations_are_deleted(world: World, tmp_path: Path) -> None:
    world.epoch({"a": 1})
    world.store.run_folder(1).write_bytes("offsets/0", b"v1")
    world.begin()
    world.store.run_folder(2).write_bytes("offsets/0", b"v1")
    assert world.store.retain(Retention()).folders == 1
    assert [path.name for path in (tmp_path / "store/runs").iterdir()] == ["2"]


def test_foreign_files_are_not_deleted(world: World, tmp_path: Path) -> None:
    world.epoch({"a": 1})
    (tmp_path / "store/state" / OPERATOR / "notes.txt").write_text("mine")
    world.begin()
    world.store.retain(Retention(keep_last=1, slack=0))
    assert (tmp_path / "store/state" / OPERATOR / "notes.txt").exists()


@pytest.mark.parametrize(
    ("name", "prefix", "incarnation"),
    [
        ("i12-e3-g0-ab.parquet", "", 12),
        ("ckpt-out-i7-b1-t0-0-ab.parquet", "ckpt-out", 7),
        ("p=1/ckpt-out-i7-b1-t0-0-ab.parquet", "ckpt-out", 7),
        ("ckpt-a-i5-b-i7-b1-t0-0-ab.parquet", "ckpt-a-i5-b", 7),
        ("part-00000-ab.parquet", "", None),
        ("part-00000-ab.parquet", "ckpt-out", None),
    ],
)
def test_a_file_names_the_incarnation_that_wrote_it(name: str, prefix: str, incarnation: int | None) -> None:
    assert incarnation_of(name, prefix) == incarnation


def test_logs_are_trimmed_and_savepoints_keep_their_version(world: World, tmp_path: Path) -> None:
    world.clock.ms = 4_000_000_000_000 - HORIZON_MS
    for number in range(1, 71):
        world.epoch({"a": number}, full=True, acked=number)
        if number == 5:
            world.store.log.add_savepoint("old", 5)
    world.clock.ms += 2 * HORIZON_MS
    table = world.store.state(OPERATOR)
    world.store.retain(Retention(keep_last=3, slack=0))
    commits = table.table.commit_versions()
    assert table.version(5) in commits
    assert len(commits) < 40
    old = DeltaTable(table.location.uri, version=table.version(5))
    assert [uri.rsplit("/", 1)[-1] for uri in old.file_uris()] == [file.path for file in world.chains[5]]
    assert len(DeltaTable(table.location.uri).file_uris()) == 1
    assert world.epoch({"a": 999}).epoch == 71
    assert len(list((tmp_path / "store/epochs/_delta_log").glob("*.json"))) < 40
    reopened = World(tmp_path / "store", world.clock)
    assert reopened.state_at(71) == {"a": 999}


@pytest.mark.parametrize("there", [True, False])
def test_a_commit_of_a_state_table_that_cannot_be_read_ends_no_retention(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Damaged, or deleted by another process after the listing. The job needs no commit of the table."""
    for number in range(1, 9):
        world.epoch({"a": number}, full=True, acked=number)
    log = tmp_path / f"store/state/{OPERATOR}/_delta_log"
    world.store.state(OPERATOR).table.refreshed()  # the table itself is read without old commits, as after a checkpoint
    listed = data_table.log_files(world.store.state(OPERATOR).location)
    monkeypatch.setattr(data_table, "log_files", lambda location: listed)
    commit = sorted(log.glob("*.json"))[4]  # the first one that a bisection reads
    commit.write_bytes(b"\0garbage") if there else commit.unlink()
    report = world.store.retain(Retention(keep_last=3, slack=0))
    assert report.epochs == (1, 2, 3, 4, 5)


def test_the_versions_of_kept_epochs_cost_a_read_per_commit(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object store answers one request after the other, and retention asks at each trim."""
    for number in range(1, 9):
        world.epoch({"a": number}, full=True, acked=number)
    table, calls = world.store.state(OPERATOR), list[object]()
    for name in ("log_files", "TableCommit"):
        real = getattr(data_table, name)
        monkeypatch.setattr(data_table, name, lambda *given, real=real: calls.append(given[0]) or real(*given))
    versions = table.versions(world.store.log.manifests())
    read = calls.copy()
    assert versions == [table.version(number) for number in range(1, 9)]
    assert len(read) == len(set(read)) <= 10


def test_a_log_that_another_process_trims_is_left_to_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commit was deleted after the listing."""
    world.epoch({"a": 1}, full=True, acked=1)
    location, before = world.store.state(OPERATOR).location, trim_module.listed_log

    def overtaken(location: Location) -> dict[tuple[int, str], FileInfo]:
        listed = before(location)
        location.delete(info.path for info in listed.values())
        return listed

    monkeypatch.setattr(trim_module, "listed_log", overtaken)
    assert trim_module.trim(location, [], world.clock.ms) == 0


def test_logs_are_trimmed_once_a_minute(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed = list[int]()
    monkeypatch.setattr(EpochLog, "trim", lambda log, now_ms: trimmed.append(now_ms))
    for number in range(1, 9):
        world.epoch({"a": number}, full=True, acked=number)
        world.clock.ms += TRIM_EVERY_MS // 4
        assert world.store.retain(Retention(keep_last=1, slack=0)).epochs or number == 1
    assert [now - trimmed[0] for now in trimmed] == [0, TRIM_EVERY_MS]


CHANGES = st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 9), min_size=1)


class RetentionMachine(RuleBasedStateMachine):
    """Any history of epochs, restores, savepoints, acknowledgements, retention and crashes during retention."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.mkdtemp()
        self.world = World(Path(self.folder) / "store", Clock())
        self.world.begin()
        self.published = self.lag = 0
        self.bases = dict[int, int]()

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @rule(
        changes=CHANGES, full=st.sampled_from([False, False, True]), materialize=st.booleans(), count=st.integers(1, 4)
    )
    def decide(self, changes: dict[str, int | None], full: bool, materialize: bool, count: int) -> None:
        for number in range(count):
            self.world.epoch(changes, full=full and number == 0, materialize=materialize, acked=self.published)
            self.published = max(self.published, self.world.last - self.lag)
            self.bases |= {brief.epoch: brief.base for brief in self.world.store.log.state().epochs}

    @rule()
    def leave_garbage(self) -> None:
        self.world.store.state(OPERATOR).location.write_table(
            f"i{self.world.line.incarnation}-e0-g0-{uuid.uuid4().hex}.parquet", pa.table({"k": ["x"]})
        )

    @rule(lag=st.sampled_from([0, 0, 0, 3]))
    def publish_late(self, lag: int) -> None:
        self.lag = lag

    @rule(pick=st.integers(0, 20), takeover=st.booleans())
    def restore(self, pick: int, takeover: bool) -> None:
        kept = [brief.epoch for brief in self.world.store.log.state().epochs]
        if takeover:
            self.world.store = self.world.store.reopened()
        point = self.world.begin(kept[pick % len(kept)] if kept and pick % 2 else "latest")
        if pick % 3:
            self.world.store.materialize(point.manifest)

    @rule(pick=st.integers(0, 20))
    def name(self, pick: int) -> None:
        kept = [brief.epoch for brief in self.world.store.log.state().epochs]
        assume(kept)
        self.world.store.log.add_savepoint(f"s{uuid.uuid4().hex[:6]}", kept[pick % len(kept)])

    @precondition(lambda self: self.world.store.log.state().savepoints)
    @rule()
    def unname(self) -> None:
        self.world.store.log.drop_savepoint(next(iter(self.world.store.log.state().savepoints)))

    @rule(minutes=st.sampled_from([1, 40, 90]))
    def wait(self, minutes: int) -> None:
        self.world.clock.ms += minutes * 60_000

    @rule(keep=st.integers(1, 4), crash_before=st.none() | st.integers(0, 30), hours=st.sampled_from([0, 2]))
    def retain(self, keep: int, crash_before: int | None, hours: int) -> None:
        policy = Retention(keep_last=keep, slack=0, thinned_ms=hours * 3_600_000)
        log_state = self.world.store.log.state()
        must_stay = kept_epochs(log_state, policy, self.world.clock())
        steps = [0]

        def crash(what: str, path: str) -> None:
            steps[0] += 1
            if steps[0] - 1 == crash_before:
                raise KeyboardInterrupt

        durable.on_step = crash
        try:
            self.world.store.retain(policy)
        except KeyboardInterrupt:
            self.world.store = self.world.store.reopened()
            self.world.begin()
        finally:
            durable.on_step = NO_STEP
        assert must_stay <= self.world.store.log.state().by_id.keys()

    @invariant()
    def every_kept_epoch_is_whole_and_right(self) -> None:
        log = self.world.store.log
        for brief in log.state().epochs:
            self.world.store.verify(log.manifest(brief.epoch))
            assert self.world.state_at(brief.epoch) == self.world.expected[brief.epoch]

    @invariant()
    def every_kept_epoch_knows_its_kept_ancestors(self) -> None:
        log_state = self.world.store.log.state()
        for epoch in log_state.by_id:
            expected, above = [epoch], self.bases[epoch]
            while above:
                expected += [above] if above in log_state.by_id else []
                above = self.bases[above]
            assert [brief.epoch for brief in log_state.ancestry(epoch)] == expected


RetentionMachine.TestCase.settings = settings(
    max_examples=8,
    stateful_step_count=15,
    deadline=None,
    database=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],
)
TestNoKeptEpochLosesAFile = RetentionMachine.TestCase


def test_the_epoch_before_an_unpublished_one_stays_for_a_restore(world: World) -> None:
    """Unpublished rows that are damaged can be produced again only from there."""
    for number in range(1, 6):
        world.epoch({"a": number}, full=True, acked=number - 1)
    world.store.retain(Retention(keep_last=1, slack=0))
    assert [brief.epoch for brief in world.store.log.state().epochs] == [4, 5]
    assert world.begin(4).manifest.epoch == 4
    assert world.state_at(4) == {"a": 4}


def test_the_log_keeps_the_incarnations_of_kept_epochs(world: World) -> None:
    """The log keeps the base and the end of each such incarnation; those of dropped epochs are deleted with them."""
    world.epoch({"a": 0}, full=True, acked=1)
    world.store.log.release(1, "stopped")
    for why in ("[CKPT_QUERY_FAILED] executor lost", "stopped", ""):
        point = world.begin()
        world.epoch({"a": point.incarnation}, full=True, acked=world.last + 1)
        if why:
            world.store.log.release(point.incarnation, why)
    world.store.retain(Retention(keep_last=3, slack=0))
    incarnations = world.store.reopened().log.state().incarnations

    assert [(each.incarnation, each.why) for each in incarnations] == [
        (2, "[CKPT_QUERY_FAILED] executor lost"), (3, "stopped"), (4, ""),
    ]  # fmt: skip
    assert world.store.reopened().log.state().latest == 4


def test_a_standby_whose_clock_is_days_ahead_drops_no_young_epoch(world: World) -> None:
    for number in range(1, 6):
        world.epoch({"a": number}, full=True, acked=number)
    ahead = Store.open(str(world.store.location.local), JOB, now_ms=lambda: world.clock.ms + 7 * 24 * HORIZON_MS)
    assert ahead.retain(Retention(keep_last=1, keep_age_ms=24 * HORIZON_MS, slack=0)).epochs == ()


def test_an_epoch_that_is_committed_while_a_standby_decides_what_to_keep_stays(world: World) -> None:
    """With readers the choice reads the newest manifest, and with it rows that came after the state it is based on."""
    for number in range(1, 4):
        world.epoch({"a": number}, acked=number - 1)
    moved = ReaderMoved(reader="r", place="elsewhere", edge=SINK, position=Position())
    world.store.log.move_reader(moved)
    standby, epochs = world.store.reopened(), iter([4])

    def commits_meanwhile(log_state: LogState) -> None:
        for number in epochs:
            world.epoch({"a": number}, acked=number - 1)

    report = standby.retain(Retention(keep_last=1, slack=0), fence=commits_meanwhile)
    assert [brief.epoch for brief in world.store.log.state().epochs] == [3, 4]
    assert report.epochs == (1, 2)
    world.epoch({"a": 5}, acked=4)


def test_a_standbys_retention_survives_a_fold_by_the_driver(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(1, 4):
        world.epoch({"a": number}, acked=number)
    standby, read_table = world.store.reopened(), Location.read_table

    def folded_first(self: Location, *args: object, **kwargs: object) -> object:
        monkeypatch.setattr(Location, "read_table", read_table)
        world.clock.ms += 2 * HORIZON_MS
        world.store.retain(Retention(keep_last=2, slack=0))
        return read_table(self, *args, **kwargs)  # type: ignore[arg-type]

    assert standby.log.manifest(1).epoch == 1, "its row is in memory, so that the rewrite is the first to read a file"
    monkeypatch.setattr(Location, "read_table", folded_first)
    assert standby.log.shorten(lambda log_state: {2, 3})[1] == []
    assert Location.read_table is read_table, "the rewrite read no file: the fold came too late"
    assert [brief.epoch for brief in world.store.log.state().epochs] == [2, 3]
