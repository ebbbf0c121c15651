"""Time that an early send saves in a publish: `publish` with and without an epoch's rows already in the open transaction.

Run: python -m benchmarks.inside.early_sends [--rounds N]. It starts a broker; both kinds take turns. Wall-clock time from the
call to the answer, when a committed reader can see the rows. The duration of the early send is in the last column.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from statistics import median as middle
from typing import cast

import numpy as np
import pyarrow as pa
from spark_ckpt_kafka import KafkaSink
from spark_ckpt_kafka.control import KafkaControl
from spark_ckpt_kafka.options import Connection
from spark_ckpt_kafka.publisher import KafkaPublisher

from checkpoint_protocols.ids import Epoch, Incarnation
from integration_tests.broker import Broker, running_broker
from spark_ckpt.connector import EpochOutput, SinkContext, StagedEarly, StagedFile, StagePlan
from spark_ckpt.store.location import Location
from spark_ckpt.tasks.staging import SinkStage, StageWriter

SIZES = (100, 10_000, 100_000)
PARTITIONS = 4
PREPARED_S = 1.0
"""Pause between two epochs, in which the next producer is initialised, as in a batch."""


def rows(count: int) -> pa.Table:
    """Rows of about 100 bytes."""
    numbers = np.random.default_rng(3).integers(0, 1 << 60, count).tolist()
    values = [b'{"id": %d, "name": "customer %d", "amount": %d.25}' % (n, n % 9973, n % 100_000) for n in numbers]
    return pa.table({"key": [b"%d" % (n % 50_000) for n in numbers], "value": values})


def staged(folder: Path, table: pa.Table) -> list[StagedFile]:
    """Stage the rows as a task does."""
    with StageWriter(
        SinkStage("out", StagePlan(compression="lz4", dictionary=False), Location(str(folder)), 1), 0
    ) as writer:
        writer.write(table)
        return writer.close()


class Published:
    """One sink, epoch after epoch."""

    def __init__(self, broker: Broker, folder: Path) -> None:
        topic = f"t-{uuid.uuid4().hex[:8]}"
        with KafkaControl(Connection(broker.servers)) as control:
            control.create_topic(topic, PARTITIONS)
        self._folder = folder
        self._epoch = 0
        context = SinkContext("job", "out", str(uuid.uuid4()), Incarnation(1))
        self._publisher = cast(
            "KafkaPublisher",
            KafkaSink(broker.servers, topic).publisher(None, context),  # type: ignore[arg-type]
        )

    def epoch(self, files: list[StagedFile], ahead: bool) -> tuple[float, float]:
        """Publish one epoch; return ms of the early send, and ms of the publish."""
        time.sleep(PREPARED_S)
        self._epoch += 1
        epoch, root = Epoch(self._epoch), str(self._folder)
        send = StagedEarly(epoch, Incarnation(1), root, {}, files if ahead else [])
        output = EpochOutput(epoch, Incarnation(1), Epoch(epoch - 1), root, {}, files)
        return _ms(lambda: self._publisher.send_early(send)), _ms(lambda: self._publisher.publish(output))

    def close(self) -> None:
        """End the publisher's processes."""
        self._publisher.close()


def _ms(work: Callable[[], object]) -> float:
    before = time.perf_counter()
    work()
    return (time.perf_counter() - before) * 1000


def main(rounds: int) -> None:
    """Print a line for each size."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with running_broker(folder / "broker") as broker:
            (folder / "rows").mkdir()
            published = Published(broker, folder / "rows")
            print("| rows | publish, ms | least | after an early send | least | early send, ms |")
            for count in SIZES:
                files = staged(folder / "rows", rows(count))
                found = [(*published.epoch(files, False), *published.epoch(files, True)) for _ in range(rounds + 1)][1:]
                _, alone, sending, rest = (list(each) for each in zip(*found, strict=True))
                shown = [middle(alone), min(alone), middle(rest), min(rest), middle(sending)]
                print(f"| {count:,} | " + " | ".join(f"{ms:.0f}" for ms in shown) + " |", flush=True)
            published.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=11)
    given = parser.parse_args()
    main(given.rounds)
