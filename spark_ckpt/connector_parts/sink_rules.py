"""Rules that most sinks need for publishing: the meaning of a marker for an epoch, and the epoch's verified rows.

For a sink that can write rows and marker in one transaction this is all of exactly-once. In the transaction it reads
the marker, calls `is_published`, and writes the rows and the `marker_of` the output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import pyarrow as pa

from spark_ckpt.connector import EpochOutput, SinkContext
from spark_ckpt.errors import Fenced, PublishConflict

_LOST = "the store was replaced or cut, or the target was; bring back the one that is older, or start the job on a new store"


@dataclass(frozen=True, slots=True)
class SinkMarker:
    """Marker of one sink of one store in a target: the newest epoch, the id of its commit, and the incarnation that
    published it.
    """

    epoch: int
    incarnation: int
    decision: str = ""

    def is_of(self, decision: str) -> bool:
        """Return True if the epoch may belong to the commit of this id. An empty id matches all."""
        return not self.decision or not decision or self.decision == decision


def marker_of(output: EpochOutput, context: SinkContext) -> SinkMarker:
    """Return the marker to write with the output's rows."""
    return SinkMarker(output.epoch, context.incarnation, output.decision)


def is_published(marker: SinkMarker | None, output: EpochOutput, context: SinkContext) -> bool:
    """Return True if the target has the epoch already. If False, the epoch is the next one to publish.

    Every epoch moves the marker, even one without rows. Raises `Fenced` if a newer incarnation has published. Raises
    `PublishConflict` if the marker contradicts the log: publishing would be a guess.
    """
    if marker is not None and marker.incarnation > context.incarnation:
        what = f"incarnation {marker.incarnation} publishes to sink {context.sink}, this one is {context.incarnation}"
        raise Fenced(what, hint="another driver took the job over; stop this one", sink=context.sink)
    at = marker.epoch if marker else 0
    # The log lost its newest epochs: it is an older backup, say.
    if output.newest is not None and at > output.newest:
        raise _conflict(
            f"the target has epoch {at}, the log has committed none above {output.newest}", at, output, context
        )
    # The log lost this epoch and assigned its number again: the target shows other rows under it.
    if marker is not None and at == output.epoch and not marker.is_of(output.decision):
        raise _conflict(
            f"the target has another epoch {at} than the log: its number was given again", at, output, context
        )
    # A higher marker usually means "published". A diverged epoch does not contain these rows.
    if at in output.diverged and output.files:
        raise _conflict(
            f"the target has epoch {at}, which does not descend from it: its rows may be missing there",
            at,
            output,
            context,
        )
    if at >= output.epoch:
        return True
    # An epoch between is missing in the target, or the target has one that the log does not expect.
    if not follows(at, output.previous, output.dropped, output.begun_after):
        found = f"epoch {at}" if at else "no marker"
        raise _conflict(
            f"before it the log has epoch {output.previous} published, the target has {found}", at, output, context
        )
    return False


def follows(published: int, previous: int, dropped: Collection[int], begun_after: int | None) -> bool:
    """Return True if an epoch comes directly after the epoch `published` of a target (0: none is).

    The other parameters are fields of the epoch's `EpochOutput`.
    """
    # A target that is in use again after another one may have an old marker. The epochs after it went to the other
    # target.
    if begun_after is not None and published <= begun_after:
        return True
    return published == previous or (published > previous and published in dropped)


def staged_tables(output: EpochOutput, context: SinkContext) -> Iterator[pa.Table]:
    """Yield the epoch's rows, file by file in publishing order. Each file is verified as a whole before it is decoded.

    Read the last table before committing anything. One file is in memory at a time. Raises `EpochDamaged` for a file
    that is not what was committed, a `StoreOutage` if it cannot be read at present.
    """
    from spark_ckpt.store.location import Location

    place = Location(output.root, dict(output.storage_options))
    for file in output.files:
        yield place.read_committed(file, file.rows, epoch=output.epoch, sink=context.sink)


def _conflict(what: str, at: int, output: EpochOutput, context: SinkContext) -> PublishConflict:
    return PublishConflict(f"epoch {output.epoch}: {what}", hint=_LOST, sink=context.sink, marker=at)
