"""Recovery advice: the newest epochs that a job can restore if one epoch can be neither published nor built on.

It does no I/O of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
    whole_at_most,
    whole_epochs,
)
from spark_ckpt.errors import CkptError, EpochDamaged, PublishConflict, RowsRefused


@dataclass(frozen=True, slots=True)
class Ways:
    """Epochs that recovery advice names. 0 means that the job starts over.

    - `back`: the latest restorable epoch before the one that cannot be published. It neither has to publish nor defers
      a damaged file.
    - `on`: the newest epoch of the current branch that a restore can name to continue from.
    """

    back: int
    on: int


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


def ways_of(
    error: CkptError | None, sink: str, epoch: int, log_state: Callable[[], LogState], read: Read, verify: Verify
) -> Ways | None:
    """Return the recovery advice for damaged or refused rows of `epoch`, or for a marker that blocks it.

    - `error`: the error of the publish. For errors of another kind the result is None.
    - `log_state`: function that returns the current state of the log.

    Raises the errors of reading the log.
    """
    if isinstance(error, PublishConflict) and error.marker is not None:
        # A marker blocks the whole sink, so no file is at fault.
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
    now = log_state()
    back = newest_whole(now, epoch, read, verify, paths)
    return Ways(back, whole_at_most(now, now.latest, read, verify, paths))


def _staged(read: Read, sink: str, epoch: int) -> frozenset[str]:
    output = read(epoch).outputs.get(sink)
    return frozenset(file.path for file in output.files) if output else frozenset()
