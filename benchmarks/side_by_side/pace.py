"""Writes a workload at a fixed rate until it is killed: `python -m benchmarks.side_by_side.pace`, a process of its own.

Every record carries the moment at which it was due, so that a late one does not hide waiting time.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from benchmarks.side_by_side.processes import ROOT
from benchmarks.side_by_side.topics import PRODUCER, produce
from benchmarks.side_by_side.workloads import WORKLOADS

_TICK_S = 0.02
"""Records due within a tick go out together: one by one the writer and the broker take a whole core of the system's two."""


@contextmanager
def paced(servers: str, topic: str, workload: str, records: int, rate: int) -> Iterator[None]:
    """It writes meanwhile."""
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
    """All records, each when it is due."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 5, "delivery.report.only.error": True, **PRODUCER})
    began = time.time()
    for number, (key, value) in enumerate(WORKLOADS[workload].inputs(records).records()):
        due = began + number / rate
        while (early := due - time.time()) > 0:
            producer.poll(0)
            time.sleep(min(early, _TICK_S))
        produce(producer, topic, key, value, _delivered, timestamp=int(due * 1000))
    producer.flush()


def _delivered(error: KafkaError | None, message: Message) -> None:
    if error is not None:
        raise KafkaException(error)


def main() -> None:
    """From the command line."""
    parser = argparse.ArgumentParser()
    for name, kind in (("servers", str), ("topic", str), ("workload", str), ("records", int), ("rate", int)):
        parser.add_argument(name, type=kind)
    write(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
