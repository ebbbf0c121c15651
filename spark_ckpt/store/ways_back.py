"""Where a job can go back to: the newest epochs behind one that cannot be published or built on. It does no I/O of its own."""

from __future__ import annotations

from collections.abc import Callable

from spark_ckpt.errors import CkptError, EpochDamaged, PublishConflict
from spark_ckpt.store.log_state import LogState
from spark_ckpt.store.restore import Read, Verify, newest_whole


def way_back(
    error: CkptError | None, sink: str, epoch: int, log_state: Callable[[], LogState], read: Read, verify: Verify
) -> int | None:
    """The newest epoch that can be gone back to from damaged rows of `epoch`: it neither owes nor holds back what is damaged.
    Or from rows that the sink's marker leaves no place for.

    None for errors of another kind. Raises what reading the log raises.
    """
    if isinstance(error, PublishConflict) and error.marker is not None:
        return newest_whole(log_state(), epoch, read, verify)
    if not isinstance(error, EpochDamaged) or not error.is_of_a_file:
        return None
    output = read(epoch).outputs.get(sink)
    paths = [file.path for file in output.files] if output else []
    named = [path for path in paths if path in error.what]
    return newest_whole(log_state(), epoch, read, verify, frozenset(named or paths))
