"""The publisher of a Kafka sink: splits the files of an epoch into shards, publishes them in parallel, and retries."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace

from checkpoint_protocols.ids import Epoch
from spark_ckpt.connector import EpochOutput, Json, PublishReceipt, StagedEarly, StagedFile
from spark_ckpt.errors import CkptError, EpochDamaged, Fenced, PublishFailed, RowsRefused
from spark_ckpt_kafka.producer import ProducerFailed
from spark_ckpt_kafka.publisher_process import PublisherProcess
from spark_ckpt_kafka.publishing import ShardRequest, ShardResult, ShardSettings
from spark_ckpt_kafka.rows import StagedPart

_log = logging.getLogger(__name__)
# It exceeds INIT_TIMEOUT_S and COMMIT_TIMEOUT_S (30 s each), so that no client is killed that waits within its
# limits.
STALL_MARGIN_S = 35.0
LEAST_BATCH_BYTES = 256
"""Smallest batch size in bytes: one record. A topic that refuses such a batch accepts hardly any record."""
MAX_FENCINGS = 4
"""Number of fencings in a row, with pauses, that ends a publish: another driver keeps using the transactional id."""


@dataclass(frozen=True, slots=True)
class PublishPatience:
    """Time limits of one `publish`, in seconds. Pauses between attempts double, with jitter.

    `stall_s`: a publisher process that is silent for so long is killed. None means the sink's delivery timeout plus a
    margin, longer than any single wait of a client.
    """

    total_s: float = 120.0
    first_pause_s: float = 0.05
    longest_pause_s: float = 2.0
    stall_s: float | None = None

    def within(self, publish_within_s: float | None) -> PublishPatience:
        """Return limits of half of `publish_within_s`, so that a job that waits so long learns why a publish failed."""
        if publish_within_s is None:
            return self
        stall_s = publish_within_s / 2 if self.stall_s is None else min(self.stall_s, publish_within_s / 2)
        return replace(self, total_s=min(self.total_s, publish_within_s / 2), stall_s=stall_s)


class KafkaPublisher:
    """Publisher of a Kafka sink in one incarnation. `settings` belong to shard 0; other shards differ in their
    number only. `process` creates the handle of a shard's process.
    """

    def __init__(
        self,
        settings: ShardSettings,
        lanes: int,
        incarnation: int,
        patience: PublishPatience | None = None,
        process: Callable[[ShardSettings, float], PublisherProcess] = PublisherProcess,
    ) -> None:
        self._settings = settings
        self._incarnation = incarnation
        self._lanes = lanes
        self._patience = patience or PublishPatience()
        self._new_process = process
        self._processes: dict[int, PublisherProcess] = {}
        self._given_up = threading.Event()
        self._starting = threading.Lock()
        # The processes start now: 0.5 s of imports and the init are over when the first epoch commits.
        for lane in range(lanes):
            self._running(lane)

    def publish(self, output: EpochOutput) -> PublishReceipt:
        """Publish every shard of the epoch. Shards that the sink already has answer at once.

        Raises `Fenced`, `EpochDamaged`, `RowsRefused`, `PublishFailed` or another `CkptError`.
        """
        requests = requests_of(output, self._lanes, self._incarnation)
        # Without the gate one shard could publish an epoch of which another shard has a damaged file. The restore of
        # an older epoch would repeat its rows.
        gate = Gate(len(requests))
        # A thread for each shard: with fewer, those that wait at the gate would keep the last one from arriving there.
        # The block ends when every shard has ended, so that none publishes on after `publish` has raised.
        with ThreadPoolExecutor(len(requests), thread_name_prefix="ckpt-kafka-lane") as pool:
            running = [pool.submit(self._publish_lane, lane, request, gate) for lane, request in enumerate(requests)]
        done = _results(running)
        return PublishReceipt(
            epoch=output.epoch,
            rows=sum(request.rows for request in requests),
            replayed=all(one.replayed for one in done),
            detail={"lanes": len(requests), "parts_ms": slowest_ms(done)},
        )

    def send_early(self, staged: StagedEarly) -> int:
        """Send rows into the open transactions of the shards (early send), and return their number.

        The transactions stay open. Raises `PublishFailed`, or another `CkptError`.
        """
        # A shard without files opens no transaction, which would only have to be aborted or refreshed.
        requests = [each for each in early_requests(staged, self._lanes, self._incarnation) if each[1].parts]
        if not requests:
            return 0
        with ThreadPoolExecutor(len(requests), thread_name_prefix="ckpt-kafka-early") as pool:
            running = [pool.submit(self._send_lane, lane, request) for lane, request in requests]
        return sum(one.result() for one in running)

    def drop_early_send(self) -> None:
        """Abort the early send. A shard that does not answer is killed; the next init aborts its transaction."""
        # One at a time would take `DROP_S` for each hanging shard.
        with ThreadPoolExecutor(len(self._processes) or 1, thread_name_prefix="ckpt-kafka-drop") as pool:
            list(pool.map(_drop, self._processes.values()))

    def close(self) -> None:
        """Kill the publisher processes. The init of the next publisher decides their open transactions."""
        for process in self._processes.values():
            process.close()
        self._processes.clear()

    def give_up(self) -> None:
        """End a running `publish` from another thread, without another attempt."""
        with self._starting:
            self._given_up.set()
        # A copy, because `close` may empty it meanwhile.
        for process in list(self._processes.values()):
            process.kill()

    def pids(self) -> list[int | None]:
        """Return the process ids of the shards, for monitoring and for tests that kill them."""
        return [self._processes[lane].pid for lane in sorted(self._processes)]

    def _process(self, lane: int) -> PublisherProcess:
        if lane not in self._processes:
            self._processes[lane] = self._started(replace(self._settings, lane=lane))
        return self._processes[lane]

    def _running(self, lane: int) -> PublisherProcess:
        """Return the shard's process, started if it does not run. Raises `ProducerFailed` after `give_up`."""
        # Under the lock of `give_up`: a process that starts after it would fence the publisher of the next
        # incarnation.
        with self._starting:
            if self._given_up.is_set():
                raise ProducerFailed("its run has ended")
            process = self._process(lane)
            process.start()
        return process

    def _started(self, settings: ShardSettings) -> PublisherProcess:
        margin_s = settings.tuning.delivery_timeout_ms / 1000 + STALL_MARGIN_S
        return self._new_process(settings, self._patience.stall_s or margin_s)

    def _send_lane(self, lane: int, request: ShardRequest) -> int:
        try:
            # One attempt only: rows that an early send cannot send are sent when their epoch is published.
            return self._running(lane).send_early(request)
        except ProducerFailed as failure:
            raise PublishFailed(
                f"rows of epoch {request.epoch} could not be sent early: {failure.what}",
                hint=failure.hint or "they are sent when the epoch is published; check that the brokers run",
                sink=self._settings.sink,
                lane=lane,
            ) from failure

    def _publish_lane(self, lane: int, request: ShardRequest, gate: Gate) -> ShardResult:
        with gate.leaving(lane):
            return self._persistently(lane, request, gate)

    def _persistently(self, lane: int, request: ShardRequest, gate: Gate) -> ShardResult:
        deadline = time.monotonic() + self._patience.total_s
        pause = self._patience.first_pause_s
        fencings = 0
        while True:
            try:
                return self._running(lane).ask(request, lambda: gate.arrive(lane))
            except ProducerFailed as failure:
                # A single fencing may come from a transaction that timed out at its coordinator. Two drivers fence
                # each other in turns.
                fencings = fencings + 1 if failure.fenced else 0
                if fencings >= MAX_FENCINGS:
                    raise self._fenced(lane, request, failure) from failure
                # Without a pause: the topic answered, so waiting would not help.
                if failure.refusal == "size" and self._smaller_batches(lane):
                    continue
                if time.monotonic() + pause > deadline or self._given_up.is_set():
                    raise self._failed(lane, request, failure) from failure
                _log.warning("epoch %d, lane %d: another attempt follows: %s", request.epoch, lane, failure.what)
            # Jitter keeps two drivers that fence each other from doing so in step.
            # Not `sleep`: `give_up` ends the pause.
            self._given_up.wait(pause * random.uniform(0.5, 1.5))  # noqa: S311 - not a secret
            pause = min(pause * 2, self._patience.longest_pause_s)

    def _smaller_batches(self, lane: int) -> bool:
        """Halve the batch size of a shard after its topic refused a batch by size. False at the smallest size."""
        process = self._process(lane)
        tuning = process.settings.tuning
        if tuning.batch_size <= LEAST_BATCH_BYTES:
            return False
        # max.message.bytes was lowered since the start, or the rows name their topics, whose limits are not known at
        # the start.
        smaller = replace(tuning, batch_size=max(LEAST_BATCH_BYTES, tuning.batch_size // 2))
        process.close()
        # A process has one setting for its life, so that a smaller batch needs another process.
        self._processes[lane] = self._started(replace(process.settings, tuning=smaller))
        return True

    def _failed(self, lane: int, request: ShardRequest, failure: ProducerFailed) -> PublishFailed:
        return PublishFailed(
            f"epoch {request.epoch} could not be published to Kafka: {failure.what}",
            hint=failure.hint
            or "it stays staged and is tried again; check that the brokers run, and that this host reaches their "
            "advertised listeners",
            sink=self._settings.sink,
            lane=lane,
        )

    def _fenced(self, lane: int, request: ShardRequest, failure: ProducerFailed) -> Fenced:
        return Fenced(
            f"epoch {request.epoch}: others took the sink over {MAX_FENCINGS} times ({failure.what})",
            hint=(
                f"another driver of this job or a program with transactional id {self._settings.group(lane)} runs, stop one "
                "of them; or transactions time out at the broker: raise transaction.timeout.ms or lanes"
            ),
            sink=self._settings.sink,
            lane=lane,
        )


class Gate:
    """Gate of one epoch. Opens when every shard has arrived or left; stays shut when a shard left because of damage."""

    def __init__(self, lanes: int) -> None:
        self._awaited = set(range(lanes))
        self._damage: EpochDamaged | None = None
        self._changed = threading.Condition()

    def arrive(self, lane: int) -> None:
        """Report that the rows of shard `lane` are verified, and wait until it may publish.

        Raises `PublishFailed` if the rows of another shard are damaged.
        """
        with self._changed:
            # Still absent in a later attempt of the shard: a gate that has opened stays open.
            self._awaited.discard(lane)
            self._changed.notify_all()
            # This needs no timeout: each shard leaves when its own time (`PublishPatience.total_s`) is over.
            self._changed.wait_for(lambda: not self._awaited or self._damage is not None)
            if self._damage is not None:
                raise PublishFailed("rows of another lane are damaged")

    @contextmanager
    def leaving(self, lane: int) -> Iterator[None]:
        """Stop the wait of the other shards for this one when the block ends, with or without an error."""
        try:
            yield
        except EpochDamaged as damage:
            with self._changed:
                # Before the shard leaves, which may open the gate for the others.
                self._damage = damage
            raise
        finally:
            with self._changed:
                self._awaited.discard(lane)
                self._changed.notify_all()


def requests_of(output: EpochOutput, lanes: int, incarnation: int) -> list[ShardRequest]:
    """Return one request for each shard.

    There are as many as the sink has shards, or more if the epoch was staged with more. `incarnation` publishes them.
    """
    # The program may have fewer lanes now than when the epoch was staged. Its files keep their lane: that keeps a
    # key's rows in order.
    count = max([lanes, *(file.lane + 1 for file in output.files)])
    return [
        ShardRequest(
            epoch=output.epoch,
            previous=output.previous,
            incarnation=incarnation,
            dropped=tuple(output.dropped),
            lanes=count,
            root=output.root,
            storage_options=dict(output.storage_options),
            parts=_parts([file for file in output.files if file.lane == lane]),
            newest=output.newest,
            decision=output.decision,
            begun_after=output.begun_after,
            diverged=tuple(output.diverged),
        )
        for lane in range(count)
    ]


def early_requests(staged: StagedEarly, lanes: int, incarnation: int) -> list[tuple[int, ShardRequest]]:
    """Return each shard number with its part of an early send. The marker's fields are empty until the epoch
    commits.
    """
    files = staged.files
    # No previous epoch, no manifest: an early send neither reads nor writes a marker.
    output = EpochOutput(
        staged.epoch, staged.incarnation, Epoch(0), staged.root, staged.storage_options, files, decision=""
    )
    return list(enumerate(requests_of(output, lanes, incarnation)))


def _parts(files: Sequence[StagedFile]) -> list[StagedPart]:
    return [StagedPart(file.path, file.rows, file.size_bytes, file.sha256) for file in files]


def _drop(process: PublisherProcess) -> None:
    try:
        process.drop_early_send()
    except (ProducerFailed, CkptError):
        process.close()


def slowest_ms(lanes: Sequence[ShardResult]) -> dict[str, Json]:
    """Return the longest time of each part over all shards, in ms: shards work in parallel."""
    names = dict.fromkeys(name for lane in lanes for name in lane.parts_ms)
    return {name: max(lane.parts_ms.get(name, 0) for lane in lanes) for name in names}


def _results(lanes: Sequence[Future[ShardResult]]) -> list[ShardResult]:
    """Return the results of the shards, or raise the most important error.

    The order is: damage, a record that the topic never accepts, then the first error. The first two name the shards
    that have published the epoch, because a restore would publish it there twice.
    """
    errors = [error for lane in lanes if (error := lane.exception()) is not None]
    # Otherwise the outage of another shard would hide an error that never passes, and the job would try for ever.
    for kind in (EpochDamaged, RowsRefused):
        final = next((error for error in errors if isinstance(error, kind)), None)
        if final is not None:
            had = [number for number, lane in enumerate(lanes) if lane.exception() is None]
            if had:
                final.context["published_lanes"] = ", ".join(map(str, had))
            raise final
    return [lane.result() for lane in lanes]
