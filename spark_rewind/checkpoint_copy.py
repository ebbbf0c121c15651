"""Copy of a query's checkpoint as of one batch: the files of a query that stopped there.

State files are linked, not copied, if the file system has links: Spark never changes a file, it creates new ones. The
copy omits later offsets, commits and state versions, and files that a source listed later. Otherwise those files would
count as read. A Hadoop checksum file (`.x.crc`) follows its file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from spark_ckpt.errors import CheckpointDamaged, FormatUnknown
from spark_ckpt.spark_internals import query_logs
from spark_ckpt.spark_internals.query_logs import COMPACT, PLACEHOLDER, batch_number, file_entries_text
from spark_rewind.checkpoint import Batch, QueryCheckpoint, read_checkpoint
from spark_rewind.durable import link_or_copy, link_with_checksum, make_folder, sync_tree
from spark_rewind.durable import replace as replace_file
from spark_rewind.positions import FilesPosition, position_of
from spark_rewind.reading import HINT_DAMAGED, entries, names, text_of
from spark_rewind.source_files import raw_entries
from spark_rewind.state_copy import copy_state


def copy_file_log(source: Path, target: Path, newest: int) -> None:
    """Copy entries up to `newest`, -1 for none. Raises `CheckpointDamaged` if one is missing, `RewindNotPermitted`.

    Single files are linked if the log has every file that Spark reads: those since the newest compacted one. Otherwise
    all entries go into one compacted file. Spark derives its compaction interval from that file's number, so the log is
    valid under any setting.
    """
    if newest < 0:
        return
    there = {number: name for name in names(source) if (number := batch_number(name)) is not None and number <= newest}
    folded = max((number for number, name in there.items() if name.endswith(COMPACT)), default=None)
    first = 0 if folded is None else folded
    # Spark reads a log of files from its newest compacted file on, and needs every entry after it.
    if all(number in there for number in range(first, newest + 1)):
        for name in there.values():
            link_with_checksum(source / name, target / name)
        return
    found = sorted(
        ((number, each) for number, each in raw_entries(source) if number <= newest), key=lambda each: each[0]
    )
    if not found or found[-1][0] != newest:
        hint = "the log of the files that were read is damaged: restore it from a backup"
        raise CheckpointDamaged(f"{source} has lost entry {newest}", hint=hint)
    replace_file(target / f"{newest}{COMPACT}", file_entries_text([each for _, each in found]).encode())


_KNOWN = (query_logs.OFFSETS, query_logs.COMMITS, query_logs.SOURCES, query_logs.STATE)


@dataclass(frozen=True, slots=True)
class CheckpointCut:
    """End of a copy. `batch`: the newest batch, -1 for none; it may be unfinished.

    `ends`: by batch and source, offsets that replace the query's own. With new ends the log begins at their batch,
    because older offsets count versions of before. `alone`: copy only the files that Spark needs to continue: the batch
    before it, and the state of its version.
    """

    batch: int
    ends: Mapping[int, Mapping[str, str]] = field(default_factory=dict)
    alone: bool = False

    @property
    def oldest(self) -> int:
        """First batch of the copy, if the checkpoint has it."""
        # Spark reads the batch before the newest at a start.
        return self.batch - 1 if self.alone else min(self.ends, default=0)


def copy_checkpoint(query: QueryCheckpoint, cut: CheckpointCut, target: Path) -> QueryCheckpoint:
    """Write the copy into a new folder, make it durable, read it back and compare it.

    Raises `RewindNotPermitted`, `CheckpointDamaged` (a file is missing, or the copy differs), `FormatUnknown` (an entry
    of the checkpoint is unknown), FileExistsError.
    """
    check_known(query)
    if not target.parent.exists():
        make_folder(target.parent, query.folder.parent)
    # A folder that exists raises: files of an earlier try would count as part of the copy.
    target.mkdir()
    # Exists by now: this gives it the permissions of the query's folder.
    make_folder(target, query.folder)
    # The same id: Delta sinks know the query's transactions by it.
    link_with_checksum(query.folder / query_logs.ID_FILE, target / query_logs.ID_FILE)
    kept = [each for each in query.batches if cut.oldest <= each.number <= cut.batch]
    _copy_logs(query, kept, cut, target)
    _copy_sources(query, kept[-1] if kept else None, target)
    copy_state(query, cut.batch, target, alone=cut.alone)
    sync_tree(target)
    return check_copy(query, cut, target)


def check_known(query: QueryCheckpoint) -> None:
    """Check that a checkpoint has only known entries. Raises `FormatUnknown`."""
    strange = [
        each.name
        for each in entries(query.folder)
        if each.name[0] != "." and each.name not in (*_KNOWN, query_logs.ID_FILE)
    ]
    if strange:
        what = f"{query.folder} holds {strange[0]!r}, and what that is as of an older batch is not known"
        hint = "a Delta source's log of schemas cannot be rolled back: restart this query from its beginning, plan for the others"
        raise FormatUnknown(what, hint=hint)


# -- offsets and commits -------------------------------------------------------------------------------------------------


def _copy_logs(query: QueryCheckpoint, kept: Sequence[Batch], cut: CheckpointCut, target: Path) -> None:
    for log in (query_logs.OFFSETS, query_logs.COMMITS):
        if (query.folder / log).is_dir():
            make_folder(target / log, query.folder / log)
        else:
            (target / log).mkdir()
    for batch in kept:
        offsets = Path(query_logs.OFFSETS, str(batch.number))
        if (ends := cut.ends.get(batch.number)) is not None:
            # It gets no checksum file: Hadoop would compare the new text with the checksum of the old one.
            replace_file(target / offsets, query_logs.with_ends(text_of(query.folder / offsets), ends, {}).encode())
        else:
            link_with_checksum(query.folder / offsets, target / offsets)
        if batch.committed_ms is not None:
            commit = Path(query_logs.COMMITS, str(batch.number))
            link_with_checksum(query.folder / commit, target / commit)
    if len(kept) == 1 and kept[0].number > 0:
        _place_before(query, kept[0], cut, target)


def _place_before(query: QueryCheckpoint, oldest: Batch, cut: CheckpointCut, target: Path) -> None:
    """Write a batch before the oldest one, if the copy would have only one batch.

    At a start, Spark reads the batch before the newest and reads the data between the two again. The written batch ends
    at the same positions, so nothing lies between. It is marked, because it is no point to restore.
    """
    if oldest.committed_ms is None:
        what = (
            f"{query.folder}: batch {oldest.number} is unfinished, and the batch before it, where it begins, is missing"
        )
        raise CheckpointDamaged(what, hint=HINT_DAMAGED)
    text = text_of(query.folder / query_logs.OFFSETS / str(oldest.number))
    placed = query_logs.with_ends(text, cut.ends.get(oldest.number, {}), {PLACEHOLDER: "true"})
    before = str(oldest.number - 1)
    replace_file(target / query_logs.OFFSETS / before, placed.encode())
    source = query.folder / query_logs.COMMITS / before
    if source.is_file():
        link_with_checksum(source, target / query_logs.COMMITS / before)
    else:
        link_or_copy(query.folder / query_logs.COMMITS / str(oldest.number), target / query_logs.COMMITS / before)


# -- what sources keep ---------------------------------------------------------------------------------------------------


def _copy_sources(query: QueryCheckpoint, newest: Batch | None, target: Path) -> None:
    """Copy logs of files up to the batch. Other sources only keep their start positions, which are copied unchanged."""
    if not (query.folder / query_logs.SOURCES).is_dir():
        return
    make_folder(target / query_logs.SOURCES, query.folder / query_logs.SOURCES)
    for each in entries(query.folder / query_logs.SOURCES):
        if not each.is_dir():
            continue
        source, copied = query.folder / query_logs.SOURCES / each.name, target / query_logs.SOURCES / each.name
        make_folder(copied, source)
        if each.name in query.files:
            # Spark takes each file of the log for one that was read: with later entries it would never read theirs.
            end = newest.ends.get(each.name) if newest else None
            copy_file_log(source, copied, end.log_offset if isinstance(end, FilesPosition) else -1)
        else:
            # Hidden files are checksums, which follow their files.
            for name in names(source):
                if not name.startswith("."):
                    link_with_checksum(source / name, copied / name)


# -- the copy, read back -------------------------------------------------------------------------------------------------


def check_copy(query: QueryCheckpoint, cut: CheckpointCut, target: Path) -> QueryCheckpoint:
    """Read a copy as a plan reads it, and compare it with its original. Raises `CheckpointDamaged`."""
    copy = read_checkpoint(target, query.name)
    wrong = next(iter(_differences(query, copy, cut)), None)
    if wrong is not None:
        raise CheckpointDamaged(
            f"the copy of {query.folder} at batch {cut.batch} is incomplete: {wrong}", hint=HINT_DAMAGED
        )
    return copy


def _differences(query: QueryCheckpoint, copy: QueryCheckpoint, cut: CheckpointCut) -> list[str]:
    wanted = [each for each in query.batches if cut.oldest <= each.number <= cut.batch]
    numbers = [each.number for each in copy.batches]
    if copy.query != query.query:
        return ["it is of another query"]
    if numbers != [each.number for each in wanted]:
        return [f"it has batches {numbers}"]
    found = []
    for was, is_now in zip(wanted, copy.batches, strict=True):
        ends = dict(was.ends) | {name: position_of(text) for name, text in cut.ends.get(was.number, {}).items()}
        if ends != dict(is_now.ends) or (was.committed_ms is None) != (is_now.committed_ms is None):
            found.append(f"batch {was.number} does not end where it ended")
        # The files of two attempts may both be there: the ids decide which of them Spark loads.
        if was.state_ids != is_now.state_ids:
            found.append(f"batch {was.number} names another state")
    return [*found, *state_differences(query, copy), *_file_differences(query, copy)]


def state_differences(query: QueryCheckpoint, copy: QueryCheckpoint) -> list[str]:
    """Return differences of the state after the newest finished batch."""
    batch = next((each for each in reversed(copy.batches) if each.committed_ms is not None), None)
    if batch is None:
        return []
    if [sorted(each.read()) for each in copy.operators] != [sorted(each.read()) for each in query.operators]:
        return ["it has other operators or partitions"]
    gone = copy.state_gone(batch) or copy.state_torn(batch)
    return [] if gone is None else [gone]


def _file_differences(query: QueryCheckpoint, copy: QueryCheckpoint) -> list[str]:
    newest = copy.batches[-1].ends if copy.batches else {}
    for source, end in newest.items():
        if isinstance(end, FilesPosition):
            known = {} if source not in copy.files else copy.files[source].entries
            if sorted(known) != sorted(query.files[source].up_to(end.log_offset)):
                return [f"source {source} has other files than it had read"]
    return []
