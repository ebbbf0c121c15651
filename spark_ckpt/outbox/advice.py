"""Advice of errors that jobs have, too, in terms of an outbox: its start, its query, and the batch to rewind to."""

from __future__ import annotations

import re

from spark_ckpt.epochs.identity import CONF_KEYS
from spark_ckpt.epochs.log_state import LogState

_RESTORE = re.compile(r"restore=(\d+)")
# In this order: a later phrase is part of an earlier one.
_TERMS = (
    ("job.start()", "out.start(writer)"),
    ("job.start(", "out.start(writer, "),
    ("because the job produces the rows after it again", "because the query produces the rows after it again"),
    ("start a job whose rows fit", "start a query whose rows fit"),
    ("continue where the job stopped", "continue where the outbox stopped"),
    ("start the job", "start the query"),
    ("the job", "the query"),
    ("a running job then continues by itself", "then start the query again"),
)


def of_outbox(hint: str, log_state: LogState | None = None) -> str:
    """Return the hint of an error with the calls that an outbox has for it.

    `log_state`: names the batches that the query goes back to; None if the log cannot be read.
    """
    said = CONF_KEYS.sub("", hint)
    for ours, theirs in _TERMS:
        said = said.replace(ours, theirs)
    if "restore=EPOCH" in said:
        return f"{said} after the query was rewound to the batch of that epoch: `spark-ckpt rewind plan --outbox STORE`"
    epochs = sorted({int(each) for each in _RESTORE.findall(said)})
    if not epochs or "spark-ckpt rewind" in said:  # the second: the hint leads to a rewind already
        return said
    places = "; ".join(
        f"before a start with restore={epoch}, rewind the query to {place_of(log_state, epoch)}" for epoch in epochs
    )
    return f"{said}; {places}: `spark-ckpt rewind plan --outbox STORE`"


def place_of(log_state: LogState | None, epoch: int) -> str:
    """Return the place in the query that belongs to an epoch."""
    if not epoch:
        return "its beginning"
    brief = log_state.by_id.get(epoch) if log_state is not None else None
    batch = brief.spark_batch if brief is not None else None
    return "the batch of that epoch" if batch is None else f"batch {batch.number}"
