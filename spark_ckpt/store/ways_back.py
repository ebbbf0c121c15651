"""Where a job can go back to: the newest epochs behind one that cannot be published or built on. It does no I/O of its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from spark_ckpt.errors import CkptError, EpochDamaged, PublishConflict, RowsRefused
from spark_ckpt.store.log_state import LogState
from spark_ckpt.store.records import Manifest
from spark_ckpt.store.restore import (
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


@dataclass(frozen=True, slots=True)
class Ways:
    """`back`: the newest epoch behind one that cannot be published that can be gone back to. It neither owes nor holds back what is
    damaged. `on`: the newest one of the lineage that can be named to go on from. 0: the job begins anew.
    """

    back: int
    on: int


def choice_unseen(log_state: LogState, target: RestoreTarget, read: Read, verify: Verify) -> Choice:
    """The epoch that `target` means, by the log alone: no file is looked at, but those of an epoch that an error names as a way.

    Raises as `choose`.
    """
    return choose(log_state, target, read, no_check, whole=verify)


def whole_manifests(log_state: LogState, newest: int, read: Read, verify: Verify) -> Iterator[Manifest]:
    """What can be gone back to of the lineage of `newest`, newest first. Files are looked at when an epoch is asked for."""
    return (each.base for each in whole_epochs(log_state, newest, read, verify))


def ways_of(
    error: CkptError | None, sink: str, epoch: int, log_state: Callable[[], LogState], read: Read, verify: Verify
) -> Ways | None:
    """From damaged or refused rows of `epoch`, or from a marker in their way; None for errors of another kind.

    Raises what reading the log raises.
    """
    if isinstance(error, PublishConflict) and error.marker is not None:
        paths = frozenset[str]()
    elif isinstance(error, RowsRefused):
        files = _staged(read, sink, epoch)
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
