"""Rollback of a file sink's folder: cut its log at a batch and move files of later batches away.

A reader of the log never meets a missing file: a rollback changes the log first, an undo moves the files first. Files
move into a hidden folder of the sink, so readers without the log do not meet them either.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from spark_ckpt.errors import RewindOutOfReach, RewindStale, RewindUnsupported
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.spark_internals.query_logs import SINK_LOG
from spark_rewind.durable import checksum_of, make_folder, remove_tree, sync_folder, sync_tree, written
from spark_rewind.plan import FolderPlan
from spark_rewind.records import FolderChange
from spark_rewind.replacing import put_in_place, write_mark
from spark_rewind.sink_logs import SinkLog, below, check_cut, check_log_copy, copy_sink_log, read_sink_log
from spark_rewind.stages import PLAN_AGAIN, WOULD_BE_LOST


@dataclass(frozen=True, slots=True)
class Labels:
    """Suffixes of names: `side` of a new log in preparation, `kept` of the old log, `aside` of the folder for files."""

    side: str
    kept: str
    aside: str


def taken_back(plan: FolderPlan, labels: Labels) -> FolderChange:
    """Compute the change of a folder by a plan. Changes nothing.

    Raises `RewindStale`, `RewindOutOfReach`, `RewindUnsupported` (its log names files elsewhere), and the errors of
    reading.
    """
    folder = Path(plan.path)
    log = read_sink_log(folder / SINK_LOG)
    if log.digest != plan.digest:
        what = f"the log of files in {folder} is not as it was planned for; its newest batch is now {log.newest}"
        raise RewindStale(what, hint=PLAN_AGAIN)
    check_cut(log, plan.batch)
    files = sorted(below(log, log.after(plan.batch)))
    # Refused now, since an undo would bring back a log that names a file which nothing can bring back.
    taken = next((each for each in files if not (folder / each).is_file()), None)
    if taken is not None:
        what = f"file {taken} of {folder} is missing: an undo could not restore it"
        raise RewindUnsupported(what, hint="restore the file, or an empty one in its place; nothing was changed")
    return _change(log, plan.batch, folder / SINK_LOG, labels, files)


def brought_back(applied: FolderChange, labels: Labels) -> FolderChange:
    """Compute the change of a folder by an undo. Changes nothing.

    Raises `RewindStale` if the folder was written since the rewind, `RewindOutOfReach` if a moved file is missing.
    """
    folder = Path(applied.path)
    now, before = read_sink_log(folder / SINK_LOG), read_sink_log(Path(applied.kept))
    if now.digest != applied.digest_after:
        what = f"the log of files in {folder} has continued since the rewind: its newest batch is {now.newest}"
        raise RewindStale(what, hint=WOULD_BE_LOST)
    lost = next((each for each in applied.files if not Path(applied.aside, each).is_file()), None)
    what = "" if lost is None else f"file {lost} of {folder} is gone from {applied.aside}"
    # A log that lacks files is a shorter one: its readers would miss the rows of all others.
    if before.digest != applied.digest_before:
        what = f"the log {applied.kept} lacks files, or was changed since the rewind"
    if what:
        raise RewindOutOfReach(what, hint="restore it there, and run the same command again; nothing was changed")
    # The same changes in the other direction: made of the old log, with the files that were moved away.
    change = _change(now, before.newest, Path(applied.kept), labels, applied.files)
    return change.model_copy(update={"aside": applied.aside, "away": False})


def _change(log: SinkLog, batch: int, source: Path, labels: Labels, files: Sequence[str]) -> FolderChange:
    return FolderChange(
        path=str(log.folder),
        newest=log.newest,
        batch=batch,
        source=str(source),
        side=str(log.folder / f"{SINK_LOG}{labels.side}"),
        kept=str(log.folder / f"{SINK_LOG}{labels.kept}"),
        aside=str(log.folder / labels.aside),
        files=list(files),
        away=True,
        digest_before=log.digest,
        digest_after="",
    )


def folders_to_write(change: FolderChange) -> Iterator[Path]:
    """Yield the folders in which names change."""
    yield Path(change.path)
    yield from sorted({Path(change.path, each).parent for each in change.files} - {Path(change.path)})


# -- carried out ---------------------------------------------------------------------------------------------------------


def prepare(change: FolderChange, identity: str) -> FolderChange:
    """Write the new log next to the old one and read it back. Raises `CheckpointDamaged`, `RewindNotPermitted`."""
    log, side = read_sink_log(Path(change.source)), Path(change.side)
    # In the sink's own folder: the exchange needs both names on one file system.
    with written(side):
        side.mkdir()
    make_folder(side, Path(change.path, SINK_LOG))
    copy_sink_log(Path(change.source), change.batch, side)
    write_mark(side, identity, change.kept)
    sync_tree(side)
    return change.model_copy(update={"digest_after": check_log_copy(log, change.batch, side).digest})


def check_unmoved(change: FolderChange) -> None:
    """Check that a folder's log is unchanged since its change was computed. Raises `RewindStale`."""
    if read_sink_log(Path(change.path, SINK_LOG)).digest != change.digest_before:
        raise RewindStale(f"{change.path} was written in the meantime", hint=PLAN_AGAIN)


def publish(change: FolderChange, identity: str) -> None:
    """Replace the log and move the files. Idempotent: a call after a crash completes the earlier one."""
    # the log is never ahead of the files: readers of the log must find each file that it names
    if change.away:
        change_logs(change, identity)
        move(change.files, Path(change.path), Path(change.aside))
    else:
        move(change.files, Path(change.aside), Path(change.path))
        change_logs(change, identity)
        _remove_empty(Path(change.aside))


def clean_up(change: FolderChange) -> None:
    """Remove prepared files. None of them counts."""
    remove_tree(Path(change.side))


def change_logs(change: FolderChange, identity: str) -> None:
    """Swap the sink's log and the prepared one."""
    put_in_place(
        Path(change.path, SINK_LOG), Path(change.side), Path(change.kept), identity, Failpoint.REWIND_LOG_SWAPPED
    )


def move(files: Sequence[str], source: Path, target: Path) -> None:
    """Move files with their checksums.

    A missing file was moved before a crash, or a user deleted it since.
    """
    touched = set[Path]()
    for each in files:
        old, new = source / each, target / each
        with written(new):
            if not new.parent.exists():
                make_folder(new.parent, old.parent)
            # Hadoop reads a file together with its checksum file: both move
            checksum = checksum_of(old)
            if checksum.exists():
                checksum.rename(new.with_name(checksum.name))
            if old.exists():
                old.rename(new)
                touched |= {old.parent, new.parent}
                hit(Failpoint.REWIND_FILE_MOVED)
    for folder in touched:
        sync_folder(folder)


def _remove_empty(folder: Path) -> None:
    # From the bottom up: a folder is empty once the folders in it are gone.
    for root, _, _ in os.walk(folder, topdown=False):
        if not os.listdir(root):  # noqa: PTH208 - whether there is anything
            Path(root).rmdir()
