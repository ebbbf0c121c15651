"""Writes a workload at a fixed rate until it is killed: `python -m benchmarks.side_by_side.pace`, a process of its own.

Every record carries its due time, so that a late write does not hide waiting time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
from spark_ckpt_kafka.batch_producer import open_cluster
from spark_ckpt_kafka.cluster import Cluster, raise_for
from spark_ckpt_kafka.library import ProduceRequest
from spark_ckpt_kafka.options import Connection, Tuning
from spark_ckpt_kafka.partitioner import choose_partitions
from spark_ckpt_kafka.record_batches import Chunk, encode_records, frame_batch

from benchmarks.side_by_side.processes import ROOT
from benchmarks.side_by_side.workloads import WORKLOADS

_TICK_S = 0.02
"""Records due within a tick are sent together, encoded from columns: one by one, the writer and the broker need more than one of
the two processors at 100,000 records per second, which belong to the measured system."""
_MOST_AT_ONCE = 10_000
_TIMEOUT_S = 30.0
_TUNING = Tuning()


@contextmanager
def paced(servers: str, topic: str, workload: str, records: int, rate: int) -> Iterator[None]:
    """Let a process write in the background."""
    command = [sys.executable, "-m", "benchmarks.side_by_side.pace", servers, topic, workload, str(records), str(rate)]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "connectors")])}
    process = subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL)
    try:
        yield
        if process.poll() is not None:
            raise RuntimeError("the paced producer ended before the measurement did")
    finally:
        process.kill()
        process.wait()


def write(servers: str, topic: str, workload: str, records: int, rate: int) -> None:
    """Write all records, each when it is due."""
    cluster = open_cluster(Connection(servers), _TUNING)
    leaders = cluster.leaders(topic, _TIMEOUT_S)
    began, written = time.time(), 0
    for keys, values in WORKLOADS[workload].inputs(records).columns():
        due_s = began + np.arange(written, written + len(keys)) / rate
        times = pa.array((due_s * 1e6).astype(np.int64), pa.timestamp("us"))
        rows = pa.record_batch({"key": keys, "value": values, "timestamp": times})
        written += len(rows)
        while len(rows):
            time.sleep(max(0.0, due_s[-len(rows)] + _TICK_S - time.time()))
            due = int(np.searchsorted(due_s[-len(rows) :], time.time(), side="right"))
            _send(cluster, leaders, Chunk(topic, rows.slice(0, min(due, _MOST_AT_ONCE)), []))
            rows = rows.slice(min(due, _MOST_AT_ONCE))


def _send(cluster: Cluster, leaders: list[int], chunk: Chunk) -> None:
    """Send one request, and wait until the broker has it before the next one. The cluster has one broker."""
    partitions = choose_partitions(chunk, len(leaders), 0)
    data = [
        ProduceRequest.TopicProduceData.PartitionProduceData(
            index=batch.partition, records=frame_batch(batch, None, -1, "none")
        )
        for batch in encode_records(chunk, partitions, 0, _TUNING.batch_size)
    ]
    request = ProduceRequest(
        transactional_id=None,
        acks=1,
        timeout_ms=_TUNING.request_timeout_ms,
        topic_data=[ProduceRequest.TopicProduceData(name=chunk.topic, partition_data=data)],
        min_version=3,
        max_version=9,
    )
    answer = cluster.wait(cluster.send(request, leaders[0], _TUNING.request_timeout_ms), _TIMEOUT_S)
    for partition in answer.responses[0].partition_responses:
        raise_for(partition.error_code)


def main() -> None:
    """Write with the arguments of the command line."""
    parser = argparse.ArgumentParser()
    for name, kind in (("servers", str), ("topic", str), ("workload", str), ("records", int), ("rate", int)):
        parser.add_argument(name, type=kind)
    write(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
