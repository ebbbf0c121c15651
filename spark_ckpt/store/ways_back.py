"""Where a job can go back to: the newest epochs behind one that cannot be published or built on. It does no I/O of its own."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from spark_ckpt.errors import CkptError, EpochDamaged
from spark_ckpt.store.log_state import LogState
from spark_ckpt.store.restore import Read, Verify, checked


def way_back(
    error: CkptError | None, sink: str, epoch: int, log_state: Callable[[], LogState], read: Read, verify: Verify
) -> int | None:
    """The newest epoch that can be gone back to from damaged rows of `epoch`: it neither owes nor holds back what is damaged.

    None for errors of another kind. Raises what reading the log raises.
    """
    if not isinstance(error, EpochDamaged) or not error.is_of_a_file:
        return None
    output = read(epoch).outputs.get(sink)
    paths = [file.path for file in output.files] if output else []
    named = [path for path in paths if path in error.what]
    return newest_whole(log_state(), epoch, read, verify, frozenset(named or paths))


def newest_whole(
    log_state: LogState, epoch: int, read: Read, verify: Verify, damaged: AbstractSet[str] = frozenset()
) -> int:
    """The newest epoch behind `epoch`, on its lineage, that can be restored and neither owes nor holds back a file of `damaged`.

    0 if there is none: the job can begin anew.
    """
    behind = [brief.epoch for brief in log_state.lineage(epoch) if brief.epoch != epoch]
    for older in behind:
        try:
            choice = checked(log_state, older, "", read, verify)
        except EpochDamaged:
            continue
        staged = [choice.base.held, *(each.outputs for due in choice.unpublished.values() for each in due)]
        if not any(file.path in damaged for outputs in staged for each in outputs.values() for file in each.files):
            return older
    return 0
