"""A sink whose target is a list, and one faulty class for each common mistake of sink authors."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import (
    EpochOutput,
    PublishedEpoch,
    PublishReceipt,
    SinkContext,
    StagedEarly,
    StagedFile,
    StagePlan,
)
from spark_ckpt.connector_parts.early_sends import SentEarly
from spark_ckpt.connector_parts.sink_rules import SinkMarker, is_published, marker_of, staged_tables
from spark_ckpt.errors import EpochDamaged, PublishConflict
from spark_ckpt.testing import SinkSubject

Key = tuple[str, str]


@dataclass
class Target:
    """Visible rows, and the markers by store and sink."""

    staging: Path | None = None
    rows: list[dict[str, Any]] = field(default_factory=list)
    markers: dict[Key, SinkMarker] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def renew(self) -> None:
        self.rows, self.markers, self.id = [], {}, uuid.uuid4().hex


class MemorySink:
    """A sink that keeps every promise."""

    sends_early = True
    replaces_rows = True

    def __init__(self, target: Target) -> None:
        self.target = target
        self.open: SentEarly[str] | None = None
        self.open_rows: list[dict[str, Any]] = []

    def check(self, spark: Any, schema: Any) -> None:
        pass

    def stage(self, schema: Any) -> StagePlan:
        return StagePlan(root=None if self.target.staging is None else str(self.target.staging))

    def publisher(self, spark: Any, context: SinkContext) -> MemoryPublisher:
        return MemoryPublisher(self, context)

    def describe(self) -> Mapping[str, str]:
        return {"kind": "memory"}

    def identity(self, spark: Any) -> Mapping[str, str]:
        return {"kind": "memory", "id": self.target.id}

    def newest_published(self, context: SinkContext) -> PublishedEpoch | None:
        marker = self.target.markers.get(self.key(context))
        if marker is None:
            return None
        return PublishedEpoch(Epoch(marker.epoch), Incarnation(marker.incarnation), marker.is_of)

    # -- methods that faulty sinks override ------------------------------------------------------------------------------

    def key(self, context: SinkContext) -> Key:
        return context.store_id, context.sink

    def has(self, marker: SinkMarker | None, output: EpochOutput, context: SinkContext) -> bool:
        return is_published(marker, output, context)

    def dead(self, path: Path, incarnation: int) -> bool:
        """Return True if an earlier incarnation has staged the file."""
        return int(path.name.split("-i")[1].split("-")[0]) < incarnation

    def read(self, output: EpochOutput, context: SinkContext) -> list[dict[str, Any]]:
        return [row for table in staged_tables(output, context) for row in table.to_pylist()]

    def transact(self, output: EpochOutput, context: SinkContext) -> bool:
        with self.target.lock:
            return self.write(output, context)

    def write(self, output: EpochOutput, context: SinkContext) -> bool:
        """Write the epoch; return True if the target already had it."""
        key = self.key(context)
        if self.has(self.target.markers.get(key), output, context):
            return True
        rows = self.read(replace(output, files=self.rest_of(output)), context)
        before = [] if output.replaces else self.target.rows
        self.target.rows = [*before, *self.open_rows, *rows]
        self.drop_early_send()
        self.target.markers[key] = marker_of(output, context)
        return False

    def send_early(self, staged: StagedEarly, context: SinkContext) -> int:
        files = self.rest_of(staged)
        output = EpochOutput(staged.epoch, staged.incarnation, Epoch(0), staged.root, staged.storage_options, files)
        rows = [row for table in staged_tables(output, context) for row in table.to_pylist()]
        self.open = SentEarly(staged.epoch, staged.incarnation, tuple(file.path for file in staged.files))
        self.open_rows += rows
        return len(rows)

    def rest_of(self, output: EpochOutput | StagedEarly) -> Sequence[StagedFile]:
        """Return files that are not sent yet; drop open files that are no part of the epoch."""
        paths = [file.path for file in output.files]
        rest = self.open.rest_of(output.epoch, output.incarnation, paths) if self.open else paths
        if rest is None:
            self.drop_early_send()
            return output.files
        return output.files[len(paths) - len(rest) :]

    def drop_early_send(self) -> None:
        self.open, self.open_rows = None, []


class MergingSink(MemorySink):
    """Keeps every promise, too: it has one row for each id."""

    def write(self, output: EpochOutput, context: SinkContext) -> bool:
        had = super().write(output, context)
        self.target.rows = list({row["id"]: row for row in self.target.rows}.values())
        return had


class MemoryPublisher:
    def __init__(self, sink: MemorySink, context: SinkContext) -> None:
        self.sink = sink
        self.context = context

    def publish(self, output: EpochOutput) -> PublishReceipt:
        replayed = self.sink.transact(output, self.context)
        return PublishReceipt(output.epoch, sum(file.rows for file in output.files), replayed)

    def send_early(self, staged: StagedEarly) -> int:
        return self.sink.send_early(staged, self.context)

    def drop_early_send(self) -> None:
        self.sink.drop_early_send()

    def tidy(self) -> int:
        staging = self.sink.target.staging
        dead = (
            []
            if staging is None
            else [path for path in staging.iterdir() if self.sink.dead(path, self.context.incarnation)]
        )
        for path in dead:
            path.unlink()
        return len(dead)

    def close(self) -> None:
        pass


def subject(sink: type[MemorySink], folder: Path, staging: bool = False) -> SinkSubject:
    target = Target(folder / "staging" if staging else None)
    (folder / "staging").mkdir()
    (folder / "outbox").mkdir()
    return SinkSubject(
        make=lambda: sink(target),
        rows=lambda epoch: pa.table({"id": pa.array(range(epoch * 10, epoch * 10 + 4), pa.int64())}),
        shown=lambda: list(target.rows),
        staged_in=folder / "outbox",
        renew=target.renew,
        secrets=("hunter2",),
    )


# -- faulty sinks ------------------------------------------------------------------------------------------------------


class StagesIntoTheTarget(MemorySink):
    """Rows are visible when they are staged: an aborted epoch would stay."""

    def publisher(self, spark: Any, context: SinkContext) -> MemoryPublisher:
        self.target.rows.append({"id": 0})
        return super().publisher(spark, context)


class LosesTheLastFile(MemorySink):
    def read(self, output: EpochOutput, context: SinkContext) -> list[dict[str, Any]]:
        return super().read(replace(output, files=output.files[:-1]), context)


class HasNoMarker(MemorySink):
    def has(self, marker: SinkMarker | None, output: EpochOutput, context: SinkContext) -> bool:
        return False


class KeepsItsMarkerInTheProcess(MemorySink):
    """The marker is lost with the driver."""

    def __init__(self, target: Target) -> None:
        super().__init__(target)
        self.own: dict[Key, SinkMarker] = {}

    def write(self, output: EpochOutput, context: SinkContext) -> bool:
        self.target.markers = self.own
        return super().write(output, context)


class NamesTheIncarnation(MemorySink):
    """The marker's key has the incarnation, as a transactional id that changes at every start."""

    def key(self, context: SinkContext) -> Key:
        return f"{context.store_id}.{context.incarnation}", context.sink


class ComparesWithTheLastEpochOnly(MemorySink):
    def has(self, marker: SinkMarker | None, output: EpochOutput, context: SinkContext) -> bool:
        return marker is not None and marker.epoch == output.epoch


class TakesAnyMarkerOfBefore(MemorySink):
    """Accepts an older marker."""

    def has(self, marker: SinkMarker | None, output: EpochOutput, context: SinkContext) -> bool:
        return marker is not None and marker.epoch >= output.epoch


class WantsEveryNumber(MemorySink):
    """Takes a gap in the numbers for a loss."""

    def has(self, marker: SinkMarker | None, output: EpochOutput, context: SinkContext) -> bool:
        if marker is not None and output.epoch > marker.epoch + 1:
            raise PublishConflict("an epoch is missing")
        return super().has(marker, output, context)


class SkipsEmptyEpochs(MemorySink):
    """Writes no marker for an epoch without rows, but requires one."""

    def write(self, output: EpochOutput, context: SinkContext) -> bool:
        if not output.files:
            return False
        return super().write(output, context)


class ChecksThenActs(MemorySink):
    """Marker and rows are not in one transaction; a driver that reads while another one writes passes."""

    asked = threading.Barrier(2)

    def write(self, output: EpochOutput, context: SinkContext) -> bool:
        if self.has(self.target.markers.get(self.key(context)), output, context):
            return True
        if context.incarnation < 3:
            self.asked.wait(60)
        self.target.rows += self.read(output, context)
        self.target.markers[self.key(context)] = marker_of(output, context)
        return False

    def transact(self, output: EpochOutput, context: SinkContext) -> bool:
        return self.write(output, context)


class PublishesWhenClosed(MemorySink):
    def publisher(self, spark: Any, context: SinkContext) -> MemoryPublisher:
        publisher = super().publisher(spark, context)
        publisher.close = lambda: self.target.rows.append({"id": 0})  # type: ignore[method-assign]
        return publisher


class SharesItsMarker(MemorySink):
    def key(self, context: SinkContext) -> Key:
        return "", ""


class SharesItsMarkerBetweenStores(MemorySink):
    def key(self, context: SinkContext) -> Key:
        return "", context.sink


class FencesNothing(MemorySink):
    def has(self, marker: SinkMarker | None, output: EpochOutput, context: SinkContext) -> bool:
        return is_published(None if marker is None else replace(marker, incarnation=0), output, context)


class ReadsUnverified(MemorySink):
    """Decodes files without a check of sizes or digests; a missing file has no rows."""

    def read(self, output: EpochOutput, context: SinkContext) -> list[dict[str, Any]]:
        files = [Path(output.root) / file.path for file in output.files]
        rows: list[dict[str, Any]] = []
        for path in files:
            try:
                rows += pq.read_table(path).to_pylist()
            except (OSError, pa.ArrowException):
                continue
        return rows


class WritesBeforeItHasReadEverything(MemorySink):
    def read(self, output: EpochOutput, context: SinkContext) -> list[dict[str, Any]]:
        for table in staged_tables(output, context):
            self.target.rows += table.to_pylist()
        return []


class MarksBeforeItReads(MemorySink):
    def read(self, output: EpochOutput, context: SinkContext) -> list[dict[str, Any]]:
        self.target.markers[self.key(context)] = marker_of(output, context)
        return super().read(output, context)


class CallsDamageAConflict(MemorySink):
    def read(self, output: EpochOutput, context: SinkContext) -> list[dict[str, Any]]:
        try:
            return super().read(output, context)
        except EpochDamaged as error:
            raise PublishConflict(error.what) from error


class ForgetsTheDecision(MemorySink):
    def has(self, marker: SinkMarker | None, output: EpochOutput, context: SinkContext) -> bool:
        return is_published(None if marker is None else replace(marker, decision=""), output, context)


class BelievesAnyMarker(MemorySink):
    """Checks only that the marker is older."""

    def has(self, marker: SinkMarker | None, output: EpochOutput, context: SinkContext) -> bool:
        return marker is not None and marker.epoch >= output.epoch


class KnowsNoDroppedEpochs(MemorySink):
    def has(self, marker: SinkMarker | None, output: EpochOutput, context: SinkContext) -> bool:
        return is_published(marker, replace(output, dropped=()), context)


class KnowsNoBranches(MemorySink):
    def has(self, marker: SinkMarker | None, output: EpochOutput, context: SinkContext) -> bool:
        return is_published(marker, replace(output, diverged=()), context)


class KnowsNoReplacement(MemorySink):
    def has(self, marker: SinkMarker | None, output: EpochOutput, context: SinkContext) -> bool:
        return is_published(marker, replace(output, begun_after=None, previous=output.newest or output.epoch), context)


class KnowsNoReturn(MemorySink):
    def has(self, marker: SinkMarker | None, output: EpochOutput, context: SinkContext) -> bool:
        return is_published(marker, replace(output, begun_after=None), context)


class ShowsEarlySends(MemorySink):
    def send_early(self, staged: StagedEarly, context: SinkContext) -> int:
        sent = super().send_early(staged, context)
        self.target.rows, self.open_rows = [*self.target.rows, *self.open_rows], []
        return sent


class SendsEverythingAgain(MemorySink):
    """The epoch's files are added to those already sent."""

    def rest_of(self, output: EpochOutput | StagedEarly) -> Sequence[StagedFile]:
        super().rest_of(output)
        return output.files


class KeepsAbortedRows(MemorySink):
    def rest_of(self, output: EpochOutput | StagedEarly) -> Sequence[StagedFile]:
        if self.open is not None and self.open.epoch != output.epoch:
            self.open = None
        return super().rest_of(output)


class DropsNothing(MemorySink):
    """Does not check the owner of open rows either."""

    def drop_early_send(self) -> None:
        pass


class SharesOpenRows(MemorySink):
    """Compares only the number of files: a dead driver's open transaction is taken for its successor's own."""

    shared: ClassVar[list[dict[str, Any]]] = []
    counted: ClassVar[list[int]] = []

    def send_early(self, staged: StagedEarly, context: SinkContext) -> int:
        sent = super().send_early(replace(staged, files=staged.files[len(self.counted) :]), context)
        self.shared += self.open_rows
        self.counted += [1] * len(self.open.files if self.open else ())
        self.open_rows = []
        return sent

    def rest_of(self, output: EpochOutput | StagedEarly) -> Sequence[StagedFile]:
        if isinstance(output, EpochOutput):
            self.open_rows, rest = list(self.shared), output.files[len(self.counted) :]
            return rest
        return super().rest_of(output)


class ShowsItsPassword(MemorySink):
    def describe(self) -> Mapping[str, str]:
        return {"kind": "memory", "url": "memory://ada:hunter2@host"}


class ReportsAnOldEpoch(MemorySink):
    def newest_published(self, context: SinkContext) -> PublishedEpoch | None:
        newest = super().newest_published(context)
        return None if newest is None else replace(newest, epoch=Epoch(newest.epoch - 1))


class ReportsOthersEpochs(MemorySink):
    def newest_published(self, context: SinkContext) -> PublishedEpoch | None:
        markers = self.target.markers.values()
        return next(
            (PublishedEpoch(Epoch(each.epoch), Incarnation(each.incarnation), each.is_of) for each in markers), None
        )


class FencesWhenAsked(MemorySink):
    def newest_published(self, context: SinkContext) -> PublishedEpoch | None:
        newest = super().newest_published(context)
        if newest is not None:
            old = self.target.markers[self.key(context)]
            self.target.markers[self.key(context)] = replace(old, incarnation=context.incarnation)
        return newest


class IsAnotherOneAtEveryStart(MemorySink):
    def identity(self, spark: Any) -> Mapping[str, str]:
        return {"kind": "memory", "id": f"{time.monotonic_ns()}"}


class IsKnownByItsNameOnly(MemorySink):
    def identity(self, spark: Any) -> Mapping[str, str]:
        return {"kind": "memory"}


class AppendsWholeResults(MemorySink):
    """Takes a whole result for additional rows."""

    def write(self, output: EpochOutput, context: SinkContext) -> bool:
        return super().write(replace(output, replaces=False), context)


class KeepsRowsOfAnEmptyResult(MemorySink):
    """A whole result without rows replaces nothing."""

    def write(self, output: EpochOutput, context: SinkContext) -> bool:
        return super().write(replace(output, replaces=bool(output.files)), context)


class ReplacesAlways(MemorySink):
    """Takes additional rows for a whole result."""

    def write(self, output: EpochOutput, context: SinkContext) -> bool:
        return super().write(replace(output, replaces=True), context)


class TidiesEverything(MemorySink):
    """Also deletes files that the running driver has staged."""

    def dead(self, path: Path, incarnation: int) -> bool:
        return True


class TidiesNothing(MemorySink):
    def dead(self, path: Path, incarnation: int) -> bool:
        return False
