"""Errors for a table that does not accept an epoch: for now, with advice for a full or forbidden disk; or for good,
since it is another table.
"""

from __future__ import annotations

import re

from checkpoint_protocols.ids import Epoch
from spark_ckpt.connector import SinkContext
from spark_ckpt.errors import IdentityChanged, PublishFailed
from spark_ckpt.storage_errors import one_line, refusal_in

_LOG_LACKS_VERSIONS = ("DELTA_STATE_RECOVER_ERROR", "No table metadata or protocol found in delta log")
"""Errors of delta-spark and of deltalake for a log without its first versions, as after a removal of the folder while a
statement wrote to it.
"""

_STRANGE_FEATURE = re.compile("Feature '([^']+)' is not supported")
"""Error of deltalake, which opens the table for both engines."""

INCOMPLETE = (
    "bring the table back from a backup and start the job; or remove the folder, whose log lacks its first versions, so that "
    "the job creates the table"
)


def publish_failed(
    table: str, said: str, error: Exception | None, context: SinkContext, epoch: Epoch
) -> PublishFailed | IdentityChanged:
    """Return the error to raise from `error`. `said`: the failure in the words of the library or of this package."""
    if lacks_versions(said):
        return IdentityChanged(f"{table}: {said}", sink=context.sink, hint=INCOMPLETE)
    refusal = None if error is None else refusal_in(error)
    if refusal is None:
        return PublishFailed(f"{table}: {said}", sink=context.sink, epoch=epoch)
    return PublishFailed(f"{table}: {refusal.meaning}: {said}", sink=context.sink, epoch=epoch, hint=refusal.hint)


def lacks_versions(said: str) -> bool:
    """Return True if the table's log has lost its first versions, so that the table cannot be read."""
    return any(each in said for each in _LOG_LACKS_VERSIONS)


def strange_feature(table: str, said: str) -> str:
    """Return recovery advice for a table with a feature that deltalake cannot open; empty for another error."""
    found = _STRANGE_FEATURE.search(said)
    if found is None:
        return ""
    path = table.replace("`", "``")
    return (
        f"ALTER TABLE delta.`{path}` DROP FEATURE `{found[1]}`; if Delta cannot drop it, give the sink another table and "
        "confirm it with accept_new_sink"
    )


def cannot_be_opened(table: str, error: Exception, context: SinkContext) -> PublishFailed | IdentityChanged:
    """Return the error to raise from `error`, after an attempt to read the table's log."""
    if lacks_versions(str(error)):
        return IdentityChanged(f"{table}: {one_line(error)}", sink=context.sink, hint=INCOMPLETE)
    refusal = refusal_in(error)
    hint = refusal.hint if refusal is not None else strange_feature(table, str(error))
    return PublishFailed(f"{table} cannot be opened: {one_line(error)}", sink=context.sink, hint=hint)


def another_table(table: str, context: SinkContext) -> IdentityChanged:
    """Return the error for a table that was dropped, or replaced by another one of the same name, while the job ran."""
    return IdentityChanged(
        f"{table} was dropped or re-created while the job ran; the rows of earlier epochs are gone",
        hint="bring the table back and start the job",
        sink=context.sink,
    )
