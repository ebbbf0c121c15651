"""Readers of state files that the key groups of a task share see the state of a dict, for every number of tasks."""

import random
from zlib import crc32

import pytest
from group_kit import NAMES, SCHEMA, put, values_in

from checkpoint_protocols.ids import Epoch
from spark_ckpt.coordination import full_snapshots
from spark_ckpt.coordination.cut import Cut, EpochBuilder, distinct
from spark_ckpt.coordination.full_snapshots import asking, connected, is_asked
from spark_ckpt.coordination.job_shape import JobShape, Limits, OperatorShape
from spark_ckpt.epochs.records import Manifest, OperatorSnapshot, StateFile, StateRange, chain_of
from spark_ckpt.errors import EpochDamaged
from spark_ckpt.store.location import Location
from spark_ckpt.store.state_table import newest_rows
from spark_ckpt.tasks.state import task_snapshot
from spark_ckpt.tasks.state.group_state import KeyGroupState
from spark_ckpt.tasks.state.levels import LevelCache, OpenLevels, range_ref
from spark_ckpt.tasks.state.shared_file import SharedFile
from spark_ckpt.tasks.state.task_snapshot import TaskSnapshot

EMPTY = Manifest(job="job", epoch=0, incarnation=0, attempt="initial", created_ms=0, reason="initial")
GROUPS = 6


class TaskFailed(Exception):
    """A task fails after some of its key groups."""


class Job:
    """One operator: its key groups in tasks, the driver's rules for its files, and a dict with the expected state."""

    def __init__(self, folder, after=2):
        self.folder, self.after = folder, after
        self.location = Location(str(folder / "state"))
        self.builder = EpochBuilder(EMPTY, {}, None)
        self.model, self.epoch, self.attempt, self.incarnation = {}, 0, 0, 0
        self.begin(tasks=1)

    def begin(self, tasks):
        """Begin another incarnation with this number of tasks."""
        self.tasks, self.incarnation = tasks, self.incarnation + 1
        cache = LevelCache(self.folder / f"cache{self.incarnation}", self.location, SCHEMA, opened=OpenLevels())
        restored = {
            number: KeyGroupState.restored(
                SCHEMA, cache, number, [range_ref(file, number) for file in self.builder.chains.get(("op", number), ())]
            )
            for number in range(GROUPS)
        }
        self.cache, self.held = cache, {number: group.encode() for number, group in restored.items()}

    def run(self, changes, wrong=None, asked=None, missed=()):
        """Run an epoch with these changes; None deletes a key. `wrong`: rows of a first attempt of each task, which fails.

        `asked`: the text of its marker, if the rules wrote it earlier. `missed`: tasks that do not get the marker.
        """
        self.epoch += 1
        asked = self.builder.due_for_full(self.after) if asked is None else asked
        for task in range(min(self.tasks, GROUPS)):
            if task in missed:
                continue
            if wrong is not None:
                with pytest.raises(TaskFailed):
                    self.run_task(task, wrong, asked, fails=True)
            self.held |= self.run_task(task, changes, asked)
        self.model = {key: value for key, value in {**self.model, **changes}.items() if value is not None}

    def run_task(self, task, changes, asked, fails=False):
        self.attempt += 1
        groups = frozenset(range(task, GROUPS, self.tasks))
        held = {}
        for number in sorted(groups):
            group = KeyGroupState.decode(self.held[number], SCHEMA, self.cache, number)
            own = {key: value for key, value in changes.items() if crc32(key.encode()) % GROUPS == number}
            put(
                group, {key: value or 0 for key, value in own.items()}, removed={k for k, v in own.items() if v is None}
            )
            attempt = (self.attempt, self.location.uri, self.epoch)
            snapshot = task_snapshot.snapshot_of(
                attempt, lambda: TaskSnapshot(self.location, self.incarnation, self.epoch, groups)
            )
            full = is_asked(asked, "op", number)
            capture = group.capture_full(self.epoch) if full else group.capture(self.epoch)
            if capture is not None:
                group.captured(*snapshot.write(number, capture))
            snapshot.passed(number, votes=True)
            held[number] = group.encode()
            if fails and len(held) == (len(groups) + 1) // 2:
                raise TaskFailed
        assert snapshot.is_whole
        self.builder.take_snapshot("op", snapshot.finish())
        task_snapshot.close(attempt)
        return held

    @property
    def files(self):
        return distinct(file for chain in self.builder.chains.values() for file in chain)

    def table(self):
        """Return the state as readers of the operator's table see it: the newest row of every key in its files."""
        whole = [self.location.read_committed(file, file.rows, epoch=file.epoch, operator="op") for file in self.files]
        snapshot = OperatorSnapshot(
            operator="op", key_groups=GROUPS, key_schema="k STRING", state_schema="v BIGINT, s STRING"
        )
        return {row["k"]: row["v"] for row in newest_rows(whole, snapshot).to_pylist()}

    def restored(self):
        """Return the state as an incarnation restores it from ranges."""
        self.begin(self.tasks)
        groups = [KeyGroupState.decode(held, SCHEMA, self.cache, number) for number, held in self.held.items()]
        return {key: value for group in groups for key, value in values_in(group, NAMES).items()}


def live(folder, seed=0, epochs=60):
    """Run epochs with deletions, failed attempts and changing numbers of tasks; readers see the dict after each."""
    rng, job = random.Random(seed), Job(folder)
    for epoch in range(epochs):
        if epoch % 12 == 11:
            job.begin(tasks=rng.choice([1, 2, 3, 4, 8]))
        names = rng.sample(NAMES, rng.randint(1, 3))
        changes = {name: None if rng.random() < 0.4 else rng.randint(1, 99) for name in names}
        job.run(changes, wrong=dict.fromkeys(names, 1000) if epoch % 5 == 0 else None)
        assert job.table() == job.model
        if epoch % 7 == 0:
            assert job.restored() == job.model
    return job


def test_a_deleted_key_returns_for_no_reader_with_any_number_of_tasks(tmp_path):
    job = live(tmp_path)
    assert all(file in chain_of(job.files, group) for file in job.files for group in file.key_groups)
    assert len(job.files) < 60, "full files have replaced others"


def test_a_task_writes_one_file_for_all_of_its_key_groups(tmp_path):
    job = Job(tmp_path, after=100)
    job.begin(tasks=2)
    for epoch in range(3):
        job.run(dict.fromkeys(NAMES, epoch + 1))
        assert sum(file.epoch == job.epoch for file in job.files) == 2
    assert len(list((tmp_path / "state").glob("*.parquet"))) == 6


def test_a_range_is_verified_by_its_own_digest_before_it_is_decoded(tmp_path):
    job = Job(tmp_path)
    job.run(dict.fromkeys(NAMES, 5))
    (file,) = job.files
    path = tmp_path / "state" / file.path
    whole = path.read_bytes()
    parts = [range_ref(file, group) for group in sorted(file.key_groups)]
    for at in random.Random(1).sample(range(len(whole)), 60):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        for part in parts:
            if part.offset <= at < part.offset + part.size_bytes:
                with pytest.raises(EpochDamaged):
                    job.location.read_range(part, part.rows, epoch=1)
            else:
                assert job.location.read_range(part, part.rows, epoch=1).num_rows == part.rows
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(EpochDamaged, match="were committed"):
        job.location.read_range(parts[-1], parts[-1].rows, epoch=1)


def each_key_group_alone(monkeypatch, folder):
    """Take full snapshots by key group: older files stay, with keys that the full one has left out."""

    def alone(files):
        return [(frozenset({group}), [each for each in files if group in each.key_groups]) for group in range(GROUPS)]

    monkeypatch.setattr(full_snapshots, "connected", alone)


def attempts_share_a_file(monkeypatch, folder):
    begun = {}

    def of_any_attempt(attempt, begin):
        new = begin()
        return begun.setdefault((*attempt[1:], new.groups), new)

    monkeypatch.setattr(task_snapshot, "snapshot_of", of_any_attempt)


def the_report_comes_before_the_file(monkeypatch, folder):
    finish = SharedFile.finish

    def reported(self):
        file = finish(self)
        (folder / "state" / file.path).unlink()  # it would follow, but the task's host fails
        return file

    monkeypatch.setattr(SharedFile, "finish", reported)


@pytest.mark.parametrize(
    ("plant", "verdict"),
    [
        (each_key_group_alone, AssertionError),
        (attempts_share_a_file, AssertionError),
        (the_report_comes_before_the_file, EpochDamaged),
    ],
)
def test_a_planted_bug_in_sharing_files_is_found(tmp_path, monkeypatch, plant, verdict):
    plant(monkeypatch, tmp_path)
    with pytest.raises(verdict):
        live(tmp_path)


def file(number, *groups, kind="changes", rows=1):
    ranges = tuple(StateRange(group, rows, 4, 1) for group in groups)
    return StateFile(path=f"f{number}", size_bytes=9, epoch=number, incarnation=1, kind=kind, ranges=ranges)


def test_key_groups_that_share_files_through_others_are_connected():
    found = connected([file(1, 0, 2), file(2, 1, 3), file(3, 4), file(4, 2, 4), file(5, 0)])
    assert {groups: {each.epoch for each in files} for groups, files in found} == {
        frozenset({0, 2, 4}): {1, 3, 4, 5},
        frozenset({1, 3}): {2},
    }


def test_a_large_state_with_few_changes_is_not_rewritten_soon_but_its_chain_stays_bounded():
    files, lengths = [file(1, 0, 2, kind="full", rows=1000)], []
    for epoch in range(2, 200):
        if full_snapshots.due(files, 8, chained=2 * len(files)):
            lengths.append(len(files))
            files = []
        files.append(file(epoch, 0, 2, kind="changes" if files else "full", rows=1 if files else 1000))
    assert lengths
    assert set(lengths) == {64}


def test_tasks_take_turns_with_full_snapshots():
    epochs = []
    for task in range(4):
        files = []
        while not full_snapshots.due(files, 8, chained=2 * len(files)):
            files.append(file(len(files) + 1, task, task + 4))
        epochs.append(len(files))
    assert epochs == [9, 10, 11, 12]


def test_the_text_of_a_marker_has_exactly_the_groups_of_each_operator():
    rng = random.Random(0)
    for _ in range(50):
        wanted = {name: frozenset(rng.sample(range(40), rng.randint(0, 9))) for name in ("op", "two")}
        text = asking(wanted)
        found = {name: {group for group in range(50) if is_asked(text, name, group)} for name in ("op", "two", "none")}
        assert found == {**wanted, "none": set()}


def test_a_marker_for_twenty_thousand_key_groups_is_small():
    assert len(asking({"op": frozenset(range(20_000))})) < 6_000


@pytest.mark.parametrize(
    "is_early", [False, pytest.param(True, id="planted: asked while another barrier is on its way")]
)
def test_a_deleted_key_stays_deleted_although_a_barrier_has_connected_its_group_with_others(tmp_path, is_early):
    job = Job(tmp_path)
    job.begin(tasks=GROUPS)
    early, epoch = "", 0
    while not early:  # tasks take turns
        job.run({NAMES[0]: epoch})
        early, epoch = job.builder.due_for_full(job.after), epoch + 1
    job.begin(tasks=1)
    job.run(dict.fromkeys(NAMES, 7), asked="")
    job.run({NAMES[0]: None}, asked=early if is_early else None)
    assert (NAMES[0] in job.table()) == is_early


@pytest.mark.parametrize("is_asked_again", [True, pytest.param(False, id="planted: they are not asked again")])
def test_a_deleted_key_stays_deleted_although_tasks_missed_the_barrier_of_full_files(tmp_path, is_asked_again):
    job, home = Job(tmp_path), crc32(NAMES[0].encode()) % GROUPS
    while not job.builder.due_for_full(job.after):
        job.run(dict.fromkeys(NAMES, 7))  # one task: its files connect all key groups
    job.begin(tasks=GROUPS)
    job.run({NAMES[0]: None}, missed={*range(GROUPS)} - {home})  # its epoch is aborted, its full file stays
    job.run({}, asked=None if is_asked_again else "")
    assert (NAMES[0] in job.table()) != is_asked_again
    assert job.restored() == job.model


def test_no_full_snapshot_is_requested_while_a_barrier_is_on_its_way():
    """It may bring files that connect other key groups."""
    operator = OperatorShape("op", "k string", "v bigint", GROUPS)
    cut = Cut(JobShape("job", ("in",), {}, (operator,), Limits(full_after_files=2)), EMPTY, {})
    cut.opening_marker()
    cut.builder.chains["op", 0] = tuple(file(number, 0) for number in range(1, 5))
    assert cut.barrier(Epoch(5)).marker.full == ""
    assert cut.ended_by(2, Epoch(5)) == 5
    assert cut.barrier(Epoch(6)).marker.full == '{"op":"1"}'
