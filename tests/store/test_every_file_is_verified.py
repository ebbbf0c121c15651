"""No damage of a file that a committed epoch names changes an answer, and `verify --deep` reports each one."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from store_world import OPERATOR, SINK, World

from spark_ckpt.epochs.records import SinkAck, StagedFileRecord, StateFile
from spark_ckpt.errors import EpochDamaged

Read = Callable[[World], object]
READS: dict[str, Read] = {
    "state": lambda world: world.store.state(OPERATOR).read(3).to_pydict(),
    "rows": lambda world: world.store.staged(SINK).read(3).to_pydict(),
}


@pytest.fixture
def world(tmp_path: Path) -> World:
    world = World(tmp_path / "store")
    world.begin()
    for epoch in range(1, 4):
        world.epoch({f"key {epoch} {number}": number for number in range(40)})
    return world


def damages(content: bytes, flips: int, seed: int) -> Iterator[tuple[str, bytes | None]]:
    """Yield the deleted, emptied, truncated and bit-flipped versions of a file, none equal to its content."""
    rng = random.Random(seed)
    yield "deleted", None
    yield "emptied", b""
    for size in rng.sample(range(1, len(content)), flips // 10):
        yield "cut", content[:size]
    for bit in rng.sample(range(len(content) * 8), flips):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield "flipped", bytes(flipped)
    yield "longer", content + b"\0"


def path_of(world: World, kind: str) -> Path:
    folder = world.store.state(OPERATOR) if kind == "state" else world.store.staged(SINK)
    manifest = world.store.log.manifest(3)
    files: tuple[StateFile | StagedFileRecord, ...] = (
        manifest.operators[OPERATOR].files if kind == "state" else manifest.outputs[SINK].files
    )
    return Path(folder.location.uri) / files[-1].path


def outcome(read: Callable[[], object], right: object) -> str:
    try:
        return "same" if read() == right else "other"
    except EpochDamaged as damage:
        assert {"epoch", "expected"} <= damage.context.keys()
        assert damage.context.keys() & {"operator", "sink"}
        return "damaged"
    except Exception as error:  # noqa: BLE001 - an untyped error is what is looked for
        return type(error).__name__


@pytest.mark.parametrize("kind", READS)
def test_no_damage_of_a_file_gives_another_answer_and_each_is_found(world: World, kind: str) -> None:
    path, manifest = path_of(world, kind), world.store.log.manifest(3)
    right, whole = READS[kind](world), path.read_bytes()
    seen: Counter[str] = Counter()
    for what, content in damages(whole, flips=200, seed=3):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        seen[outcome(lambda: READS[kind](world), right)] += 1
        with pytest.raises(EpochDamaged):
            world.store.verify(manifest, deep=True)
        if what != "flipped":
            with pytest.raises(EpochDamaged):
                world.store.verify(manifest)
    path.write_bytes(whole)
    world.store.verify(manifest, deep=True)
    assert seen == {"damaged": 223}


def test_deferred_rows_in_a_tables_folder_are_checked_until_they_are_published(world: World, tmp_path: Path) -> None:
    manifest = world.store.log.manifest(3)
    output = manifest.outputs[SINK].model_copy(update={"root": str(tmp_path / "table")})
    world.store.log.record_acks(manifest.incarnation, [SinkAck(sink=SINK, epoch=3)])
    with pytest.raises(EpochDamaged, match="missing"):
        world.store.verify(manifest.model_copy(update={"outputs": {}, "held": {SINK: output}}))


def test_a_file_of_unknown_digest_is_checked_by_its_size_and_decoded(world: World) -> None:
    """A flip may go unnoticed, which is the reason for the digest (counter-example)."""
    path, manifest = path_of(world, "rows"), world.store.log.manifest(3)
    output = manifest.outputs[SINK]
    files = tuple(replace(file, sha256="") for file in output.files)
    old = manifest.model_copy(update={"outputs": {SINK: output.model_copy(update={"files": files})}, "operators": {}})
    world.store.verify(old, deep=True)
    whole, unnoticed = path.read_bytes(), 0
    for _, content in damages(whole, flips=100, seed=3):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        try:
            world.store.verify(old, deep=True)
            unnoticed += 1
        except EpochDamaged:
            pass
    assert 0 < unnoticed < 60
