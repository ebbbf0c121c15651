"""A sink's marker: the application transaction (`txn`) that the commit of the rows carries.

Each (store, sink, engine) has one stable application id. Its version is the epoch, followed by 31 bits of the
manifest's name. These bits tell two epochs of the same number apart: a log that lost its newest entries uses a number
again.

Checkpoints keep application transactions, so neither other commits nor log cleanup hide the marker. Epoch numbers never
repeat in a log, not even after a rollback. RESTORE of the table does not bring back an old marker.

The version omits the incarnation: a zombie and its successor must write the *same* version for an epoch. Otherwise
delta-spark would not skip the second one. The incarnation has its own application id, where an engine can write two.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from deltalake import DeltaTable

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import EpochOutput, SinkContext
from spark_ckpt.errors import Fenced, FormatUnknown, PublishConflict, SinkInvalid

Engine = Literal["deltalake", "spark"]
_DECISION_BITS = 31
_UNDECIDED = "unknown"
"""Text in the table's history for an output without a manifest name: no comparison is possible."""
ENGINES: tuple[Engine, ...] = ("deltalake", "spark")


@dataclass(frozen=True, slots=True)
class TableMarker:
    """The newest epoch whose rows are in the table, and the incarnation that published it; 0 if not recorded.

    `decision` is the fingerprint of the epoch's manifest; 0 if the publish named none.
    """

    epoch: Epoch
    incarnation: Incarnation
    decision: int = 0

    def is_of(self, decision: str) -> bool:
        """Return True if the marker may belong to this manifest: the fingerprints are equal, or one is unknown."""
        return fingerprint(decision) in (0, self.decision) or not self.decision


def fingerprint(decision: str) -> int:
    """Return 31 bits of a manifest's name, never 0; 0 for no name."""
    if not decision:
        return 0
    digest = hashlib.sha256(decision.encode()).digest()
    return int.from_bytes(digest[:8]) % ((1 << _DECISION_BITS) - 1) + 1


def transaction_version(output: EpochOutput) -> int:
    """Return the version of the application transaction for an output: it grows with the epoch."""
    return output.epoch << _DECISION_BITS | fingerprint(output.decision)


def declared_version(epoch: Epoch) -> int:
    """Return the transaction version of an epoch that an operator declares: it fits any manifest."""
    # The lower bits stay 0, a fingerprint that no name has (`is_of`).
    return epoch << _DECISION_BITS


def epoch_in(version: int) -> Epoch:
    """Return the epoch of a transaction version; 0 for the version -1 of a table that was rolled back to before it."""
    return Epoch(max(version, 0) >> _DECISION_BITS)


def application_id(context: SinkContext, engine: Engine) -> str:
    """Return the application id of the transaction. It omits the job's name, which may change."""
    return f"spark-ckpt/{context.store_id}/{context.sink}/{engine}"


def incarnation_id(application: str) -> str:
    """Return the application id that records the publisher's incarnation."""
    return f"{application}/incarnation"


def read_marker(opened: DeltaTable, application: str) -> TableMarker | None:
    """Return the marker of a table, or None before the first publish. Raises `FormatUnknown` for a bare epoch number."""
    version = opened.transaction_version(application)
    # A rollback to before the sink's first epoch writes -1, since a transaction cannot be removed.
    if version is None or version < 0:
        return None
    incarnation = Incarnation(opened.transaction_version(incarnation_id(application)) or 0)
    epoch, decision = version >> _DECISION_BITS, version & (1 << _DECISION_BITS) - 1
    # Format 1 wrote the plain epoch number. Read by this format it would be epoch 0, and every row would come again.
    if version and not epoch:
        raise FormatUnknown.of(f"the marker of table {opened.table_uri}", 1, 2)
    return TableMarker(Epoch(epoch), incarnation, decision)


def check_owner(table: str, opened: DeltaTable, context: SinkContext, engine: Engine) -> None:
    """Raise `SinkInvalid` if this sink has written the table with the other engine.

    Some storages do not exclude the two engines from each other. A marker of one does not guard the other's writes.
    """
    for other in ENGINES:
        if other != engine and read_marker(opened, application_id(context, other)) is not None:
            raise SinkInvalid(
                f"sink {context.sink} has written {table} with engine {other!r}; one engine owns a table",
                hint=f'keep DeltaSink(..., engine="{other}"), or write to another table',
                table=table,
            )


def is_published(marker: TableMarker | None, output: EpochOutput, context: SinkContext) -> bool:
    """Return True if the table has the output already.

    The very first epoch leaves a marker even without rows; later epochs only with rows. So a marker may lag behind
    `previous`, but not behind `rows_before`.

    Raises `Fenced` if a newer incarnation has published. Raises `PublishConflict` in these cases:

    - the marker names an epoch that the log does not know;
    - the marker is missing or too old although the log says that the sink has published.
    """
    if marker is None:
        if output.acked:
            raise _behind(f"epoch {output.acked} is published, but the table has no marker of this sink", 0, context)
        return False
    # Before any comparison: a newer incarnation has epochs that this publisher's view of the log does not have.
    refuse_if_fenced(marker.incarnation, context)
    if output.newest is not None and marker.epoch > output.newest:
        raise _unknown(marker, f"the log has committed none above {output.newest}", context)
    if marker.epoch in output.diverged and output.files:
        raise PublishConflict(
            f"the table says epoch {marker.epoch} is published, which is of another branch than epoch {output.epoch}: "
            "its rows may be missing there",
            hint="restore an epoch that the table has, see `spark-ckpt restore STORE EPOCH`",
            sink=context.sink,
            marker=marker.epoch,
        )
    # An earlier attempt, or a later epoch, has published the rows.
    if marker.epoch >= output.epoch:
        _check_decision(marker, output, context)
        return True
    # The table has lost rows that the log lists as published.
    if marker.epoch < output.rows_before:
        said = f"the rows of epoch {output.rows_before} are published, but the table's newest epoch is {marker.epoch}"
        raise _behind(said, marker.epoch, context)
    # The marker is between the sink's last published epoch and this one, and no restore has dropped it.
    if marker.epoch > max(output.previous, output.begun_after or 0) and marker.epoch not in output.dropped:
        raise _unknown(marker, f"the log committed {output.previous} before {output.epoch}", context)
    return False


def refuse_if_fenced(newest: int, context: SinkContext) -> None:
    """Raise `Fenced` if the newest incarnation of the sink in a table is newer than the publisher's."""
    if newest > context.incarnation:
        raise Fenced(
            f"incarnation {newest} publishes to sink {context.sink}, this one is {context.incarnation}",
            sink=context.sink,
        )


def _unknown(marker: TableMarker, log: str, context: SinkContext) -> PublishConflict:
    """Return the error for a marker of an epoch that the log does not know. `log`: the log's own epochs, as a clause."""
    return PublishConflict(
        f"the table says epoch {marker.epoch} is published, but {log}",
        hint="the store was replaced or cut; publish to a new table, or restore the store",
        sink=context.sink,
        marker=marker.epoch,
    )


def _behind(said: str, marker: int, context: SinkContext) -> PublishConflict:
    return PublishConflict(
        f"the log says that {said}: the table comes from an older backup, or has lost its newest commits",
        hint="bring the table back as it was and start the job again; without that, the start names the other ways to continue",
        sink=context.sink,
        marker=marker,
    )


def _check_decision(marker: TableMarker, output: EpochOutput, context: SinkContext) -> None:
    # The log lost its newest epoch and used the number again: the table has the rows of the lost one.
    if marker.epoch == output.epoch and not marker.is_of(output.decision):
        raise PublishConflict(
            f"epoch {output.epoch} is in the table, but of another commit of that number: the log has lost the first one",
            hint="restore the store's newest log entries, or RESTORE the table and start the job on a new store",
            sink=context.sink,
        )


def commit_metadata(context: SinkContext, output: EpochOutput, engine: Engine) -> Mapping[str, str]:
    """Return the text that DESCRIBE HISTORY shows for a publish."""
    return {
        "userMetadata": f"spark-ckpt job={context.job} sink={context.sink} epoch={output.epoch} "
        f"incarnation={context.incarnation} engine={engine} decision={output.decision or _UNDECIDED} "
        f"application={application_id(context, engine)}"
    }


def fence_metadata(context: SinkContext) -> Mapping[str, str]:
    """Return the text that DESCRIBE HISTORY shows for a commit that only fences older publishers."""
    return {
        "userMetadata": f"spark-ckpt job={context.job} sink={context.sink} incarnation={context.incarnation} "
        "fences older publishers"
    }
