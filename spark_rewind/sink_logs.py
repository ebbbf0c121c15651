"""The log of a file sink, `_spark_metadata`: which batch wrote which files, and the log as of one of its batches.

A batch whose number is in the log is skipped by the sink (`FileStreamSink.addBatch`): so the log has to go back with its query.
Every so many batches Spark folds all before one into a file `<batch>.compact`, which does not say which batch wrote what. The
single files stay for about as long as those of the query's own logs; without them a batch cannot be told from its neighbours.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_ckpt.errors import CheckpointDamaged, RewindOutOfReach, RewindUnsupported
from spark_ckpt.spark_internals.query_logs import SINK_LOG
from spark_rewind.checkpoint import Checkpoint
from spark_rewind.durable import link_or_copy
from spark_rewind.reading import file_of, text_of
from spark_rewind.source_files import entries_in, ordered


@dataclass(frozen=True, slots=True)
class SinkLog:
    """Files that a file sink wrote, with the batch that did; `at most` this batch where the log was folded.

    `numbers`: batches that have a file in the log; `folded`: those whose file holds all before them, too. `digest`: of the log.
    """

    folder: Path
    batches: Mapping[str, int]
    numbers: frozenset[int] = frozenset()
    folded: frozenset[int] = frozenset()
    digest: str = ""

    @property
    def newest(self) -> int:
        """The newest batch that the log has; -1 if it has none."""
        return max(self.numbers, default=-1)

    def cut_gone(self, batch: int) -> str | None:
        """Why the log as of a batch cannot be had; None if it can. -1: before all."""
        if batch < 0 or batch >= self.newest:
            return None
        first = max((each for each in self.folded if each <= batch), default=0)
        if all(each in self.numbers for each in range(first, batch + 1)):
            return None
        return f"the log of files in {self.folder} does not say any more what batch {batch} wrote: later ones were folded over it"

    def after(self, batch: int) -> list[str]:
        """Files that later batches wrote, as the log spells them."""
        return [path for path, number in self.batches.items() if number > batch]


def read_sink_log(log: Path) -> SinkLog:
    """The log in `_spark_metadata`. Raises `CheckpointUnreadable`, `CheckpointDamaged`, `FormatUnknown`."""
    found: dict[str, int] = {}
    listed, digest = ordered(log), hashlib.sha256()
    for number, folded, path in sorted(listed, key=lambda each: (each[1], each[0])):
        text = _text(path)
        digest.update(f"\0{number}\0{folded}\0{text}".encode())
        for entry in entries_in(path, text):
            if entry.get("action") == "add" and not (folded and entry["path"] in found):
                found[entry["path"]] = number
    numbers = frozenset(number for number, _, _ in listed)
    folds = frozenset(number for number, folded, _ in listed if folded)
    return SinkLog(log.parent, found, numbers, folds, digest.hexdigest())


def _text(path: Path) -> str:
    try:
        return text_of(path)
    except FileNotFoundError:
        hint = "its query is running and folds its log: stop it first, or try again"
        raise CheckpointDamaged(f"{path} went away while it was read", hint=hint) from None


def folders_with_log(paths: Iterable[str]) -> set[Path]:
    """Folders of file sinks that files of a log lie in. Files elsewhere are passed over."""
    parents = {file_of(each) for each in {path.rpartition("/")[0] for path in paths}}
    around = {folder for each in parents if each is not None for folder in (each, *each.parents)}
    return {each for each in around if (each / SINK_LOG).is_dir()}


def require_own(query: Checkpoint, log: SinkLog) -> None:
    """Whether a log is that of a query: all that it has committed, and no more than it has begun. Raises `CheckpointDamaged`."""
    begun = query.batches[-1].number if query.batches else -1
    done = -1 if query.committed is None else query.committed
    if not done <= log.newest <= begun:
        what = (
            f"the log of files in {log.folder} ends with batch {log.newest}, and {query.name} has committed batch {done} "
            f"and begun batch {begun}"
        )
        hint = "declare who writes the folder; if it was written with another checkpoint before, leave it out and mend it by hand"
        raise CheckpointDamaged(what, hint=hint)


def copy_sink_log(log: Path, batch: int, target: Path) -> None:
    """The log as of a batch, into a folder that is there. Spark never writes into a file of it, so files are linked."""
    for number, _, path in ordered(log):
        if number <= batch:
            link_or_copy(path, target / path.name)
            checksum = path.with_name(f".{path.name}.crc")
            if checksum.is_file():
                link_or_copy(checksum, target / checksum.name)


def check_cut(log: SinkLog, batch: int) -> None:
    """Raises `RewindOutOfReach` where `cut_gone` says why."""
    if (why := log.cut_gone(batch)) is not None:
        raise RewindOutOfReach(why, hint="plan again with a later target; nothing was changed")


def below(log: SinkLog, paths: Sequence[str]) -> list[str]:
    """Files of a log by their place below its folder. Raises `RewindUnsupported` for those elsewhere: the folder is a copy."""
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
    """Read a copy, which lies in the sink's folder, and compare. Raises `CheckpointDamaged`."""
    copy = read_sink_log(target)
    wanted = {path for path, number in log.batches.items() if number <= batch}
    if set(copy.batches) != wanted or copy.newest != min(batch, log.newest):
        hint = "the log of the files that were written is damaged: restore it from a backup"
        raise CheckpointDamaged(f"the copy of {log.folder / SINK_LOG} at batch {batch} is not whole", hint=hint)
    return copy
