"""One HTML file about the current state of a store: to attach, to keep, to read without access to the store."""

from __future__ import annotations

from spark_ckpt.connector import Json
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.errors import CkptError
from spark_ckpt.observability.page.drawn import drawn
from spark_ckpt.observability.page.facts import epoch_of, facts_of
from spark_ckpt.observability.page.going_back import going_back
from spark_ckpt.store.store import Store

MOST_CLOSELY = 100
"""Number of newest epochs shown with details, in addition to those with a savepoint."""


def report(store: Store, now_ms: int) -> str:
    """Return self-contained HTML. `now_ms`: Unix time in ms.

    Raises the errors of opening the store, and `EnvironmentUnfit`.
    """
    facts = facts_of(store, now_ms)
    details: dict[str, Json] = {str(epoch): _closely(store, epoch) for epoch in _chosen(store.log.state())}
    return drawn(f"{facts['job']} · spark_ckpt", [{**facts, "details": details}])


def _chosen(log_state: LogState) -> list[int]:
    named = sorted(set(log_state.savepoints.values()) & log_state.by_id.keys())
    return sorted({*named, *(brief.epoch for brief in log_state.epochs[-MOST_CLOSELY:])})


def _closely(store: Store, epoch: int) -> Json:
    try:
        detail: Json = epoch_of(store, epoch)
    except CkptError as error:
        return {"epoch": {"damage": str(error)}, "back": None}
    try:
        return {"epoch": detail, "back": going_back(store, epoch)}
    except CkptError as error:
        return {"epoch": detail, "back": {"damage": str(error)}}
