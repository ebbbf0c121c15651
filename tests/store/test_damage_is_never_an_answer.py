"""Every flipped bit and every truncation of a stored file gives a typed error or the right answer."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from store_world import ELSEWHERE, JOB, OPERATOR, World, flip_in_body, rewrite

from spark_ckpt.connector import Cursor, Folder
from spark_ckpt.driver.query.inputs import check_inputs
from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import CkptError, EpochDamaged, FormatUnknown
from spark_ckpt.store import log_table
from spark_ckpt.store.location import Location
from spark_ckpt.store.log_table import FOLD_AFTER, LogTable, NewRow
from spark_ckpt.store.store import Store

if TYPE_CHECKING:
    from spark_ckpt.driver.job_plan import JobPlan


def damaged(content: bytes, every: int) -> Iterator[tuple[str, bytes]]:
    """All truncations and all single bit flips, or each `every`-th of them (with a stride that visits all bits)."""
    for size in range(0, len(content), every):
        yield f"cut to {size}", content[:size]
    for bit in range(0, len(content) * 8, every):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield f"bit {bit}", bytes(flipped)


def test_a_damaged_state_file_is_reported_or_reads_right(tmp_path: Path) -> None:
    location = Location(str(tmp_path))
    table = pa.table({"k": ["a", "b", None], "v": pa.array([1, 2, 3], pa.int64()), "d": [0.5, 1.5, None]})
    location.write_table("f.parquet", table)
    path = tmp_path / "f.parquet"
    seen = {"reported": 0, "right": 0}
    for what, content in damaged(path.read_bytes(), every=3):
        path.write_bytes(content)
        try:
            read = location.read_table("f.parquet")
        except EpochDamaged:
            seen["reported"] += 1
        else:
            assert read.equals(table), what
            seen["right"] += 1
    assert seen["reported"] > 2 * seen["right"] > 0, seen


def test_without_checksums_the_same_damage_gives_wrong_answers(tmp_path: Path) -> None:
    """A planted bug: this check must find plain Parquet, as any other writer would write it."""
    table = pa.table({"k": ["a", "b", None], "v": pa.array([1, 2, 3], pa.int64()), "d": [0.5, 1.5, None]})
    path = tmp_path / "f.parquet"
    pq.write_table(table, path)
    wrong = 0
    for _, content in damaged(path.read_bytes(), every=3):
        path.write_bytes(content)
        try:
            wrong += not Location(str(tmp_path)).read_table("f.parquet").equals(table)
        except EpochDamaged:
            continue
    assert wrong > 0


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, dict[str, int]]]:
    root = tmp_path_factory.mktemp("written")
    world = World(root / "store")
    world.begin()
    world.epoch({"a": 1})
    world.epoch({"a": 2})
    world.store.log.release(1)
    return root / "store", world.expected


def recovered(root: Path) -> tuple[int, dict[str, int]]:
    store = Store.open(str(root), JOB)
    point = store.log.begin_incarnation(ELSEWHERE)
    state = store.state(OPERATOR).read(point.manifest.epoch)
    return point.manifest.epoch, dict(zip(state.column("k").to_pylist(), state.column("v").to_pylist(), strict=True))


# The other one in the gate: test_damaged_logs_say_so.py damages every file of a log.
@pytest.mark.parametrize(
    "kind", ["epoch", *(pytest.param(one, marks=pytest.mark.long) for one in ("created", "incarnation"))]
)
def test_a_damaged_log_file_is_reported_or_changes_nothing(
    written: tuple[Path, dict[int, dict[str, int]]], tmp_path: Path, kind: str
) -> None:
    source, expected = written
    files = sorted((source / "epochs").glob("*.parquet"))
    chosen = next(path for path in reversed(files) if pq.read_table(path).column("kind").to_pylist() == [kind])
    content = chosen.read_bytes()
    reported = []
    for what, damage in damaged(content, every=len(content) // 8 | 1):
        root = tmp_path / "copy"
        shutil.copytree(source, root)
        (root / "epochs" / chosen.name).write_bytes(damage)
        try:
            epoch, state = recovered(root)
        except CkptError:
            reported.append(what)
        else:
            assert what.startswith("bit"), f"{what} was not found"
            assert epoch in (1, 2), what
            assert state == expected[epoch], what
        shutil.rmtree(root)
    assert sum(what.startswith("bit") for what in reported) > 3, reported


def test_a_damaged_manifest_is_refused_and_the_epoch_before_it_is_advised(
    written: tuple[Path, dict[int, dict[str, int]]], tmp_path: Path
) -> None:
    source, _ = written
    root = tmp_path / "copy"
    shutil.copytree(source, root)
    rewrite(
        root, lambda row: row | {"body": row["body"].replace('"epoch":2', '"epoch":3')} if row["epoch"] == 2 else row
    )
    store = Store.open(str(root), JOB)
    with pytest.raises(EpochDamaged, match="digest"):
        store.log.manifest(2)
    with pytest.raises(EpochDamaged) as caught:
        recovered(root)
    assert caught.value.context["restore"] == 1


@pytest.mark.parametrize(
    "field", ["format", "seq", "kind", "epoch", "incarnation", "attempt", "time_ms", "brief", "digest", "seal"]
)
def test_every_changed_column_of_a_row_breaks_its_seal(
    written: tuple[Path, dict[int, dict[str, int]]], tmp_path: Path, field: str
) -> None:
    source, _ = written
    root = tmp_path / "copy"
    shutil.copytree(source, root)

    def changed(row: dict[str, object]) -> dict[str, object]:
        if row["epoch"] != 2:
            return row
        value = row[field]
        return row | {field: value + 1 if isinstance(value, int) else f"{value}x"}

    rewrite(root, changed)
    with pytest.raises(EpochDamaged, match="seal"):
        Store.open(str(root), JOB)


@pytest.mark.parametrize(
    "damage", [b'{"add":{"path":"x"', b"not json", b"[]", b'{"add":5}'], ids=["cut", "text", "list", "type"]
)
def test_a_damaged_commit_of_the_log_is_a_typed_error(
    written: tuple[Path, dict[int, dict[str, int]]], tmp_path: Path, damage: bytes
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(written[0], root)
    commits = sorted((root / "epochs/_delta_log").glob("*.json"))
    commits[-2].write_bytes(damage)
    with pytest.raises(CkptError):
        recovered(root)


def test_a_commit_that_vanished_is_a_typed_error(
    written: tuple[Path, dict[int, dict[str, int]]], tmp_path: Path
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(written[0], root)
    sorted((root / "epochs/_delta_log").glob("*.json"))[2].unlink()
    with pytest.raises(CkptError):
        recovered(root)


def test_the_error_of_a_row_of_an_unknown_kind_advises_an_upgrade(
    written: tuple[Path, dict[int, dict[str, int]]], tmp_path: Path
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(written[0], root)
    table = LogTable.open(Location(str(root)).child("epochs"), lambda: 0, create=False)
    assert table is not None
    table.refresh()
    table.append(NewRow("prophecy", 0, 0, "attempt", "{}", "{}"))
    with pytest.raises(FormatUnknown, match="prophecy"):
        Store.open(str(root), JOB)


def test_damaged_checkpoints_of_a_log_lose_nothing(tmp_path: Path) -> None:
    world = World(tmp_path / "store")
    world.begin()
    for number in range(FOLD_AFTER + 3):
        world.store.log.renew(1, 1000 + number)
    world.epoch({"a": 1})
    checkpoints = list((tmp_path / "store/epochs/_delta_log").glob("*.checkpoint.parquet"))
    assert checkpoints
    for path in checkpoints:
        path.write_bytes(path.read_bytes()[:100])
    reopened = World(tmp_path / "store")
    assert reopened.store.log.state() == world.store.log.state()
    assert json.loads(reopened.store.log.manifest(1).model_dump_json())["epoch"] == 1


def test_every_later_read_finds_a_row_of_an_unknown_kind_again(
    written: tuple[Path, dict[int, dict[str, int]]], tmp_path: Path
) -> None:
    """A newer version may fence by such a row: an older driver must not commit after its first error."""
    root = tmp_path / "copy"
    shutil.copytree(written[0], root)
    log = Store.open(str(root), JOB).log
    table = LogTable.open(Location(str(root)).child("epochs"), lambda: 0, create=False)
    assert table is not None
    table.refresh()
    table.append(NewRow("prophecy", 0, 0, "attempt", "{}", "{}"))
    for _ in range(2):
        with pytest.raises(FormatUnknown, match="prophecy"):
            log.state()
    with pytest.raises(FormatUnknown, match="prophecy"):
        log.add_savepoint("later", 2)


@pytest.mark.parametrize("kind", ["created", "incarnation", "epoch", "released"])
def test_a_flipped_bit_is_found_in_a_body_that_no_start_reads(
    written: tuple[Path, dict[int, dict[str, int]]], tmp_path: Path, kind: str
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(written[0], root)
    store = Store.open(str(root), JOB)
    assert store.log.damages() == []
    path = flip_in_body(root, kind)
    (damage,) = store.log.damages()
    assert damage.damaged_file == path.name


def test_a_replaced_body_is_found_by_its_digest(
    written: tuple[Path, dict[int, dict[str, int]]], tmp_path: Path
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(written[0], root)
    rewrite(root, lambda row: row | {"body": row["body"] + " "} if row["kind"] == "released" else row)
    (damage,) = Store.open(str(root), JOB).log.damages()
    assert "(released) of the epoch log does not match its digest" in damage.what


def test_a_fold_keeps_a_damaged_file_and_the_row_appended_before_it(
    written: tuple[Path, dict[int, dict[str, int]]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(written[0], root)
    damaged = flip_in_body(root, "released")
    monkeypatch.setattr(log_table, "FOLD_AFTER", 4)
    store = Store.open(str(root), JOB)
    for number in range(10):
        store.log.add_savepoint(f"s{number}", 2)
    state = Store.open(str(root), JOB).log.state()
    assert (len(state.savepoints), state.latest) == (10, 2)
    table = LogTable.open(Location(str(root)).child("epochs"), lambda: 0, create=False)
    assert table is not None
    table.refresh()
    assert damaged.name in table.paths
    assert len(table.paths) < len(table.rows)


def test_a_log_that_keeps_only_rows_of_a_damaged_file_stays_readable(
    written: tuple[Path, dict[int, dict[str, int]]], tmp_path: Path
) -> None:
    root = tmp_path / "copy"
    shutil.copytree(written[0], root)
    flip_in_body(root, "epoch", 2)
    table = LogTable.open(Location(str(root)).child("epochs"), lambda: 0, create=False)
    assert table is not None
    table.refresh()
    (kept,) = (row.seq for row in table.rows if row.epoch == 2)

    assert table.shorten({kept}, NewRow("prophecy", 0, 0, "attempt", "{}", "{}"))

    again = LogTable.open(Location(str(root)).child("epochs"), lambda: 0, create=False)
    assert again is not None
    again.refresh()
    assert [row.kind for row in again.rows] == ["epoch", "prophecy"]


class OfOneCursor:
    """A source that records the cursors that a restore checks."""

    def __init__(self) -> None:
        self.checked: list[tuple[Cursor | None, Cursor]] = []

    def remember_in(self, folder: Folder) -> None:
        """Do nothing."""

    def check_cursor(self, cursor: Cursor | None, newest: Cursor) -> None:
        self.checked.append((cursor, newest))

    def release(self, kept: Sequence[Cursor]) -> None:
        """Do nothing."""


@pytest.mark.parametrize("damaged", [0, 3])
def test_a_damaged_newest_manifest_does_not_block_the_restore_that_its_error_advises(
    tmp_path: Path, damaged: int
) -> None:
    world = World(tmp_path / "store")
    world.begin()
    for number in range(1, 4):
        world.commit(world.manifest().model_copy(update={"cursors": {"in": {"n": number}}}))
    world.store.log.release(1)
    if damaged:
        flip_in_body(tmp_path / "store", "epoch", damaged)
    store, source = Store.open(str(tmp_path / "store"), JOB), OfOneCursor()
    plan = SimpleNamespace(sources=[SimpleNamespace(name="in", source=source)], store=store, job=JOB)

    check_inputs(cast("JobPlan", plan), store.log.manifest(1))

    assert source.checked == [({"n": 1}, {"n": 2 if damaged else 3})]


@pytest.mark.parametrize("damaged", [2, 3])
def test_retention_with_a_damaged_manifest_deletes_no_file_that_it_may_name(tmp_path: Path, damaged: int) -> None:
    """The advice for a damaged epoch is to restore another one: the job that does so must continue to run."""
    world = World(tmp_path / "store")
    world.begin()
    for number in range(1, 5):
        world.epoch({"a": number}, full=True, acked=number)
    world.store.log.release(1)
    state = tmp_path / "store/state" / OPERATOR
    before = {path.name for path in state.glob("*.parquet")}
    file = flip_in_body(tmp_path / "store", "epoch", damaged)
    store = Store.open(str(tmp_path / "store"), JOB)
    store.log.begin_incarnation(ELSEWHERE)
    for _ in range(2):
        store.retain(Retention(keep_last=2, slack=0))
    assert [brief.epoch for brief in store.log.state().epochs] == [3, 4]
    assert store.log.manifest(4).epoch == 4
    left = {path.name for path in state.glob("*.parquet")}
    assert len(left) == (2 if damaged == 2 else len(before))
    assert [each.damaged_file for each in store.log.damages()] == ([] if damaged == 2 else [file.name])
