"""State of each sink in one incarnation: its endpoint, its published epochs and its next output."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from pydantic import JsonValue

from checkpoint_protocols.ids import Epoch, Incarnation
from checkpoint_protocols.machine import ProtocolViolation
from spark_ckpt.connector import EpochOutput
from spark_ckpt.coordination.job_shape import JobShape
from spark_ckpt.coordination.messages import PublishEnded
from spark_ckpt.coordination.way_out import Branches, past_the_marker, with_way_out
from spark_ckpt.epochs.identity import Standing
from spark_ckpt.epochs.records import Manifest, SinkAck
from spark_ckpt.epochs.restore import RecoveryPoint
from spark_ckpt.errors import CkptError


class Publication:
    """Published and unpublished epochs of one incarnation.

    `acked`: per sink, the newest epoch that the log records as published.
    """

    def __init__(self, shape: JobShape, point: RecoveryPoint, standing: Standing, acked: Mapping[str, int]) -> None:
        self._shape = shape
        self._point = point
        self._acked = dict(acked)
        """Newest epoch that each sink has published, as far as this incarnation knows."""
        self._logged = dict(acked)
        """Newest epoch that each sink has published, according to the log."""
        self._acks: list[SinkAck] = []
        self._decided: dict[int, Manifest] = {each.epoch: each for due in point.unpublished.values() for each in due}
        self.standing = standing
        self._errors: dict[str, CkptError] = {}

    @property
    def error(self) -> CkptError | None:
        """Last error of the sink that failed most recently; None if no sink fails."""
        return next(reversed(self._errors.values()), None)

    @property
    def acks(self) -> tuple[SinkAck, ...]:
        """Acknowledgements of sinks that no log row records yet."""
        return tuple(self._acks)

    def decided(self, manifest: Manifest) -> None:
        """Record a committed epoch: its rows are due, and the acknowledgements that it carries are in the log."""
        self._decided[manifest.epoch] = manifest
        self.standing = self.standing.with_sources(manifest.source_identities)
        self.recorded(manifest.acks)

    def recorded(self, acks: Collection[SinkAck]) -> None:
        """Record that these acknowledgements are in the log."""
        self._logged |= {ack.sink: ack.epoch for ack in acks if ack.epoch > self._logged.get(ack.sink, 0)}
        self._acks = [ack for ack in self._acks if ack not in acks]

    def is_first(self, sink: str) -> bool:
        """Return true while the log records no epoch that this sink, with its current endpoint, has published."""
        return not self.standing.published(sink, self._logged.get(sink, 0))[0]

    def published(self, event: PublishEnded) -> dict[str, JsonValue]:
        """Record that a sink has published everything up to the event's epoch; return the details to announce."""
        self._errors.pop(event.sink, None)
        self._acked[event.sink] = event.epoch
        if event.learned is not None:
            self.standing = self.standing.learned(event.sink, event.learned)
        detail: dict[str, JsonValue] = {"sink": event.sink, "rows": event.rows, "replayed": event.replayed}
        self._acks.append(SinkAck(sink=event.sink, epoch=event.epoch, detail=detail))
        return detail

    def failed(self, event: PublishEnded, error: CkptError) -> CkptError:
        """Return the error of a sink that could not publish the epoch, with recovery advice if there is any.

        Raises `ProtocolViolation` if the epoch's manifest was forgotten.
        """
        sink, epoch = event.sink, event.epoch
        manifest, unanswered = self._manifest(epoch), self._unanswered()
        beside, behind = self._point.beside.get(epoch, ()), self._point.behind_passed_over
        others = [each for sinks in (self._acked, unanswered) for name, each in sinks.items() if name != sink]
        branches = Branches(event.on, self._point.passed_over, beside, behind, max(others, default=0))
        error = past_the_marker(error, sink, branches, self._shape.store, event.back)
        error = with_way_out(error, sink, manifest, self._acked, self._shape.store, event.back, unanswered)
        # Removed first, so that the newest error comes last in the dict.
        self._errors.pop(sink, None)
        self._errors[sink] = error
        return error

    def _unanswered(self) -> dict[str, int]:
        """Return the newest unpublished epoch of each sink: it may have published that epoch without an answer."""
        owed: dict[str, int] = {}
        for epoch, manifest in self._decided.items():
            for sink in manifest.outputs:
                if epoch > max(self._acked.get(sink, 0), owed.get(sink, 0)):
                    owed[sink] = epoch
        return owed

    def _manifest(self, epoch: int) -> Manifest:
        """Return the manifest of an epoch that some sink has not published. Raises `ProtocolViolation` if it was
        forgotten.
        """
        manifest = self._decided.get(epoch)
        if manifest is None:
            raise ProtocolViolation(f"the manifest of epoch {epoch} was forgotten while a sink has to publish it")
        return manifest

    def forget(self, owed: Collection[int]) -> None:
        """Forget the manifests that no sink needs. The argument: all epochs that some sink has not published."""
        self._decided = {epoch: manifest for epoch, manifest in self._decided.items() if epoch in owed}

    def holds_back(self, sink: str, epoch: int) -> bool:
        """Return true if the sink's rows of a committed epoch are deferred to a later one."""
        return sink in self._manifest(epoch).held

    def output(self, sink: str, epoch: int, newest: int) -> EpochOutput:
        """Return the rows that the sink must publish for a committed epoch. `newest`: the highest epoch ever
        committed.
        """
        manifest, place = self._manifest(epoch), self._shape.sinks[sink]
        staged = manifest.outputs.get(sink)
        # A sink that replaced another one has none of the epochs published before.
        acked, begun_after = self.standing.published(sink, self._acked.get(sink, 0))
        return EpochOutput(
            epoch=Epoch(manifest.epoch),
            incarnation=Incarnation(self._point.incarnation),
            previous=Epoch(acked),
            root=place.root,
            storage_options=place.storage_options,
            files=[file.staged_file() for file in staged.files] if staged else [],
            acked=Epoch(acked),
            dropped=tuple(Epoch(each) for each in self._point.dropped.get(sink, ())),
            newest=Epoch(newest),
            decision=manifest.attempt,
            begun_after=None if begun_after is None else Epoch(begun_after),
            beside=tuple(Epoch(each) for each in self._point.beside.get(epoch, ())),
            rows_before=self.standing.rows_before(sink, manifest),
        )
