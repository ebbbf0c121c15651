"""State of each sink in one incarnation: its endpoint, its published and unpublished epochs, its next output. Pure.

Deferred rows. A sink with `publish_every` gets the rows of several epochs in one publish. The manifest names their
files, like rows in flight on an edge. An incarnation that continues from the epoch publishes them with a later epoch,
before its own rows. So a sink must publish an epoch if the epoch has an output for it, and the output contains
everything since the previous one.

Released epochs. A stage of a program with one decision of all stages commits epochs that its sinks may not publish yet.
They wait until the host releases them, and delay no barrier. An incarnation that ends leaves them to the next one.

Early sends. Rows go to a sink before their epoch commits, so that only the sink's commit waits for the log. Only the
rows of the oldest uncommitted epoch are sent, because a transaction holds one epoch; a sink with an unpublished epoch
gets none. The sink gets a copy of the staged rows and decides at its publish if it can use them. So exactly-once does
not depend on early sends. At most one runs at a sink at a time, so that a publish waits only for its own rows.

Acknowledgements. The manifest of the next epoch carries them, so that an epoch costs one append to the log. Two kinds
do not wait for it:

1. The first acknowledgement of a sink. Until the log holds one, a restart reads a missing marker as "nothing was
   published" and publishes every epoch. If the marker expired meanwhile, the sink would get those rows twice.
2. An acknowledgement that no epoch carried for `ack_wait_ms`, while no epoch is open. Its row renews the lease, so it
   takes the place of a renewal and costs no request more.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from checkpoint_protocols.ids import Epoch, Incarnation, SinkId
from checkpoint_protocols.machine import Effect, ProtocolViolation
from spark_ckpt.connector import EpochOutput, StagedEarly, StagedFile
from spark_ckpt.coordination.job_shape import JobShape, SinkPlace
from spark_ckpt.coordination.messages import (
    AcksDue,
    ArmTimer,
    DropEarlySend,
    EarlySendEnded,
    PublishEnded,
    RecordAcks,
    SendEarly,
)
from spark_ckpt.epochs.epoch_output import epoch_output
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import Manifest, Reason, SinkAck, StagedOutput
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.epochs.ways_back import past_the_marker, with_recovery_advice
from spark_ckpt.errors import CkptError

Outputs = Mapping[str, StagedOutput]
"""Staged output by sink."""


class DeferredRows:
    """Deferred rows of one incarnation.

    Its first epoch publishes everything: no clock tells when the previous incarnation published last.
    """

    def __init__(self, sinks: Mapping[str, SinkPlace], base: Manifest) -> None:
        self._every_ms = {name: place.publish_every_ms for name, place in sinks.items()}
        self._due_ms = dict.fromkeys(sinks, -math.inf)
        self.held: Outputs = base.held

    def divided(
        self, staged: Outputs, reason: Reason, now_ms: float
    ) -> tuple[dict[str, StagedOutput], dict[str, StagedOutput]]:
        """Split an epoch's rows into outputs to publish now and rows to defer, both by sink.

        `staged`: rows of every sink since the previous epoch. `reason`: what triggered the epoch. Two kinds of epochs
        defer rows: those that the interval triggered, and initial ones, which only pin the start of new sources. A
        savepoint or a final epoch publishes everything.
        """
        outputs: dict[str, StagedOutput] = {}
        held: dict[str, StagedOutput] = {}
        for sink, own in staged.items():
            whole = _joined(self.held.get(sink), own)
            # An initial epoch has no rows of its own: it only carries earlier deferred rows on.
            waits = bool(whole.files) if reason == "initial" else reason == "interval" and now_ms < self._due_ms[sink]
            (held if waits else outputs)[sink] = whole
        return outputs, held

    def committed(self, manifest: Manifest, now_ms: float) -> None:
        """Apply a committed epoch: the publish interval of each sink in it starts at the commit."""
        self.held = manifest.held
        # An initial epoch publishes no rows, so it does not start the interval.
        if manifest.reason != "initial":
            self._due_ms |= {sink: now_ms + self._every_ms[sink] for sink in manifest.outputs if sink in self._every_ms}

    def in_front(self, sink: str) -> Sequence[StagedFile]:
        """Return the sink's deferred files, which precede its next ones."""
        held = self.held.get(sink)
        return held.files if held else ()

    def due_in_ms(self, now_ms: float) -> float | None:
        """Return the milliseconds until deferred rows are due: 0 if they are due now, None if there are none."""
        # A whole result without rows is due as well: the sink is to become empty.
        sinks = [
            sink for sink, output in self.held.items() if (output.files or output.replaces) and sink in self._due_ms
        ]
        waits = [max(0.0, self._due_ms[sink] - now_ms) for sink in sinks]
        return min(waits, default=None)


def _joined(held: StagedOutput | None, own: StagedOutput) -> StagedOutput:
    # A whole result supersedes the deferred rows before it.
    if held is None or own.replaces:
        return own
    # An epoch without a batch has no whole result of its own, so a deferred one stays what it is.
    whole = {"files": (*held.files, *own.files), "rows": held.rows + own.rows, "replaces": held.replaces}
    return own.model_copy(update=whole)


Files = Mapping[str, Sequence[StagedFile]]
"""Files of one epoch by sink, in publishing order."""


@dataclass(slots=True)
class _Asked:
    """The early sends requested of one sink: number of files, and their epoch.

    `rests`: the last early send failed, and the sink has not published since.
    """

    epoch: int = 0
    files: int = 0
    under_way: bool = False
    rests: bool = False


class EarlySends:
    """Early sends of one incarnation."""

    def __init__(self, sinks: Mapping[str, SinkPlace], incarnation: Incarnation) -> None:
        self._incarnation = incarnation
        self._places = {sink: place for sink, place in sinks.items() if place.is_sent_early}
        self._asked = {sink: _Asked() for sink in self._places}

    @property
    def possible(self) -> bool:
        """True if a sink accepts early sends."""
        return bool(self._asked)

    def due(self, epoch: int, files: Files, behind: Collection[str]) -> list[SendEarly]:
        """Return the early sends of `epoch`, the next one to commit, for its files staged so far.

        `behind`: sinks with an unpublished epoch.
        """
        return [self._send(sink, epoch, files[sink]) for sink in self._ready(epoch, files) if sink not in behind]

    def ended(self, event: EarlySendEnded) -> None:
        """Record the answer to an early send."""
        asked = self._asked[event.sink]
        asked.under_way, asked.rests = False, event.error is not None

    def published(self, sink: str) -> None:
        """Allow early sends to the sink again."""
        if sink in self._asked:
            self._asked[sink].rests = False

    def aborted(self, epoch: int) -> list[DropEarlySend]:
        """Return rollbacks for the sinks that have rows of an aborted epoch: these rows return under another number."""
        # The rows come again with the next epoch. Left in the open transaction, they would be published twice.
        given_up = [sink for sink, asked in self._asked.items() if asked.epoch == epoch]
        for sink in given_up:
            self._asked[sink].epoch = self._asked[sink].files = 0
        return [DropEarlySend(sink) for sink in given_up]

    def _ready(self, epoch: int, files: Files) -> list[str]:
        return [sink for sink, asked in self._asked.items() if _has_more(asked, epoch, files.get(sink, ()))]

    def _send(self, sink: str, epoch: int, files: Sequence[StagedFile]) -> SendEarly:
        asked, place = self._asked[sink], self._places[sink]
        asked.epoch, asked.files, asked.under_way = epoch, len(files), True
        staged = StagedEarly(Epoch(epoch), self._incarnation, place.root, place.storage_options, tuple(files))
        return SendEarly(sink, staged)


def _has_more(asked: _Asked, epoch: int, files: Sequence[StagedFile]) -> bool:
    # After a failure the sink gets early sends again only once a publish has shown that it works.
    if asked.under_way or asked.rests:
        return False
    # Until an epoch commits, files are only added at the end of its list, so their number says which ones are new.
    return len(files) > (asked.files if asked.epoch == epoch else 0)


IsFirst = Callable[[str], bool]
"""Predicate over a sink's name: true while the log records no epoch that this sink has published."""


class AckRecords:
    """Acknowledgements of one incarnation that the log lacks. It arms at most one timer at a time."""

    def __init__(self, shape: JobShape, is_first: IsFirst) -> None:
        self._wait_ms = shape.ack_wait_ms
        self.is_first = is_first
        self._waiting: Sequence[SinkAck] | None = None

    def acknowledged(self, acks: Sequence[SinkAck]) -> list[Effect]:
        """Return the effects after a sink has acknowledged an epoch.

        `acks`: every acknowledgement that no log row records yet.
        """
        # See the module: while the log has none, a restart takes a marker that expired for one that was never written.
        if any(self.is_first(ack.sink) for ack in acks):
            return [RecordAcks(tuple(acks))]
        return self.wait(acks)

    def wait(self, acks: Sequence[SinkAck]) -> list[Effect]:
        """Arm the timer that examines `acks` again after the wait, unless it is armed or there are none.

        Called when the log refused the acknowledgements, and when they can wait for the next epoch.
        """
        if self._waiting is not None or not acks:
            return []
        self._waiting = tuple(acks)
        return [ArmTimer(self._wait_ms, AcksDue())]

    def due(self, acks: Sequence[SinkAck], epoch_opened: bool) -> list[Effect]:
        """Return the effects after the wait is over.

        `acks`: every acknowledgement that no log row records yet. `epoch_opened`: an epoch that will carry them is
        open.
        """
        # A change during the wait means that epochs are still committed: the next one carries these acknowledgements.
        waited, self._waiting = self._waiting == tuple(acks), None
        if any(self.is_first(ack.sink) for ack in acks) or (acks and waited and not epoch_opened):
            return [RecordAcks(tuple(acks))]
        return self.wait(acks)


class Publication:
    """Published and unpublished epochs of one incarnation.

    `acked`: per sink, the newest epoch that the log records as published.
    """

    def __init__(self, shape: JobShape, point: RecoveryPoint, standing: Standing, acked: Mapping[str, int]) -> None:
        self._shape = shape
        self._point = point
        self.standing = standing
        """Endpoints: the tables, topics and folders that the job's names refer to."""
        self.acked = dict(acked)
        """Newest epoch that each sink has published, as far as this incarnation knows."""
        self.logged = dict(acked)
        """Newest epoch that each sink has published, according to the log."""
        self.new_acks: list[SinkAck] = []
        """Acknowledgements of sinks that no log row records yet."""
        self.manifests = {each.epoch: each for due in point.unpublished.values() for each in due}
        """Manifests of the epochs that some sink has not published."""
        self.unpublished = {SinkId(sink): deque[Epoch]() for sink in sorted(shape.sinks)}
        """Committed epochs that each sink has not published, oldest first."""
        for sink, manifests in point.unpublished.items():
            # A sink that replaced another one does not get epochs that were committed before the replacement.
            due = [Epoch(each.epoch) for each in manifests if not standing.is_before(sink, each.epoch)]
            self.unpublished.setdefault(SinkId(sink), deque()).extend(due)
        self.released: int | None = 0 if shape.awaits_lines else None
        """Newest epoch that sinks may publish; None for every committed one."""
        self.attempts = dict.fromkeys(self.unpublished, 0)
        """Number of attempts to publish the oldest unpublished epoch, by sink."""
        self.deferred = DeferredRows(shape.sinks, point.manifest)
        self.early = EarlySends(shape.sinks, Incarnation(point.incarnation))
        self.ack_records = AckRecords(shape, self.is_first)
        self._errors: dict[str, CkptError] = {}

    # -- committed epochs ----------------------------------------------------------------------------------------------

    def committed(self, manifest: Manifest, now_ms: float) -> None:
        """Record a committed epoch: the acknowledgements that it carries are in the log."""
        self.deferred.committed(manifest, now_ms)
        self.manifests[manifest.epoch] = manifest
        self.standing = self.standing.with_sources(manifest.source_identities)
        self.recorded(manifest.acks)

    def append(self, epoch: Epoch) -> list[SinkId]:
        """Add a committed epoch to the backlog of every sink; return the sinks that had none."""
        sinks = sorted(map(SinkId, self._shape.sinks))
        # Read before the epoch is added: a sink with a backlog has a publish under way, whose end requests the next
        # one.
        idle_sinks = [sink for sink in sinks if not self.unpublished[sink]]
        for sink in sinks:
            self.unpublished[sink].append(epoch)
        return idle_sinks

    def behind_by(self, count: int) -> list[str]:
        """Return the sinks with at least `count` unpublished epochs that they may publish."""
        # Epochs that are not released wait for other stages. If they counted, the barrier that decides their line could be
        # held back for them.
        return [sink for sink, epochs in self.unpublished.items() if sum(map(self.may_publish, epochs)) >= count]

    def may_publish(self, epoch: int) -> bool:
        """Return true if a committed epoch is released."""
        return self.released is None or epoch <= self.released

    def release(self, epoch: int) -> list[SinkId]:
        """Release epochs up to `epoch`; return the sinks that waited for it."""
        # The host reads the decision from the logs of all stages again and again; an older reading may arrive late.
        if self.released is None or epoch <= self.released:
            return []
        # A sink whose oldest epoch was released before has a publish under way already.
        waiting = [sink for sink, epochs in self.unpublished.items() if epochs and not self.may_publish(epochs[0])]
        self.released = epoch
        return waiting

    def is_deferred(self, sink: str, epoch: int) -> bool:
        """Return true if the sink's rows of a committed epoch are deferred to a later one."""
        return sink in self._manifest(epoch).held

    def next_output(self, sink: SinkId, newest: Epoch) -> EpochOutput | None:
        """Return the rows of the sink's oldest unpublished epoch, for one more attempt; None if there is none.

        `newest`: the highest epoch ever committed.
        """
        epochs = self.unpublished[sink]
        # All rows of the sink are deferred: nothing of this epoch is left to publish.
        while epochs and self.is_deferred(sink, epochs[0]):
            epochs.popleft()
            self.attempts[sink] = 0
        if not epochs or not self.may_publish(epochs[0]):
            return None
        self.attempts[sink] += 1
        return self.output(sink, epochs[0], newest)

    def output(self, sink: str, epoch: int, newest: int) -> EpochOutput:
        """Return the rows that the sink must publish for a committed epoch. `newest`: the highest epoch ever
        committed.
        """
        manifest, acked = self._manifest(epoch), self.acked.get(sink, 0)
        return epoch_output(manifest, sink, self._shape.sinks[sink], self._point, self.standing, acked, newest)

    def early_sends(self, epoch: int, staged: Files) -> Sequence[Effect]:
        """Return the early sends that are due for `epoch`, the next one to commit. `staged`: its files so far, by
        sink.
        """
        if not self.early.possible:
            return []
        # Rows that an earlier run deferred come first, also if this run defers none.
        files = {sink: [*self.deferred.in_front(sink), *own] for sink, own in staged.items()}
        # A sink with an unpublished epoch has that one's transaction to end first.
        return self.early.due(epoch, files, {sink for sink, epochs in self.unpublished.items() if epochs})

    # -- results -------------------------------------------------------------------------------------------------------

    def published(self, event: PublishEnded) -> dict[str, JsonValue]:
        """Record that a sink has published everything up to the event's epoch; return the details to announce."""
        sink = SinkId(event.sink)
        self._errors.pop(sink, None)
        # A sink publishes in order, so all older epochs are published, too.
        while self.unpublished[sink] and self.unpublished[sink][0] <= event.epoch:
            self.unpublished[sink].popleft()
        self.attempts[sink] = 0
        self.acked[sink] = event.epoch
        if event.learned is not None:
            self.standing = self.standing.learned(sink, event.learned)
        self.early.published(sink)
        detail: dict[str, JsonValue] = {"sink": sink, "rows": event.rows, "replayed": event.replayed}
        # A driver that dies before the log has it publishes the epoch again: the sink answers by its marker that it has
        # the rows.
        self.new_acks.append(SinkAck(sink=sink, epoch=event.epoch, detail=detail))
        return detail

    def failed(self, event: PublishEnded, error: CkptError) -> CkptError:
        """Return the error of a sink that could not publish the epoch, with recovery advice if there is any.

        Raises `ProtocolViolation` if the epoch's manifest was forgotten.
        """
        sink, epoch = event.sink, event.epoch
        manifest, unanswered = self._manifest(epoch), self.unanswered()
        error = past_the_marker(error, sink, self._point.diverged.get(epoch, ()), event.back)
        error = with_recovery_advice(error, sink, manifest, self.acked, self._shape.store, event.back, unanswered)
        # Removed first, so that the newest error comes last in the dict.
        self._errors.pop(sink, None)
        self._errors[sink] = error
        return error

    @property
    def error(self) -> CkptError | None:
        """Last error of the sink that failed most recently; None if no sink fails."""
        return next(reversed(self._errors.values()), None)

    def unanswered(self) -> dict[str, int]:
        """Return the newest unpublished epoch of each sink: it may have published that epoch without an answer."""
        newest: dict[str, int] = {}
        for epoch, manifest in self.manifests.items():
            for sink in manifest.outputs:
                # Only the newest is named, since a sink publishes in order.
                if epoch > max(self.acked.get(sink, 0), newest.get(sink, 0)):
                    newest[sink] = epoch
        return newest

    def _manifest(self, epoch: int) -> Manifest:
        """Return the manifest of an epoch that some sink has not published. Raises `ProtocolViolation` if it was
        forgotten.
        """
        manifest = self.manifests.get(epoch)
        if manifest is None:
            raise ProtocolViolation(f"the manifest of epoch {epoch} was forgotten while a sink has to publish it")
        return manifest

    def forget(self) -> None:
        """Forget the manifests that no sink needs."""
        needed = {epoch for epochs in self.unpublished.values() for epoch in epochs}
        self.manifests = {epoch: manifest for epoch, manifest in self.manifests.items() if epoch in needed}

    # -- acknowledgements ----------------------------------------------------------------------------------------------

    @property
    def acks(self) -> tuple[SinkAck, ...]:
        """Acknowledgements of sinks that no log row records yet."""
        return tuple(self.new_acks)

    def is_first(self, sink: str) -> bool:
        """Return true while the log records no epoch that this sink, with its current endpoint, has published."""
        return not self.standing.published(sink, self.logged.get(sink, 0))[0]

    def recorded(self, acks: Collection[SinkAck]) -> None:
        """Record that these acknowledgements are in the log."""
        # An acknowledgement whose own row was slow may be older than one that an epoch has carried since.
        self.logged |= {ack.sink: ack.epoch for ack in acks if ack.epoch > self.logged.get(ack.sink, 0)}
        self.new_acks = [ack for ack in self.new_acks if ack not in acks]
