"""A sink's marker: the application transaction that a table's log keeps for ever with the rows it guards.

One stable application id per (store, sink, engine); its version is the epoch. Epoch numbers never repeat in a log, not
after a rollback either, and RESTORE of the table does not make an old one come back. The number does not contain the
incarnation: whoever publishes an epoch, a zombie or its successor, must leave the *same* version, or delta-spark would
not skip the second one. The incarnation has an application id of its own, where an engine can write two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from deltalake import DeltaTable

from spark_ckpt.connector import EpochOutput, SinkContext
from spark_ckpt.errors import Fenced, PublishConflict, SinkInvalid
from spark_ckpt.protocol.ids import Epoch, Incarnation

Engine = Literal["deltalake", "spark"]
_ENGINES: tuple[Engine, ...] = ("deltalake", "spark")


@dataclass(frozen=True, slots=True)
class Marker:
    """The newest epoch whose rows are in the table, and the incarnation that published it; 0 if not recorded."""

    epoch: Epoch
    incarnation: Incarnation


def application_id(context: SinkContext, engine: Engine) -> str:
    """The transaction's application id; it does not contain the job's name, which may change."""
    return f"spark-ckpt/{context.store_id}/{context.sink}/{engine}"


def incarnation_id(application: str) -> str:
    """The application id under which the publisher's incarnation is recorded."""
    return f"{application}/incarnation"


def read_marker(opened: DeltaTable, application: str) -> Marker | None:
    """The marker in a table, None before the first publish."""
    epoch = opened.transaction_version(application)
    if epoch is None:
        return None
    return Marker(Epoch(epoch), Incarnation(opened.transaction_version(incarnation_id(application)) or 0))


def check_owner(table: str, opened: DeltaTable, context: SinkContext, engine: Engine) -> None:
    """Raise `SinkInvalid` if this sink has written the table with the other engine.

    The two are not mutually exclusive on every storage, and a marker of one does not guard the writes of the
    other.
    """
    for other in _ENGINES:
        if other != engine and read_marker(opened, application_id(context, other)) is not None:
            raise SinkInvalid(
                f"sink {context.sink} has written {table} with engine {other!r}; one engine owns a table",
                hint=f'keep DeltaSink(..., engine="{other}"), or write to another table',
                table=table,
            )


def is_published(marker: Marker | None, output: EpochOutput, context: SinkContext) -> bool:
    """Whether the table has the output already.

    The first epoch of all leaves a marker even without rows, later ones only with rows: a marker may lag behind
    `previous`, but once there it stays. Raises `Fenced` if a newer incarnation has published; `PublishConflict`
    if the marker names an epoch that the log does not know, or is absent although the log says that the sink
    has published.
    """
    if marker is None:
        if output.acked:
            raise PublishConflict(
                f"the log says that epoch {output.acked} is published, but the table has no marker of this sink",
                hint="the table was dropped and created anew: restore it, or start the job on a new store",
                sink=context.sink,
            )
        return False
    if marker.incarnation > context.incarnation:
        raise Fenced(
            f"incarnation {marker.incarnation} publishes to sink {context.sink}, this one is {context.incarnation}",
            sink=context.sink,
        )
    if output.newest is not None and marker.epoch > output.newest:
        raise PublishConflict(
            f"the table says epoch {marker.epoch} is published, but the log has decided none above {output.newest}",
            hint="the store was replaced or cut; publish to a new table, or restore the store",
            sink=context.sink,
        )
    if marker.epoch >= output.epoch:
        return True
    if marker.epoch > output.previous and marker.epoch not in output.dropped:
        raise PublishConflict(
            f"the table says epoch {marker.epoch} is published, but the log decided {output.previous} "
            f"before {output.epoch}",
            hint="the store was replaced or cut; publish to a new table, or restore the store",
            sink=context.sink,
        )
    return False


def commit_metadata(context: SinkContext, output: EpochOutput, engine: Engine) -> Mapping[str, str]:
    """What DESCRIBE HISTORY shows of a publish."""
    return {
        "userMetadata": f"spark-ckpt job={context.job} sink={context.sink} epoch={output.epoch} "
        f"incarnation={context.incarnation} engine={engine}"
    }
