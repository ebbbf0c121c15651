"""Status of a job in one word with its reason, and the numbers to read first when on call. Pure.

| word | meaning |
|---|---|
| Running | a driver holds the lease and renews it |
| Standby | no driver runs; a standby waits and takes over |
| Stopped | the last driver ended in order, or none has run |
| Waiting for store | an outage of the store ended the last incarnation; the driver tries again |
| Failed | an error ended the job, or its driver sent no sign of life for the term of its lease |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median

from spark_ckpt.connector import Json
from spark_ckpt.epochs.epoch_status import DEFERRED, PUBLISHED, UNPUBLISHED
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.epochs.records import EpochBrief, Kind
from spark_ckpt.epochs.restore import RESTORED_LINE, REWOUND

_OUTAGES = "[CKPT_STORE_"
_IN_ORDER = ("", "stopped", REWOUND)  # "": no reason was recorded
_HOUR_MS = 3_600_000
_RECENT = 20
_LATE = 3
"""Intervals after which a job that has work, but no new epoch, is late."""


def health_of(
    log_state: LogState, statuses: Mapping[int, str], now_ms: int, runs: bool, standbys: int
) -> dict[str, Json]:
    """Return status, freshness, rate, lag, sinks and restarts.

    `statuses`: status of each kept epoch. `now_ms`: Unix time in ms. `runs`: the newest driver may run. `standbys`:
    number of drivers that wait.
    """
    branch = list(log_state.lineage())
    published = next((brief for brief in log_state.ancestry() if statuses[brief.epoch] == PUBLISHED), None)
    word, reason, kind = _status(log_state, runs, standbys)
    interval_ms = _interval_ms(branch)
    lag = branch[0].timings.lag_rows if branch and branch[0].timings else {}
    # An idle job takes no epochs, so an old epoch alone is no sign.
    waits = bool(sum(lag.values())) or UNPUBLISHED in statuses.values()
    # Deferred rows are published at a time of their own, unless an epoch before them waits for its sink.
    in_time = {PUBLISHED} if UNPUBLISHED in statuses.values() else {PUBLISHED, DEFERRED}
    newest = next((brief for brief in log_state.ancestry() if statuses[brief.epoch] in in_time), None)
    # If nothing is published yet, the oldest epoch waits for its sinks.
    newest = newest or (branch[-1] if branch else None)
    age_ms = now_ms - newest.created_ms if newest else 0
    late = runs and waits and interval_ms is not None and age_ms > _LATE * interval_ms
    return {
        "status": word,
        "reason": reason,
        "kind": kind,
        "renewed_ms": log_state.renewed_ms or None,
        "published": published.epoch if published else None,
        "published_ms": published.created_ms if published else None,
        "interval_ms": interval_ms,
        "late": late,
        "lag_rows": sum(lag.values()) if lag else None,
        "rows_per_second": _rate(branch, log_state.kind),
        "sinks": [_sink(log_state, statuses, sink) for sink in log_state.sinks],
        "restarts": _restarts(log_state, now_ms),
    }


def _status(log_state: LogState, runs: bool, standbys: int) -> tuple[str, str, str]:
    last = log_state.incarnations[-1] if log_state.incarnations else None
    if log_state.holder is None or last is None:
        return "Stopped", "it has never run", "warn"
    ended = bool(last.ended_ms) and last.incarnation == log_state.incarnation
    if runs and not ended:
        return "Running", f"incarnation {last.incarnation}", "good"
    # A run that tries again keeps the lease for its next incarnation; one that has lost patience frees it.
    if ended and last.why.startswith(_OUTAGES) and not log_state.is_free:
        return "Waiting for store", last.why, "warn"
    if runs:
        return "Running", f"the next incarnation follows after: {last.why}", "warn"
    if standbys:
        return "Standby", "no driver has the lease; a standby takes over", "warn"
    if ended and last.why.startswith(RESTORED_LINE):
        return "Stopped", f"{last.why}; its lease was freed", ""
    if ended and last.why in _IN_ORDER:
        return "Stopped", "in order; its lease was freed", ""
    if ended:
        return f"Failed: {last.why.partition(']')[0].strip('[')}", last.why, "bad"
    if log_state.is_free:
        return "Stopped", "its lease was freed", ""
    return (
        "Failed: no sign of life",
        "the driver was killed, hangs, or cannot reach the store: its lease is over",
        "warn",
    )


def _interval_ms(branch: Sequence[EpochBrief]) -> int | None:
    """Return the usual time between two epochs; None if there are too few."""
    times = [brief.created_ms for brief in branch[: _RECENT + 1]]  # one more than gaps
    gaps = [newer - older for newer, older in pairwise(times)]
    return round(median(gaps)) if len(gaps) > 1 else None


def _rate(branch: Sequence[EpochBrief], kind: Kind) -> float | None:
    recent = branch[:_RECENT]
    span_ms = recent[0].created_ms - recent[-1].created_ms if recent else 0
    # Newest first: the rows of the oldest one came before the span. An outbox counts no input.
    rows = sum(brief.rows_out if kind == "outbox" else brief.rows_in for brief in recent[:-1])
    return round(rows * 1000 / span_ms, 1) if span_ms > 0 else None


def _sink(log_state: LogState, statuses: Mapping[int, str], sink: str) -> Json:
    unacked = [epoch for epoch in log_state.unacked(sink) if epoch in statuses]
    late = sum(statuses[epoch] == UNPUBLISHED for epoch in unacked)
    return {"name": sink, "published": log_state.acked.get(sink, 0) or None, "waiting": len(unacked), "late": late}


def _restarts(log_state: LogState, now_ms: int) -> int:
    """Return the number of incarnations of the last hour that began after another one."""
    # The log may have forgotten the first incarnation: then the oldest one that it has is a restart, too.
    first = log_state.incarnations[0].incarnation if log_state.incarnations else 0
    return sum(
        each.began_ms > now_ms - _HOUR_MS and (each.incarnation > first or first > 1) for each in log_state.incarnations
    )
