"""A process that dies while it writes a fence leaves a part file that no query reads; `remove_fences` deletes it."""

from __future__ import annotations

from rewind_kit import WrittenQuery

from spark_rewind.checkpoint import read_checkpoint
from spark_rewind.durable import part_of
from spark_rewind.fences import fence_paths, put_fences, remove_fences


def test_a_partial_fence_is_removed_with_the_complete_ones(tmp_path):
    query = WrittenQuery(tmp_path / "q")
    query.batch(0, commit=False)
    paths = fence_paths(read_checkpoint(query.folder, "q"), query.folder)
    before = set(query.folder.rglob("*"))
    put_fences(paths[:1], "x")
    part_of(paths[1]).write_bytes(b"spark")
    remove_fences(paths, "x")
    assert set(query.folder.rglob("*")) == before
