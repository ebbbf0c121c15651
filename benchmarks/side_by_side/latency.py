"""Time from an input to its output for a reader of committed records, at a rate that every system keeps up with."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import KafkaException, Message, TopicPartition

from benchmarks.side_by_side.oracle import NO_SLOT, Verdict, answered
from benchmarks.side_by_side.pace import paced
from benchmarks.side_by_side.plan import Plan
from benchmarks.side_by_side.sampling import Sampling
from benchmarks.side_by_side.topics import PARTITIONS, Topics, reader
from benchmarks.side_by_side.trial import Failed, Subject, faults, trial
from benchmarks.side_by_side.workloads import Inputs

_LEAST_GRACE_S = 5.0
_GRACE_INTERVALS = 3
_MOST_AT_ONCE = 10_000
NEVER = np.inf


class Receipts(Sampling):
    """A context whose thread reads a target and notes the arrival of each record."""

    def __init__(self, topics: Topics, target: str) -> None:
        self._batches: list[tuple[float, pa.Array]] = []
        self._failure: KafkaException | None = None
        self._consumer = reader(topics.servers, {"fetch.wait.max.ms": 100})
        self._consumer.assign([TopicPartition(target, partition, 0) for partition in range(PARTITIONS)])
        super().__init__("receipts")

    def __exit__(self, *exception: object) -> None:
        super().__exit__(*exception)
        self._consumer.close()

    def _sample(self) -> None:
        """Wait for the first message of a batch; take those that are already there. Messages are not kept: with millions of them
        Python's garbage collector would stop this thread for seconds, which would count as waits of the systems."""
        try:
            while not self._ended.is_set():
                if (first := self._consumer.poll(0.1)) is not None:
                    now = time.time()
                    self._batches.append((now, _values([first, *self._consumer.consume(_MOST_AT_ONCE, timeout=0)])))
        except KafkaException as error:
            self._failure = error

    def by_slot(self, inputs: Inputs) -> np.ndarray:
        """Arrival of the first output of each slot, in seconds since 1970. Raises the reader's error."""
        if self._failure is not None:
            raise self._failure
        came = np.full(len(inputs), NEVER)
        for moment, values in reversed(self._batches):
            slots = answered(values, inputs)
            came[slots[slots != NO_SLOT]] = moment
        return came


@dataclass(frozen=True, eq=False)
class Written:
    """An entry per slot: due time of the input, in seconds since 1970, `NEVER` if it was not written; its position."""

    created: np.ndarray
    partition: np.ndarray
    offset: np.ndarray


@dataclass(frozen=True, eq=False)
class Observed:
    """One trial at a rate: the window, each slot's due time and output time `came`, and the `program_records`."""

    start: float
    stop: float
    seen_until: float
    written: Written
    came: np.ndarray
    verdict: Verdict
    program_records: str


def observe(subject: Subject, workload: str, topics: Topics, folder: Path, plan: Plan) -> Observed:
    """Run a system under a steady load. The source must be new: it is filled meanwhile."""
    writing = paced(topics.servers, subject.source, workload, len(subject.inputs), plan.rate)
    with trial(subject, topics, folder) as one, writing, Receipts(topics, one.target) as receipts:
        one.start()
        one.wait_for_first_record()
        one.rest(plan.latency.warm_up_s)
        start = time.time()
        one.rest(plan.latency.measured_s)
        stop = time.time()
        one.rest(max(_LEAST_GRACE_S, _GRACE_INTERVALS * subject.interval_ms / 1000))
        one.processes.kill()
        seen_until = time.time()
        verdict, _ = one.verdict()
        records = one.program_records()
    came = receipts.by_slot(subject.inputs)
    if not subject.system.every_input:
        came = covered_from(came, subject.inputs)
    return Observed(start, stop, seen_until, written_by_slot(topics, subject), came, verdict, records)


def measure(subject: Subject, workload: str, topics: Topics, folder: Path, plan: Plan) -> dict[str, float]:
    """Return the values of the result line."""
    seen = observe(subject, workload, topics, folder, plan)
    latencies = waits_ms(seen.written.created, seen.came, seen.start, seen.stop, seen.seen_until)
    return {"rate": float(plan.rate), **_percentiles(latencies), **faults(seen.verdict)}


def waits_ms(created: np.ndarray, came: np.ndarray, start: float, stop: float, seen_until: float) -> np.ndarray:
    """Waiting times of the inputs created in the window. An unanswered input has waited at least until `seen_until`."""
    measured = (created >= start) & (created < stop)
    return (np.minimum(came[measured], seen_until) - created[measured]) * 1000


def covered_from(came: np.ndarray, inputs: Inputs) -> np.ndarray:
    """Time at which each input was answered: when it, or a later one of its key, was."""
    answered_at = came[np.isfinite(came)]
    if not len(answered_at):
        return came
    # Relative to the first: moments since 1970, times the number of keys, have no milliseconds left in a float.
    first = answered_at.min()
    span = answered_at.max() - first + 1
    # A running minimum backwards; each key lies three spans below the previous keys, so that it starts again with each key.
    keys = inputs.keys[inputs.order][::-1]
    shifted = np.where(np.isfinite(came), came - first, 2 * span)[::-1] + keys * (3 * span)
    smallest = (np.minimum.accumulate(shifted) - keys * (3 * span))[::-1]
    return np.where(smallest > span, NEVER, smallest + first)


def written_by_slot(topics: Topics, subject: Subject) -> Written:
    """Due time of each input from the source's records, and its position in the source."""
    count = len(subject.inputs)
    written = Written(np.full(count, NEVER), np.zeros(count, int), np.zeros(count, int))
    for partition, end in enumerate(topics.ends(subject.source)):
        for messages in topics.batches(subject.source, partition, end) if end else ():
            slots = answered(_values(messages), subject.inputs)
            written.created[slots] = np.array([message.timestamp()[1] for message in messages]) / 1000
            written.partition[slots] = partition
            written.offset[slots] = [message.offset() for message in messages]
    return written


def _percentiles(latencies: np.ndarray) -> dict[str, float]:
    if not len(latencies):
        raise Failed("no input was due in the measured window: the paced records ran out")
    middle, high = np.percentile(latencies, [50, 99])
    return {"p50_ms": float(middle), "p99_ms": float(high), "max_ms": float(latencies.max())}


def _values(messages: list[Message]) -> pa.Array:
    for message in messages:
        if message.error() is not None:
            raise KafkaException(message.error())
    return pa.array([message.value() for message in messages], pa.binary())
