"""What most sinks need to publish: what a marker says about an epoch, and the epoch's rows, verified.

For a sink that can write rows and marker in one transaction this is all of exactly-once: in the transaction read the
marker, ask `is_published`, write the rows and the `marker_of` the output.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_ckpt.connector import EpochOutput, SinkContext
from spark_ckpt.errors import Fenced, PublishConflict

if TYPE_CHECKING:
    import pyarrow as pa

_LOST = "the store was replaced or cut, or the target was; bring back the one that is older, or start the job on a new store"


@dataclass(frozen=True, slots=True)
class SinkMarker:
    """What a target says about one sink of one store: the newest epoch it has, of which decision, published by whom."""

    epoch: int
    incarnation: int
    decision: str = ""

    def is_of(self, decision: str) -> bool:
        """Whether the epoch may be of the decision of this name. An empty name says nothing."""
        return not self.decision or not decision or self.decision == decision


def marker_of(output: EpochOutput, context: SinkContext) -> SinkMarker:
    """The marker to write with the output's rows."""
    return SinkMarker(output.epoch, context.incarnation, output.decision)


def is_published(marker: SinkMarker | None, output: EpochOutput, context: SinkContext) -> bool:
    """Whether the target has the epoch already; if not, it is the next one to publish.

    Every epoch moves the marker, also one without rows. Raises `Fenced` if a newer incarnation has published,
    `PublishConflict` if the marker contradicts the log: then publishing would be a guess.
    """
    if marker is not None and marker.incarnation > context.incarnation:
        what = f"incarnation {marker.incarnation} publishes to sink {context.sink}, this one is {context.incarnation}"
        raise Fenced(what, hint="another driver took the job over; stop this one", sink=context.sink)
    at = marker.epoch if marker else 0
    if output.newest is not None and at > output.newest:
        raise _conflict(
            f"the target has epoch {at}, the log has decided none above {output.newest}", at, output, context
        )
    if marker is not None and at == output.epoch and not marker.is_of(output.decision):
        raise _conflict(
            f"the target has another epoch {at} than the log: its number was given again", at, output, context
        )
    if at in output.beside and output.files:
        raise _conflict(
            f"the target has epoch {at}, which does not stand on it: these rows need not be there", at, output, context
        )
    if at >= output.epoch:
        return True
    if not _follows(at, output):
        found = f"epoch {at}" if at else "no marker"
        raise _conflict(
            f"before it the log has epoch {output.previous} published, the target has {found}", at, output, context
        )
    return False


def staged_tables(output: EpochOutput, context: SinkContext) -> Iterator[pa.Table]:
    """The epoch's rows, file by file in publishing order, each file compared whole before it is decoded.

    Raises `EpochDamaged` for a file that is not what was committed, a `StoreOutage` if it cannot be read for now. Take
    the last table before anything is committed. One file is in memory at a time.
    """
    from spark_ckpt.store.location import Location

    place = Location(output.root, dict(output.storage_options))
    for file in output.files:
        yield place.read_committed(file, file.rows, epoch=output.epoch, sink=context.sink)


def _follows(at: int, output: EpochOutput) -> bool:
    if output.begun_after is not None and at <= output.begun_after:
        return True
    return at == output.previous or (at > output.previous and at in output.dropped)


def _conflict(what: str, at: int, output: EpochOutput, context: SinkContext) -> PublishConflict:
    return PublishConflict(f"epoch {output.epoch}: {what}", hint=_LOST, sink=context.sink, marker=at)
