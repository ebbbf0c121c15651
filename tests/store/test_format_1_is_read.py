"""A store that format 1 wrote (kept here as it was written) is read, continued and restored."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow as pa
import pytest
from store_world import ELSEWHERE, JOB, OPERATOR, SINK, World, as_dict, snapshot_of

from spark_ckpt.store.location import Location
from spark_ckpt.store.records import FORMAT
from spark_ckpt.store.store import Store

WRITTEN = Path(__file__).with_name("written_by_format_1.zip")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """Epoch 1: a=1, b=2. Epoch 2, savepoint "two": a=3, b deleted. Epoch 1 is published."""
    with zipfile.ZipFile(WRITTEN) as kept:
        kept.extractall(tmp_path / "store")
    return tmp_path / "store"


def test_epochs_state_savepoints_and_acks_of_format_1_are_as_they_were(old: Path) -> None:
    store = Store.open(str(old), JOB)
    log_state = store.log.state()
    assert (log_state.latest, dict(log_state.savepoints), dict(log_state.acked)) == (2, {"two": 2}, {SINK: 1})
    assert as_dict(store.state(OPERATOR).read(1)) == {"a": 1, "b": 2}
    assert as_dict(store.state(OPERATOR).read(2)) == {"a": 3}
    assert store.outbox(SINK).read(2).to_pylist() == [{"value": "row of 2"}]
    for epoch in (1, 2):
        assert store.log.manifest(epoch).format == 1
        store.verify(store.log.manifest(epoch), deep=True)


def test_a_job_goes_on_in_format_2_on_the_files_of_format_1(old: Path) -> None:
    world = World(old)
    point = world.store.log.begin_incarnation(ELSEWHERE)
    assert [each.epoch for each in point.unpublished[SINK]] == [2]
    chain = point.manifest.operators[OPERATOR].files
    world.line.incarnation, world.line.base, world.last = point.incarnation, 2, 2
    world.line.chain, world.line.state = chain, {"a": 3}
    manifest = world.epoch({"c": 4})
    reopened = Store.open(str(old), JOB)
    assert reopened.log.manifest(3) == manifest
    assert manifest.format == FORMAT
    assert as_dict(reopened.state(OPERATOR).read(3)) == {"a": 3, "c": 4}
    assert manifest.operators[OPERATOR] == snapshot_of((*chain, manifest.operators[OPERATOR].files[-1]))


def test_rows_of_both_formats_live_in_one_folded_file_of_the_log(old: Path) -> None:
    world = World(old)
    incarnation = world.store.log.begin_incarnation(ELSEWHERE).incarnation
    for number in range(40):
        world.store.log.renew(incarnation, 1_000 + number)
    logs = Location(str(old / "epochs"))
    folded = [
        logs.read_table(info.path) for info in logs.list() if info.path.endswith(".parquet") and "/" not in info.path
    ]
    assert any({1, FORMAT} == set(pa.table(each).column("format").to_pylist()) for each in folded)
    assert Store.open(str(old), JOB).log.state().latest == 2
