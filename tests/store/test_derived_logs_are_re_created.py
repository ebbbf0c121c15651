"""State tables and staged tables follow the manifests: a start creates their logs again if they are damaged."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from deltalake import DeltaTable
from store_world import ELSEWHERE, JOB, OPERATOR, SINK, World, as_dict

from spark_ckpt.epochs.retention import Retention
from spark_ckpt.errors import LogDamaged
from spark_ckpt.store.delta_log import live_files
from spark_ckpt.store.store import Store

Damage = Callable[[Path], None]


def garbage(log: Path) -> None:
    commits(log)[1].write_bytes(b"\x00garbage")


def cut(log: Path) -> None:
    newest = commits(log)[-1]
    newest.write_bytes(newest.read_bytes()[:-9])


def without_its_beginning(log: Path) -> None:
    commits(log)[0].unlink()


def hole(log: Path) -> None:
    commits(log)[2].unlink()


def never_committed(log: Path) -> None:
    """Flip a digit: the table claims an epoch far ahead, and would never be materialized again."""
    newest = commits(log)[-1]
    lines = [json.loads(line) for line in newest.read_text().splitlines()]
    for line in lines:
        if "txn" in line:
            line["txn"]["version"] += 7 << 40
    newest.write_text("".join(json.dumps(line) + "\n" for line in lines))


def no_action(log: Path) -> None:
    commits(log)[-1].write_text("[]\n")


def commits(log: Path) -> list[Path]:
    return sorted(log.glob("0*.json"))


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(tmp_path_factory.mktemp("pristine") / "store")
    world.begin()
    world.epoch({"a": 1, "b": 1})
    world.epoch({"a": 2})
    world.epoch({"b": None, "c": 3})
    world.store.log.release(1)
    return world


def shown(store: Store, version: int | None = None) -> set[str]:
    location = store.state(OPERATOR).location
    return set(live_files(DeltaTable(location.uri, version=version)))


@pytest.mark.parametrize("damage", [garbage, cut, without_its_beginning, hole, never_committed, no_action])
def test_a_start_creates_damaged_logs_of_state_and_staged_tables_again(
    pristine: World, tmp_path: Path, damage: Damage
) -> None:
    shutil.copytree(pristine.store.location.uri, tmp_path / "store")
    for log in ("state/totals/_delta_log", "edges/out/_delta_log"):
        damage(tmp_path / "store" / log)

    store = Store.open(str(tmp_path / "store"), JOB)
    point = store.log.begin_incarnation(ELSEWHERE, takeover=True)
    store.materialize(point.manifest)

    assert point.manifest.epoch == 3
    assert as_dict(store.state(OPERATOR).read(3)) == {"a": 2, "c": 3}
    for epoch in (1, 2, 3):
        files = store.log.manifest(epoch).operators[OPERATOR].files
        assert shown(store, store.state(OPERATOR).version(epoch)) == {file.path for file in files}
    assert shown(store) == {file.path for file in point.manifest.operators[OPERATOR].files}
    rows = DeltaTable(store.staged(SINK).location.uri).scan(columns=["value"]).read_all()
    assert sorted(row.as_py() for row in rows.column(0)) == ["row of 1", "row of 2", "row of 3"]
    store.retain(Retention(keep_last=1, slack=0))
    assert as_dict(store.state(OPERATOR).read(3)) == {"a": 2, "c": 3}


@pytest.mark.parametrize("damage", [garbage, cut, without_its_beginning, hole])
def test_a_log_that_is_damaged_while_the_job_runs_is_created_again_after_retention_has_read_it(
    pristine: World, tmp_path: Path, damage: Damage
) -> None:
    shutil.copytree(pristine.store.location.uri, tmp_path / "store")
    store = Store.open(str(tmp_path / "store"), JOB)
    point = store.log.begin_incarnation(ELSEWHERE, takeover=True)
    store.materialize(point.manifest)
    damage(tmp_path / "store/state/totals/_delta_log")
    store.state(OPERATOR).table.forget()  # as a handle that is older than the damaged commit
    with pytest.raises(LogDamaged):
        store.retain(Retention(keep_last=1, slack=0))
    store.materialize(point.manifest)
    store.retain(Retention(keep_last=1, slack=0))
    assert shown(store) == {file.path for file in point.manifest.operators[OPERATOR].files}


def test_the_damaged_log_is_kept_in_the_tables_folder(pristine: World, tmp_path: Path) -> None:
    shutil.copytree(pristine.store.location.uri, tmp_path / "store")
    state = tmp_path / "store/state/totals"
    garbage(state / "_delta_log")
    store = Store.open(str(tmp_path / "store"), JOB)
    store.materialize(store.log.begin_incarnation(ELSEWHERE, takeover=True).manifest)
    (copy,) = state.glob("_damaged_delta_log-*")
    assert b"garbage" in commits(copy)[1].read_bytes()


def test_a_fenced_driver_does_not_create_a_table_again(pristine: World, tmp_path: Path) -> None:
    shutil.copytree(pristine.store.location.uri, tmp_path / "store")
    old, new = (Store.open(str(tmp_path / "store"), JOB) for _ in range(2))
    point = old.log.begin_incarnation(ELSEWHERE, takeover=True)
    new.log.begin_incarnation(ELSEWHERE, takeover=True)
    garbage(tmp_path / "store/state/totals/_delta_log")
    with pytest.raises(LogDamaged):
        old.materialize(point.manifest)
    assert not list((tmp_path / "store/state/totals").glob("_damaged*"))
