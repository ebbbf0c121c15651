"""Recovery advice: the newest epoch that a job can restore if one epoch can be neither published nor built on.

It does no I/O of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.restore import (
    Choice,
    Read,
    RestoreTarget,
    Verify,
    choose,
    newest_whole,
    no_check,
    whole_epochs,
)
from spark_ckpt.errors import CkptError, EpochDamaged, IdentityChanged, PublishConflict, RowsRefused


def choice_unseen(log_state: LogState, target: RestoreTarget, read: Read, verify: Verify) -> Choice:
    """Return the epoch that `target` means, by the log alone.

    Files are read only for an epoch that an error recommends.

    Raises as `choose`.
    """
    return choose(log_state, target, read, no_check, whole=verify)


def whole_manifests(log_state: LogState, newest: int, read: Read, verify: Verify) -> Iterator[Manifest]:
    """Yield the restorable epochs of the branch of `newest`, newest first.

    Files are verified when an epoch is requested.
    """
    return (each.base for each in whole_epochs(log_state, newest, read, verify))


def way_back(
    error: CkptError | None, sink: str, epoch: int, log_state: Callable[[], LogState], read: Read, verify: Verify
) -> int | None:
    """Return the epoch to restore if rows of `epoch` are damaged or refused, or if a marker or another endpoint
    blocks it.

    It is the latest restorable one before `epoch` that neither has to publish nor defers a damaged file; 0 means that
    the job starts over.

    - `error`: the error of the publish. For errors of another kind the result is None.
    - `log_state`: function that returns the current state of the log.

    Raises the errors of reading the log.
    """
    if isinstance(error, IdentityChanged) or (isinstance(error, PublishConflict) and error.marker is not None):
        # Another endpoint, or a marker, blocks the whole sink, so no file is at fault.
        paths = frozenset[str]()
    elif isinstance(error, RowsRefused):
        files = _staged(read, sink, epoch)
        # If the error names no file of this epoch, avoid all of its files.
        paths = files & {str(error.context.get("file", ""))} or files
    elif isinstance(error, EpochDamaged) and error.damaged_file:
        files = _staged(read, sink, epoch)
        paths = files & {error.damaged_file} or files
    else:
        return None
    return newest_whole(log_state(), epoch, read, verify, paths)


def _staged(read: Read, sink: str, epoch: int) -> frozenset[str]:
    output = read(epoch).outputs.get(sink)
    return frozenset(file.path for file in output.files) if output else frozenset()
