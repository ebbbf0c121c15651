"""The restore plan of an epoch as sentences for the page. Changes nothing."""

from __future__ import annotations

from spark_ckpt.connector import Json
from spark_ckpt.epochs.recovery import plan
from spark_ckpt.epochs.recovery_text import sink_lines
from spark_ckpt.store.store import Store
from spark_ckpt.wording import counted, epochs


def going_back(store: Store, epoch: int) -> Json:
    """Return the effects of restoring `epoch`. Verifies every file that the restore needs.

    Raises `EpochNotFound` or `EpochDamaged`, like the restore itself.
    """
    planned = plan(store.log.state(), epoch, store.log.manifest, store.verify)
    state = sum(each.bytes for each in planned.state)
    return {
        "epoch": planned.epoch,
        "call": f"job.start(restore={planned.epoch})",
        "state_bytes": state,
        "lines": [
            f"a new incarnation, {planned.incarnation}, begins; its first epoch is {planned.next_epoch}",
            *([f"{epochs(planned.abandoned)} of the present line will be left behind"] if planned.abandoned else []),
            f"{counted(len(planned.cursors), 'source')} and {counted(len(planned.state), 'operator')} go back to where they stood",
        ],
        "sinks": {sink.sink: list(sink_lines(planned.epoch, sink)) for sink in planned.sinks},
    }
