"""Where a job can go back to: the newest epochs behind one that cannot be published or built on. It does no I/O of its own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from spark_ckpt.errors import CkptError, EpochDamaged, PublishConflict
from spark_ckpt.store.log_state import LogState
from spark_ckpt.store.restore import Read, Verify, newest_whole, whole_at_most


@dataclass(frozen=True, slots=True)
class Ways:
    """`back`: the newest epoch behind one that cannot be published that can be gone back to. It neither owes nor holds back what is
    damaged. `on`: the newest one of the lineage that can be named to go on from. 0: the job begins anew.
    """

    back: int
    on: int


def ways_of(
    error: CkptError | None, sink: str, epoch: int, log_state: Callable[[], LogState], read: Read, verify: Verify
) -> Ways | None:
    """From damaged rows of `epoch`, or from a marker in their way; None for errors of another kind.

    Raises what reading the log raises.
    """
    if isinstance(error, PublishConflict) and error.marker is not None:
        paths = frozenset[str]()
    elif isinstance(error, EpochDamaged) and error.damaged_file:
        output = read(epoch).outputs.get(sink)
        files = frozenset(file.path for file in output.files) if output else frozenset()
        paths = files & {error.damaged_file} or files
    else:
        return None
    now = log_state()
    back = newest_whole(now, epoch, read, verify, paths)
    return Ways(back, whole_at_most(now, now.latest, read, verify, paths))
