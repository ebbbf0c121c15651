"""A model of a broker's transactions, and publishers of one lane that start and die on it."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from spark_ckpt_kafka.marker import TopicMarker, decode
from spark_ckpt_kafka.options import Connection, Tuning
from spark_ckpt_kafka.producer import ProducerFailed, Progress
from spark_ckpt_kafka.publishing import ShardPublisher, ShardRequest, ShardResult, ShardSettings
from spark_ckpt_kafka.record_batches import Chunk
from spark_ckpt_kafka.rows import StagedPart
from spark_ckpt_kafka.transaction import Clock

from spark_ckpt import failpoints
from spark_ckpt.failpoints import FailpointHit

ROWS = 4


@dataclass
class Log:
    """One transactional id at a broker: its newest producer, its open transaction, its committed records."""

    newest: int = 0
    committed: list[bytes | None] = field(default_factory=list)
    sent: list[bytes | None] = field(default_factory=list)
    aborted: int = 0
    marker: tuple[int, str] | None = None
    lose_next_answer: bool = False
    drop_next_record: bool = False
    before_commit: Callable[[], object] | None = None


class ModelProducer:
    """A producer of the log; fenced as soon as a newer one has initialised."""

    def __init__(self, log: Log) -> None:
        self.log = log
        self.rows: list[bytes | None] = []
        self.marker: tuple[int, str] | None = None

    def init(self) -> None:
        self.log.newest += 1
        self.number = self.log.newest

    def begin(self) -> None:
        self._check()

    def send(self, chunk: Chunk) -> None:
        self._check()
        values = chunk.rows.column("value").to_pylist()
        self.rows += values
        self.log.sent += values

    def add_marker(self, group: str, topic: str, epoch: int, metadata: str) -> None:
        self._check()
        self.marker = (epoch, metadata)

    def deliver(self) -> int:
        self._check()
        if self.log.drop_next_record and self.rows:
            self.log.drop_next_record = False
            self.rows.pop()
        return len(self.rows)

    def commit(self) -> None:
        if (before_commit := self.log.before_commit) is not None:
            self.log.before_commit = None
            before_commit()
        self._check()
        self.log.committed += self.rows
        self.log.marker = self.marker
        if self.log.lose_next_answer:
            self.log.lose_next_answer = False
            raise ProducerFailed("no answer")

    def abort(self) -> None:
        self._check()
        self.log.aborted += 1

    def renew(self) -> ModelProducer:
        return ModelProducer(self.log)

    def close(self) -> None:
        pass

    def _check(self) -> None:
        if self.number != self.log.newest:
            raise ProducerFailed("fenced", fenced=True)


class ModelControl:
    """The marker, and topics that all exist."""

    def __init__(self, log: Log) -> None:
        self.log = log

    def marker(self, group: str, topic: str) -> TopicMarker | None:
        return decode(*self.log.marker, group) if self.log.marker else None

    def partitions(self, topics: object) -> dict[str, list[int]]:
        return {}


class World:
    """A log, staged epochs, and publishers that die."""

    def __init__(self, folder: Path, kind: type[ShardPublisher] = ShardPublisher) -> None:
        self.log = Log()
        self.folder = folder
        self.kind = kind

    def publisher(self, clock: Clock = time.monotonic, progress: Progress = lambda: None) -> ShardPublisher:
        place = Connection("b:1")
        lane = ShardSettings(place, Tuning(), "store", "out", 0, "t", "t", audit_headers=False)
        return self.kind(lane, progress, clock, ModelControl(self.log))  # type: ignore[arg-type]

    def request(self, epoch: int) -> ShardRequest:
        part = self.part(f"{epoch}", [b"%d:%d" % (epoch, row) for row in range(ROWS)])
        return ShardRequest(epoch, epoch - 1, 1, (), 1, str(self.folder), {}, [part])

    def in_parts(self, epoch: int, parts: int) -> ShardRequest:
        """Return the same rows in files of one row each, or the first of them: an epoch's rows come batch by batch."""
        files = [self.part(f"{epoch}-{row}", [b"%d:%d" % (epoch, row)]) for row in range(parts)]
        return replace(self.request(epoch), parts=files)

    def part(self, name: str, values: list[bytes]) -> StagedPart:
        path = self.folder / f"{name}.parquet"
        if not path.exists():
            pq.write_table(pa.table({"value": values}), path)
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return StagedPart(path.name, len(values), path.stat().st_size, digest)

    def attempt(self, epoch: int, dies_at: str | None = None) -> ShardResult | None:
        """Make one attempt in a process; None when it died or must be repeated."""
        failpoints.arm(f"{dies_at}:raise" if dies_at else "")
        try:
            return self.publisher().publish(self.request(epoch))
        except (FailpointHit, ProducerFailed):
            return None
        finally:
            failpoints.arm("")

    def expected(self, epochs: int) -> list[bytes]:
        return [b"%d:%d" % (epoch, row) for epoch in range(1, epochs + 1) for row in range(ROWS)]
