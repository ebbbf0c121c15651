"""A sink under test, and a job that publishes to it: rows are staged by the library's own writer and committed here."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self, cast

from checkpoint_protocols.ids import Epoch, Incarnation
from spark_ckpt.connector import (
    EpochOutput,
    Publisher,
    PublishReceipt,
    Sink,
    SinkContext,
    StagedEarly,
    StagedFile,
    StagePlan,
)
from spark_ckpt.errors import CkptError
from spark_ckpt.store.location import Location
from spark_ckpt.tasks.staging import SinkStage, StageWriter
from spark_ckpt.testing.promises import Row, require_rows

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class SinkSubject:
    """A sink on a fresh, empty target, and access to that target without the sink's code.

    - `make`: creates the sink as a user's program does; called for every new driver.
    - `rows`: the rows of epoch n (n from 1), at least two, of one schema; no two epochs share a row, or a key if the sink
      merges by key.
    - `shown`: every row that a reader of the target sees now. Only the columns of `rows` are compared.
    - `staged_in`: an empty folder for rows of a sink without a place of its own.
    - `spark`: for a sink that uses the session.
    - `fences`: the sink claims to refuse a driver once a newer one has published.
    - `renew`: replaces the target by another, empty one under the same name.
    - `secrets`: texts that must not be shown.
    """

    make: Callable[[], Sink]
    rows: Callable[[int], pa.Table]
    shown: Callable[[], Sequence[Row]]
    staged_in: Path
    spark: SparkSession | None = None
    fences: bool = True
    renew: Callable[[], None] | None = None
    secrets: Sequence[str] = ()

    @property
    def session(self) -> SparkSession:
        """Session that the sink is called with; None for sinks that use none."""
        return cast("SparkSession", self.spark)

    @property
    def schema(self) -> StructType:
        """Schema of the rows."""
        from spark_ckpt.spark_internals.arrow_types import spark_schema_of

        return spark_schema_of(self.rows(1).schema)


class WritingJob:
    """A job with this one sink. Use it as a context manager: publishers are closed at the end."""

    def __init__(self, subject: SinkSubject, sink: str = "out") -> None:
        self._subject = subject
        self._sink = sink
        self._store = str(uuid.uuid4())
        self._open: list[Publisher] = []
        self._batches = 0
        self._expected: list[Row] = []
        self.newest = 0  # highest number that the log has committed
        self.acked = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for publisher in self._open:
            with suppress(CkptError):  # the test has judged the sink; a publisher may be fenced by now
                publisher.close()

    def context(self, incarnation: int = 1) -> SinkContext:
        """Return the identity of an incarnation's publisher."""
        return SinkContext("conformance", self._sink, self._store, Incarnation(incarnation))

    def made(self) -> tuple[Sink, StagePlan]:
        """Create the sink as a start of the job does: check it, then request its stage plan."""
        sink = self._subject.make()
        sink.check(self._subject.session, self._subject.schema)
        return sink, sink.stage(self._subject.schema)

    @cached_property
    def plan(self) -> StagePlan:
        """Stage plan of the first start."""
        return self.made()[1]

    def driver(self, incarnation: int = 1) -> Publisher:
        """Return the publisher of a new driver."""
        sink, _ = self.made()
        publisher = sink.publisher(self._subject.session, self.context(incarnation))
        self._open.append(publisher)
        return publisher

    def close(self, publisher: Publisher) -> None:
        """End a driver. Call it on the thread that opened its publisher."""
        self._open.remove(publisher)
        publisher.close()

    def decided(self, epoch: int, incarnation: int = 1, *, empty: bool = False, **changes: object) -> EpochOutput:
        """Stage the epoch's rows and return its committed output.

        It follows the acknowledged epoch unless `changes` differ.
        """
        plan = self.plan
        self.newest = max(self.newest, epoch)
        output = EpochOutput(
            epoch=Epoch(epoch),
            incarnation=Incarnation(incarnation),
            previous=Epoch(self.acked),
            root=plan.root or str(self._subject.staged_in),
            storage_options=plan.storage_options,
            files=[] if empty else self.staged(epoch, incarnation),
            acked=Epoch(self.acked),
            newest=Epoch(self.newest),
            decision=uuid.uuid4().hex,  # of each commit, as in the log
        )
        return replace(output, **changes)  # type: ignore[arg-type]

    def early(self, output: EpochOutput, count: int | None = None) -> StagedEarly:
        """Return the epoch before its commit: its first `count` files, by default all."""
        files = output.files[:count]
        return StagedEarly(output.epoch, output.incarnation, output.root, output.storage_options, files)

    def staged(self, epoch: int, incarnation: int = 1) -> list[StagedFile]:
        """Stage the epoch's rows as tasks of two batches do. Return the files in publishing order."""
        plan = self.plan
        place = Location(plan.root or str(self._subject.staged_in), dict(plan.storage_options))
        rows = self._subject.rows(epoch)
        # Two batches: the order of files within an epoch is part of the contract.
        half = rows.num_rows // 2
        return [file for part in (rows[:half], rows[half:]) for file in self._batch(part, plan, place, incarnation)]

    def publish(self, publisher: Publisher, output: EpochOutput) -> PublishReceipt:
        """Publish and acknowledge the epoch: the log knows it from now on."""
        receipt = publisher.publish(output)
        self.acked = max(self.acked, output.epoch)
        return receipt

    def expect(self, *epochs: int) -> None:
        """Expect these epochs' rows at the target from now on, once each."""
        self._expected += [row for epoch in epochs for row in self._subject.rows(epoch).to_pylist()]

    def forget(self) -> None:
        """Expect no row of earlier epochs at the target from now on."""
        self._expected.clear()

    def require_shown(self, promise: str, **seen: object) -> None:
        """Require that the target shows the expected rows, and nothing else."""
        require_rows(self._subject.shown(), self._expected, promise, **seen)

    def _batch(self, rows: pa.Table, plan: StagePlan, place: Location, incarnation: int) -> list[StagedFile]:
        self._batches += 1
        with StageWriter(SinkStage(self._sink, plan, place, incarnation), self._batches) as writer:
            writer.write(rows)
            return writer.close()


def texts(identity: Mapping[str, str]) -> dict[str, str]:
    """Return an identity as the runtime records it."""
    return {str(name): str(value) for name, value in identity.items()}
