"""The log of a file sink, `_spark_metadata`: files by batch, and a copy of the log as of a batch.

The sink skips a batch whose number is in the log (`FileStreamSink.addBatch`), so the log rolls back with its query.
Spark periodically compacts all entries before a batch into one file `<batch>.compact`, without their batch numbers.
Single files stay about as long as those of the query's own logs; without them batches cannot be distinguished.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_ckpt.errors import CheckpointDamaged, RewindOutOfReach, RewindUnsupported
from spark_ckpt.spark_internals.query_logs import SINK_LOG
from spark_rewind.checkpoint import QueryCheckpoint
from spark_rewind.durable import link_with_checksum
from spark_rewind.reading import file_of, listed_text
from spark_rewind.source_files import entries_in, ordered


@dataclass(frozen=True, slots=True)
class SinkLog:
    """Files that a file sink wrote, with their batch. For files of a compacted entry this is an upper bound.

    - `numbers`: batches with a file in the log.
    - `folded`: batches whose file holds all earlier batches, too.
    - `digest`: of the log.
    """

    folder: Path
    batches: Mapping[str, int]
    numbers: frozenset[int] = frozenset()
    folded: frozenset[int] = frozenset()
    digest: str = ""

    @property
    def newest(self) -> int:
        """Newest batch in the log, -1 for an empty log."""
        return max(self.numbers, default=-1)

    def cut_gone(self, batch: int) -> str | None:
        """Return the reason why the log cannot be cut at a batch, None if it can. -1 precedes all batches."""
        # Nothing to distinguish: everything goes, or everything stays.
        if batch < 0 or batch >= self.newest:
            return None
        first = max((each for each in self.folded if each <= batch), default=0)
        if all(each in self.numbers for each in range(first, batch + 1)):
            return None
        return f"the log of files in {self.folder} does not say any more what batch {batch} wrote: later ones were folded over it"

    def after(self, batch: int) -> list[str]:
        """Return files that later batches wrote, as the log spells them."""
        return [path for path, number in self.batches.items() if number > batch]


def read_sink_log(log: Path) -> SinkLog:
    """Read the log in `_spark_metadata`. Raises `CheckpointUnreadable`, `CheckpointDamaged`, `FormatUnknown`."""
    found: dict[str, int] = {}
    listed, digest = ordered(log), hashlib.sha256()
    # single files before compacted ones: only a single file knows the batch of its entries
    for number, folded, path in sorted(listed, key=lambda each: (each[1], each[0])):
        text = listed_text(path)
        digest.update(f"\0{number}\0{folded}\0{text}".encode())
        for entry in entries_in(path, text):
            if entry.get("action") == "add" and not (folded and entry["path"] in found):
                found[entry["path"]] = number
    numbers = frozenset(number for number, _, _ in listed)
    folds = frozenset(number for number, folded, _ in listed if folded)
    return SinkLog(log.parent, found, numbers, folds, digest.hexdigest())


def folders_with_log(paths: Iterable[str]) -> set[Path]:
    """Return folders of file sinks that contain files of a log. Files elsewhere are ignored."""
    parents = {file_of(each) for each in {path.rpartition("/")[0] for path in paths}}
    # Files of a partitioned sink are in folders below the one with the log.
    around = {folder for each in parents if each is not None for folder in (each, *each.parents)}
    return {each for each in around if (each / SINK_LOG).is_dir()}


def require_own(query: QueryCheckpoint, log: SinkLog) -> None:
    """Check that a log belongs to a query: it has every committed batch, and none after the newest begun one.

    Raises `CheckpointDamaged`.
    """
    begun = query.batches[-1].number if query.batches else -1
    done = -1 if query.committed is None else query.committed
    # The sink adds a batch to its log before Spark commits it, so the log may be one batch further.
    if not done <= log.newest <= begun:
        what = (
            f"the log of files in {log.folder} ends with batch {log.newest}, and {query.name} has committed batch {done} "
            f"and begun batch {begun}"
        )
        hint = "declare who writes the folder; if it was written with another checkpoint before, leave it out"
        raise CheckpointDamaged(what, hint=hint)


def copy_sink_log(log: Path, batch: int, target: Path) -> None:
    """Copy the log as of a batch into an existing folder. Spark never changes its files, so they are linked."""
    for number, _, path in ordered(log):
        # A later compacted file also holds earlier batches, but Spark would take its number for that of a batch.
        if number <= batch:
            link_with_checksum(path, target / path.name)


def check_cut(log: SinkLog, batch: int) -> None:
    """Check that the log can be cut at a batch. Raises `RewindOutOfReach` with the reason of `cut_gone`."""
    if (why := log.cut_gone(batch)) is not None:
        raise RewindOutOfReach(why, hint="plan again with a later target; nothing was changed")


def below(log: SinkLog, paths: Sequence[str]) -> list[str]:
    """Return files of a log by their path below its folder.

    Raises `RewindUnsupported` for files elsewhere: the folder is a copy.
    """
    root = log.folder.resolve()
    found = []
    for each in paths:
        local = file_of(each)
        if local is None or not local.resolve().is_relative_to(root):
            what = f"the log of files in {log.folder} names {each}, which is not in it: the folder was moved or copied"
            hint = (
                "rewind where the query writes; to rehearse it, leave this query out of the plan; nothing was changed"
            )
            raise RewindUnsupported(what, hint=hint)
        found.append(str(local.resolve().relative_to(root)))
    return found


def check_log_copy(log: SinkLog, batch: int, target: Path) -> SinkLog:
    """Read a copy inside the sink's folder and compare it with the log. Raises `CheckpointDamaged`."""
    copy = read_sink_log(target)
    wanted = {path for path, number in log.batches.items() if number <= batch}
    if set(copy.batches) != wanted or copy.newest != min(batch, log.newest):
        hint = "the log of the files that were written is damaged: restore it from a backup"
        raise CheckpointDamaged(f"the copy of {log.folder / SINK_LOG} at batch {batch} is incomplete", hint=hint)
    return copy
