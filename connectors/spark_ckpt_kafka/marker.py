"""The marker: what a sink's lane has published, written in the same transaction as the rows.

It is the committed offset of a reserved consumer group: the offset is the epoch, its metadata is JSON.
`decide` is the whole logic of exactly-once output: with every older producer fenced the marker is final, so
an epoch is visible if and only if the marker has reached it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import Enum

from spark_ckpt.errors import Fenced, PublishConflict

VERSION = 1


@dataclass(frozen=True, slots=True)
class TopicMarker:
    """What the last committed transaction of a lane published.

    `lanes` is how many lanes that epoch had, `lanes_before` how many the epoch before it had: a lane that
    is new can so be told from a lane whose marker was lost.
    """

    epoch: int
    previous: int
    incarnation: int
    rows: int
    lanes: int
    lanes_before: int
    decision: str = ""
    """Name of the manifest that decided the epoch; empty if an operator wrote the marker."""

    def encode(self) -> str:
        """The metadata text of the offset commit, well below the broker's 4096 bytes."""
        return json.dumps({"v": VERSION} | asdict(self), separators=(",", ":"))


def decode(offset: int, metadata: str, group: str) -> TopicMarker:
    """The marker in a committed offset, or `PublishConflict` when somebody else wrote it."""
    try:
        fields = json.loads(metadata.rstrip("\0"))
        version = fields.pop("v")
        marker = TopicMarker(**fields)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise _foreign(offset, group) from error
    if version != VERSION or marker.epoch != offset:
        raise _foreign(offset, group)
    return marker


@dataclass(frozen=True, slots=True)
class Wanted:
    """The epoch that a lane is to publish, as far as the decision needs it.

    `previous` is the epoch the sink published before, 0 if the log knows none, so that there need not be a
    marker. `dropped` are epochs that a restore left behind: the lane may have published them or not. `begun_after`: the
    topic took the place of another one after that epoch; what it has of the time before does not matter. `beside`: higher epochs
    that do not stand on this one: a lane that has one of them need not have this one's rows.
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
    beside: tuple[int, ...] = ()

    def follows(self, published: int) -> bool:
        """Whether the wanted epoch comes right after the published one (0: nothing was published)."""
        if self.begun_after is not None and published <= self.begun_after:
            return True
        return published == self.previous or (published > self.previous and published in self.dropped)


class Decision(Enum):
    """What to do after reading the marker."""

    PUBLISH = "publish"
    DONE = "done"
    ASK_FIRST_LANE = "ask the first lane's marker whether this lane is new"


def decide(marker: TopicMarker | None, wanted: Wanted) -> Decision:
    """What the lane's marker says about the wanted epoch. Raises when publishing would be a guess."""
    if marker is not None and marker.epoch in wanted.beside:
        raise _beside(marker, wanted)
    if marker is not None and marker.epoch >= wanted.epoch:
        _check_decided(marker, wanted)
        return Decision.DONE
    if marker is not None:
        _check_incarnation(marker, wanted)
    if wanted.follows(marker.epoch if marker else 0):
        return Decision.PUBLISH
    if wanted.lane > 0:
        return Decision.ASK_FIRST_LANE
    raise contradiction(marker, wanted)


def _beside(marker: TopicMarker, wanted: Wanted) -> PublishConflict:
    return PublishConflict(
        f"the marker says epoch {marker.epoch}, which does not stand on epoch {wanted.epoch}: these rows need not be there",
        hint="go back to an epoch that the topic has, see `spark-ckpt restore STORE EPOCH --dry-run`",
        group=wanted.group,
        lane=wanted.lane,
        marker=marker.epoch,
    )


def _check_decided(marker: TopicMarker, wanted: Wanted) -> None:
    """A marker above everything the log decided is another store's, or the log lost epochs.

    So is one of the same number under another decision: the log lost its newest epoch and gave the number again.
    """
    if marker.epoch == wanted.epoch and marker.decision and wanted.decision and marker.decision != wanted.decision:
        raise PublishConflict(
            f"epoch {wanted.epoch} is published, but for another decision of that number: the log has lost the first one",
            hint="restore the store's newest log entries, or publish to a new topic from an epoch both agree on",
            group=wanted.group,
            lane=wanted.lane,
        )
    if wanted.newest is None or marker.epoch <= wanted.newest:
        return
    _check_incarnation(marker, wanted)
    raise PublishConflict(
        f"the marker says epoch {marker.epoch}, but the log has decided none above {wanted.newest}",
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
    """Whether the previous epoch had fewer lanes than this one's number, by the marker of lane 0."""
    if first is None:
        return False
    if wanted.follows(first.epoch):
        return first.lanes <= wanted.lane
    return first.epoch == wanted.epoch and first.lanes_before <= wanted.lane


def contradiction(marker: TopicMarker | None, wanted: Wanted) -> PublishConflict:
    """The error for a marker that is neither the previous epoch's nor this one's."""
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
