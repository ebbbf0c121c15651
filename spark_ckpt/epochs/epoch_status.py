"""Status of a kept epoch, in one word for list, show, page and report. Pure.

| word | meaning |
|---|---|
| `published` | every sink has acknowledged it |
| `publishing` | committed; a driver runs, and an acknowledgement may still be on its way into the log |
| `deferred` | a driver runs, and publishes its rows with a later epoch (`publish_every`) |
| `unpublished` | a sink lacks it: no driver runs, or the acknowledgement is late |
| `abandoned` | not in the current branch: a restore left it |

A driver records an acknowledgement with the next epoch, or with a renewal of its lease. So an epoch that is older than
the lease's term and not acknowledged is late at any interval, on a busy job and on an idle one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import EpochBrief

PUBLISHED, PUBLISHING, DEFERRED = "published", "publishing", "deferred"
UNPUBLISHED, ABANDONED = "unpublished", "abandoned"


def statuses(
    log_state: LogState, now_ms: int, driver_runs: bool, epochs: Iterable[EpochBrief] | None = None
) -> Mapping[int, str]:
    """Return the status of each of `epochs` by its number; default: all kept ones.

    `now_ms`: ms since 1970 UTC. `driver_runs`: the newest driver may run.
    """
    # Across gaps, since thinned epochs of the current branch are not abandoned.
    branch = {brief.epoch for brief in log_state.ancestry()}
    unacked = {sink: set(log_state.unacked(sink)) for sink in log_state.sinks}
    found: dict[int, str] = {}
    for brief in log_state.epochs if epochs is None else epochs:
        if brief.epoch not in branch:
            found[brief.epoch] = ABANDONED
        elif any(brief.epoch in unacked[sink] for sink in brief.sinks):
            late = not driver_runs or now_ms - brief.created_ms > log_state.lease_ms
            found[brief.epoch] = UNPUBLISHED if late else PUBLISHING
        else:
            # The log counts no deferred epoch as unpublished: its sink has the rows once it acknowledged a later one.
            waits = any(brief.epoch > log_state.acked.get(sink, 0) for sink in brief.holds)
            found[brief.epoch] = (DEFERRED if driver_runs else UNPUBLISHED) if waits else PUBLISHED
    return found
