"""Errors for a table that does not accept an epoch for now: `PublishFailed`, with advice for a full or forbidden
disk.
"""

from __future__ import annotations

from checkpoint_protocols.ids import Epoch
from spark_ckpt.connector import SinkContext
from spark_ckpt.errors import PublishFailed
from spark_ckpt.storage_errors import one_line, refusal_in


def publish_failed(table: str, said: str, error: Exception | None, context: SinkContext, epoch: Epoch) -> PublishFailed:
    """Return the error to raise from `error`. `said`: the failure in the words of the library or of this package."""
    refusal = None if error is None else refusal_in(error)
    if refusal is None:
        return PublishFailed(f"{table}: {said}", sink=context.sink, epoch=epoch)
    return PublishFailed(f"{table}: {refusal.meaning}: {said}", sink=context.sink, epoch=epoch, hint=refusal.hint)


def cannot_be_opened(table: str, error: Exception, context: SinkContext) -> PublishFailed:
    """Return the error to raise from `error`, after an attempt to read the table's log."""
    refusal = refusal_in(error)
    hint = refusal.hint if refusal is not None else ""
    return PublishFailed(f"{table} cannot be opened: {one_line(error)}", sink=context.sink, hint=hint)
