"""Whether a sink has what the log does not know: a log that has lost its end, or one from a backup. Pure."""

from __future__ import annotations

from spark_ckpt.connector import Published
from spark_ckpt.store.log_state import LogState


def beyond(published: Published, log_state: LogState) -> str:
    """What the sink has that the log does not know; empty if nothing."""
    if published.epoch > log_state.last:
        return f"it has epoch {published.epoch}, the log's newest is {log_state.last}"
    if published.incarnation > log_state.incarnation:
        return f"incarnation {published.incarnation} published to it, the log's newest is {log_state.incarnation}"
    known = log_state.by_id.get(published.epoch)
    if known is not None and not published.is_of(known.attempt):
        return (
            f"it has another epoch {published.epoch} than the log, which has lost that one and given its number again"
        )
    return ""
