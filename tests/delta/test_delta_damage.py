"""No damaged staged file becomes part of the user's table."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from delta_kit import context, ids, output, stage
from deltalake import DeltaTable
from spark_ckpt_delta.publisher import DeltalakePublisher

from spark_ckpt.errors import EpochDamaged


def damages(content: bytes) -> Iterator[bytes | None]:
    """Deleted, emptied, cut and flipped at seeded places, longer."""
    rng = random.Random(5)
    yield from (None, b"", content + b"\0")
    for size in rng.sample(range(1, len(content)), 10):
        yield content[:size]
    for bit in rng.sample(range(len(content) * 8), 100):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        yield bytes(flipped)


def test_no_damaged_file_becomes_part_of_the_table(table: Path) -> None:
    publisher = DeltalakePublisher(str(table), {}, context())
    files = [stage(table, {"id": [1, 2]}), stage(table, {"id": [3, 4]})]
    path = table / files[1].path
    whole, refused = path.read_bytes(), 0
    for content in damages(whole):
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(EpochDamaged, match=files[1].path) as caught:
            publisher.publish(output(table, 7, files, previous=0))
        assert {"epoch", "sink", "expected"} <= caught.value.context.keys()
        assert not caught.value.retriable
        refused += 1
    assert (refused, DeltaTable(str(table)).version()) == (113, 0)
    path.write_bytes(whole)
    publisher.publish(output(table, 7, files, previous=0))
    assert ids(table) == [1, 2, 3, 4]


def test_without_digests_the_same_flips_reach_the_table(table: Path) -> None:
    """Counter-example: a file without a digest is checked by its size only."""
    publisher = DeltalakePublisher(str(table), {}, context())
    file = replace(stage(table, {"id": [1, 2]}), sha256="")
    path = table / file.path
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    publisher.publish(output(table, 1, [file], previous=0))
    assert DeltaTable(str(table)).version() == 1


def test_damage_does_not_matter_when_the_table_has_the_epoch(table: Path) -> None:
    epoch = output(table, 1, [stage(table, {"id": [1]})])
    DeltalakePublisher(str(table), {}, context()).publish(epoch)
    gone = replace(epoch, files=[replace(epoch.files[0], path="gone.parquet")])
    assert DeltalakePublisher(str(table), {}, context(2)).publish(gone).replayed
