"""The marker: the newest published epoch of a shard, written in the same transaction as the rows.

The marker is the committed offset of a reserved consumer group: the offset is the epoch, its metadata is JSON. `decide`
holds the whole logic of exactly-once output. Once every older producer is fenced, the marker is final. So an epoch is
visible if and only if the marker has reached it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum

from spark_ckpt.connector_parts.sink_rules import follows
from spark_ckpt.errors import Fenced, PublishConflict

VERSION = 1


@dataclass(frozen=True, slots=True)
class TopicMarker:
    """The epoch that the last committed transaction of a shard published.

    `lanes` is the number of shards of that epoch, `lanes_before` that of the epoch before. They tell a new shard from a
    shard whose marker was lost.
    """

    epoch: int
    previous: int
    incarnation: int
    rows: int
    lanes: int
    lanes_before: int
    decision: str = ""
    """Name of the manifest that committed the epoch; empty if an operator wrote the marker."""

    def encode(self) -> str:
        """Return the metadata text of the offset commit, well below the broker's limit of 4096 bytes."""
        return json.dumps({"v": VERSION} | asdict(self), separators=(",", ":"))


def decode(offset: int, metadata: str, group: str) -> TopicMarker:
    """Return the marker of a committed offset. Raises `PublishConflict` for an offset of another writer."""
    try:
        fields = json.loads(metadata.rstrip("\0"))
        version = fields.pop("v")
        # A field that this version does not know raises, too: a marker that is not understood must stop the sink, and
        # not pass for none.
        marker = TopicMarker(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _foreign(offset, group) from error
    if version != VERSION or marker.epoch != offset:
        raise _foreign(offset, group)
    return marker


@dataclass(frozen=True, slots=True)
class Wanted:
    """The epoch that a shard is to publish, as input of `decide`.

    - `previous`: epoch that the sink published before; 0 if the log knows none, so that a marker is optional.
    - `dropped`: diverged epochs of a restore; the shard may have published them.
    - `newest`: newest committed epoch of the log.
    - `decision`: name of the manifest that committed the epoch.
    - `begun_after`: the topic replaced another one after this epoch. Its older content does not matter.
    - `diverged`: diverged epochs with a higher number. If the marker names one of them, the shard may lack the rows of this
      epoch, so `decide` raises `PublishConflict`.
    """

    group: str
    lane: int
    epoch: int
    previous: int
    incarnation: int
    dropped: tuple[int, ...] = ()
    newest: int | None = None
    decision: str = ""
    begun_after: int | None = None
    diverged: tuple[int, ...] = ()

    def follows(self, published: int) -> bool:
        """Return True if the wanted epoch comes directly after `published` (0: no epoch was published)."""
        return follows(published, self.previous, self.dropped, self.begun_after)


class MarkerDecision(Enum):
    """The next step after reading the marker."""

    PUBLISH = "publish"
    DONE = "done"
    ASK_FIRST_LANE = "ask the first lane's marker whether this lane is new"


def decide(marker: TopicMarker | None, wanted: Wanted) -> MarkerDecision:
    """Return the next step for the wanted epoch, from the shard's marker.

    Raises `PublishConflict` if the marker contradicts the log, and `Fenced` if a newer incarnation has published.
    """
    # This is the first check: such an epoch has a higher number, and the next check would take it for a later one of
    # this branch.
    if marker is not None and marker.epoch in wanted.diverged:
        raise _diverged(marker, wanted)
    # The shard has the epoch already, from an earlier attempt or another driver.
    if marker is not None and marker.epoch >= wanted.epoch:
        _check_decided(marker, wanted)
        return MarkerDecision.DONE
    if marker is not None:
        _check_incarnation(marker, wanted)
    # The marker is at the epoch right before this one: the rows are not there yet, and none are missing.
    if wanted.follows(marker.epoch if marker else 0):
        return MarkerDecision.PUBLISH
    # A new shard has no marker. The first shard's marker tells whether the previous epoch had this shard.
    if wanted.lane > 0:
        return MarkerDecision.ASK_FIRST_LANE
    raise contradiction(marker, wanted)


def _diverged(marker: TopicMarker, wanted: Wanted) -> PublishConflict:
    return PublishConflict(
        f"the marker says epoch {marker.epoch} of another branch than epoch {wanted.epoch}: its rows may be missing there",
        hint="restore an epoch that the topic has, see `spark-ckpt restore STORE EPOCH`",
        group=wanted.group,
        lane=wanted.lane,
        marker=marker.epoch,
    )


def _check_decided(marker: TopicMarker, wanted: Wanted) -> None:
    """Raise `PublishConflict` for a marker above every committed epoch, or of the same number with another manifest.

    In both cases another store wrote the marker, or the log lost its newest epochs and used a number again.
    """
    # A marker without a name was written by `repair set`: the operator has declared the epoch, for any manifest.
    if marker.epoch == wanted.epoch and marker.decision and wanted.decision and marker.decision != wanted.decision:
        raise PublishConflict(
            f"epoch {wanted.epoch} is published, but of another commit of that number: the log has lost the first one",
            hint="restore the store's newest log entries, or publish to a new topic from an epoch both agree on",
            group=wanted.group,
            lane=wanted.lane,
        )
    # `newest` counts diverged epochs, too, and a log never gives a number twice. So a higher marker is of no epoch of
    # this log.
    if wanted.newest is None or marker.epoch <= wanted.newest:
        return
    _check_incarnation(marker, wanted)
    raise PublishConflict(
        f"the marker says epoch {marker.epoch}, but the log has committed none above {wanted.newest}",
        hint="the store was replaced or cut: restore it, or publish to a new topic",
        group=wanted.group,
        lane=wanted.lane,
    )


def _check_incarnation(marker: TopicMarker, wanted: Wanted) -> None:
    if marker.incarnation > wanted.incarnation:
        raise Fenced(
            f"incarnation {marker.incarnation} has published here, this is incarnation {wanted.incarnation}",
            hint="another driver took the job over; stop this one",
            group=wanted.group,
        )


def lane_is_new(first: TopicMarker | None, wanted: Wanted) -> bool:
    """Return True if the previous epoch had too few shards to include this one, by the marker of shard 0."""
    if first is None:
        return False
    if wanted.follows(first.epoch):
        # If the previous epoch had this shard, its marker was lost. Then the shard may have the rows, and is not
        # published. A diverged epoch may have ended between the shards: only the first ones have it then.
        before = first.lanes_before if first.epoch in wanted.dropped else first.lanes
        return min(first.lanes, before) <= wanted.lane
    # Shard 0 was faster and has this epoch already: `lanes_before` is of the epoch before.
    return first.epoch == wanted.epoch and first.lanes_before <= wanted.lane


def contradiction(marker: TopicMarker | None, wanted: Wanted) -> PublishConflict:
    """Return the error for a marker that belongs neither to the previous epoch nor to this one."""
    found = "there is no marker" if marker is None else f"the marker says epoch {marker.epoch}"
    why = (
        "it expired (offsets.retention.minutes after the last publish), or the topic or group was deleted"
        if marker is None
        else "an epoch was published out of order, or an offset of the group was changed by hand"
    )
    return PublishConflict(
        f"epoch {wanted.epoch} follows epoch {wanted.previous} in the log, but {found}: {why}",
        hint=(
            "find out whether the epoch's rows are in the topic, then say so: "
            f"python -m spark_ckpt_kafka.repair --group {wanted.group} --help"
        ),
        group=wanted.group,
        lane=wanted.lane,
        marker=marker.epoch if marker else None,
    )


def _foreign(offset: int, group: str) -> PublishConflict:
    return PublishConflict(
        f"the committed offset {offset} of the reserved group {group!r} was not written by this sink",
        hint="rename the consumer that uses the group, then run python -m spark_ckpt_kafka.repair --help",
        group=group,
    )
