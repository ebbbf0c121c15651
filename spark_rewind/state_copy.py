"""Copy of the state of a query's operators up to a version: files of every store, with their schemas and metadata."""

from __future__ import annotations

from pathlib import Path

from spark_ckpt.errors import FormatUnknown
from spark_ckpt.spark_internals.query_logs import STATE
from spark_ckpt.spark_internals.state_selection import UnknownStateFolder, select
from spark_rewind.checkpoint import QueryCheckpoint
from spark_rewind.durable import link_or_copy, make_folder
from spark_rewind.reading import typed_errors


def copy_state(query: QueryCheckpoint, batch: int, target: Path, *, alone: bool = False) -> None:
    """Copy the state up to the version after the newest finished batch at or before `batch`; none for -1.

    `alone`: copy only the files that loading this version needs.

    Files of attempts that no commit names are left out. Raises `FormatUnknown` for folders of an unknown kind,
    `CheckpointUnreadable`, `RewindNotPermitted`.
    """
    finished = [each.number for each in query.batches if each.committed_ms is not None and each.number <= batch]
    source = query.folder / STATE
    # Without a finished batch no folder may be there: since 4.1 Spark refuses state that exists before batch 0
    # (`verifyCheckpointDirectoryEmptyOnStart`).
    if not source.is_dir() or not finished:
        return
    ids = {each.number + 1: each.state_ids for each in query.batches if each.state_ids is not None}
    try:
        with typed_errors(source):
            selected = select(source, finished[-1] + 1, batch, ids, alone=alone)
    except UnknownStateFolder as error:
        raise FormatUnknown(str(error), hint="start this query from the beginning yourself") from None
    make_folder(target / STATE, source)
    for folder in selected.folders:
        make_folder(target / STATE / folder, source / folder)
    for name in selected.files:
        link_or_copy(source / name, target / STATE / name)
