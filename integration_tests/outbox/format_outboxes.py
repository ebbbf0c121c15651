"""Outboxes that a query with `format("outbox")` names. `write_module` makes a module that Spark's workers can import."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from pyspark.sql import SparkSession
from spark_ckpt_delta import DeltaSink
from spark_ckpt_kafka import KafkaSink

from integration_tests.outbox.outbox_query import Place
from spark_ckpt.connector import EpochOutput, Publisher, PublishReceipt, Sink, SinkContext, SinkRows
from spark_ckpt.outbox.outbox import Outbox

ROOT = Path(__file__).parents[2]
ROWS = "w", "k", "n", "s"
MODULE = """
import sys
from pathlib import Path
sys.path.append({root!r})
from integration_tests.outbox.format_outboxes import outboxes
globals().update(outboxes(Path({folder!r}), {servers!r}, {topic!r}))
"""
_written = 0


def write_module(modules: Path, folder: Path, servers: str = "", topic: str = "") -> str:
    """Write a module with the outboxes of a folder, and return its name."""
    global _written
    _written += 1
    name = f"outboxes_{_written}"
    (modules / f"{name}.py").write_text(MODULE.format(root=str(ROOT), folder=str(folder), servers=servers, topic=topic))
    return name


def outboxes(folder: Path, servers: str, topic: str) -> dict[str, object]:
    """Return the module's attributes: an outbox, functions that make one, and a value that is no outbox."""
    place = Place(folder)

    def made(sinks: Callable[[], dict[str, Sink | SinkRows]], name: str = "orders") -> Callable[[], Outbox]:
        store = place.store if name == "orders" else place.table(f"{name} store")
        return lambda: Outbox(store, name=name, sinks=sinks())

    def gold() -> SinkRows:
        return DeltaSink(place.table("gold")).rows(*ROWS)

    def kafka() -> SinkRows:
        return KafkaSink(servers, topic=topic).rows(key="k", value="json")

    def big() -> SinkRows:
        return DeltaSink(place.table("big")).rows("k", twice="`twice the n`", where="big")

    return {
        "gold": Outbox(place.store, name="orders", sinks={"gold": gold()}),
        "both": made(lambda: {"gold": gold(), "alerts": kafka()}),
        "some": made(lambda: {"gold": gold(), "big": big()}),
        "other": made(lambda: {"gold": DeltaSink(place.table("other"))}, "other"),
        "kills": made(lambda: {"gold": KillsSpark(place, 4).rows(*ROWS)}),
        "needs_spark": made(lambda: {"gold": DeltaSink(place.table("gold"), engine="spark")}),
        "an_expression": made(lambda: {"gold": DeltaSink(place.table("gold")).rows("n * 2 AS n")}),
        "no_outbox": 1,
    }


class KillsSpark(DeltaSink):
    """Kills Java once, right before an epoch is published: the log has the epoch, and Spark has not committed its batch."""

    def __init__(self, place: Place, epoch: int) -> None:
        super().__init__(place.table("gold"))
        self._noted, self._at = place.folder / "java killed", epoch

    def publisher(self, spark: SparkSession, context: SinkContext) -> Publisher:
        return _Kills(super().publisher(spark, context), self._noted, self._at)


class _Kills:
    def __init__(self, real: Publisher, noted: Path, epoch: int) -> None:
        self._real, self._noted, self._epoch = real, noted, epoch

    def publish(self, output: EpochOutput) -> PublishReceipt:
        if output.epoch == self._epoch and not self._noted.exists():
            self._noted.touch()
            daemon = Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()
            os.kill(int(daemon[1]), signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        return self._real.publish(output)

    def close(self) -> None:
        self._real.close()
