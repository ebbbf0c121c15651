"""spark_ckpt: three ways to write the operator, one exactly-once Kafka sink."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.systems import Environment, Run, System, is_nexmark

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa
    from pyspark.sql import SparkSession

    import spark_ckpt as ckpt


def has_warm_standby(folder: str) -> bool:
    """Read `spark-ckpt lease`."""
    notes = (Path(folder) / "store" / "standbys").glob("*.json")
    return any(json.loads(note.read_text())["warm"] for note in notes)


def checkpoints_s(folder: str, since: float) -> list[float]:
    """Read `spark-ckpt list`."""
    from spark_ckpt.store.existing import existing_store

    epochs = existing_store(f"{folder}/store").log.state().epochs
    return [epoch.duration_ms / 1000 for epoch in epochs if epoch.created_ms / 1000 >= since]


FAR_LEASE = "6 seconds"
"""Lease of a driver whose standby is on another host: each process gets another kernel id, so only the lease counts."""
SHORT = "1 second"
"""Interval between epochs while a standby waits, in a job that sets `standby_interval`."""
HERE = Environment("spark_ckpt", class_archive=True)
MODULE = "benchmarks.systems.spark_ckpt"
_VARIANTS = (
    System("spark_ckpt-builtin", "spark_ckpt, built-in", "spark_ckpt_builtin", "exactly-once", HERE, MODULE, tells=True),
    System("spark_ckpt-vectorised", "spark_ckpt, vectorised", "spark_ckpt_vectorised", "exactly-once", HERE, MODULE),
    System(
        "spark_ckpt-standby", "spark_ckpt, built-in, a standby waits", "spark_ckpt_standby", "exactly-once", HERE, MODULE,
        measures=("recovery", "throughput"), has_warm_standby=has_warm_standby,
    ),
    System(
        "spark_ckpt-standby-short", f"spark_ckpt, built-in, a standby waits, epochs of {SHORT} then", "spark_ckpt_standby_short",
        "exactly-once", HERE, MODULE, measures=("recovery", "throughput"), has_warm_standby=has_warm_standby,
    ),
    System(
        "spark_ckpt-standby-far", f"spark_ckpt, built-in, a standby elsewhere waits ({FAR_LEASE})", "spark_ckpt_standby_far",
        "exactly-once", HERE, MODULE, measures=("recovery",), has_warm_standby=has_warm_standby,
    ),
    System(
        "spark_ckpt-every-batch", "spark_ckpt, built-in, an epoch per batch", "spark_ckpt_every_batch", "exactly-once", HERE,
        MODULE, measures=("latency", "throughput", "parts"), tells=True,
    ),
    System(
        "spark_ckpt-ahead", "spark_ckpt, built-in, an epoch per batch, early send", "spark_ckpt_ahead", "exactly-once", HERE,
        MODULE, measures=("latency", "throughput"),
    ),
    System("spark_ckpt-dropin", "spark_ckpt, per-key function", "spark_ckpt_dropin", "exactly-once", HERE, MODULE),
)  # fmt: skip
SYSTEMS = tuple(replace(each, checkpoints_s=checkpoints_s) for each in _VARIANTS)
RECORDS_PER_BATCH = 1_500_000
"""Rows per batch: a batch costs a third of a second before its first record, so large batches suit a backlog best."""
NEVER_MS = 24 * 3600 * 1000


def main() -> None:
    """Run one job until killed."""
    from benchmarks.systems.telling import listener

    run = Run.of_command_line()
    settings = on_its_own_host() if run.hook == "spark_ckpt_standby_far" else {}
    settings |= {"standby_interval": SHORT} if run.hook == "spark_ckpt_standby_short" else {}
    described = job(run, session(run), **settings)
    if run.records_file:
        described.addListener(listener(run.records_file))
    described.start(standby=run.hook.startswith("spark_ckpt_standby")).awaitTermination()


def on_its_own_host() -> dict[str, object]:
    """Simulate a host per process: a check if another process lives cannot use the kernel, only the lease."""
    from spark_ckpt.store import holder

    holder.boot_id = lambda: f"kernel of {os.getpid()}"  # type: ignore[assignment]
    return {"lease": FAR_LEASE}


def session(run: Run) -> SparkSession:
    """Two cores, as every other system; Java's throughput collector, as for plain PySpark."""
    import spark_ckpt as ckpt

    conf = {"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2", "spark.driver.memory": "3g"}
    conf["spark.driver.extraJavaOptions"] = "-XX:+UseParallelGC"
    spark = ckpt.session(run.job, "kafka", master="local[2]", conf=conf)
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def job(run: Run, spark: SparkSession, **settings: object) -> ckpt.Job:
    """The job's stream between a Kafka source and a Kafka sink. `settings`: of the job."""
    from spark_ckpt_kafka import KafkaSink, KafkaSource

    import spark_ckpt as ckpt
    from benchmarks.nexmark.streams import as_records
    from spark_ckpt.config import EVERY_BATCH

    every_batch = run.hook in ("spark_ckpt_every_batch", "spark_ckpt_ahead")
    settings |= {"send_early": True} if run.hook == "spark_ckpt_ahead" else {}
    interval = EVERY_BATCH if every_batch else f"{run.interval_ms or NEVER_MS} milliseconds"
    described = ckpt.Job(spark, run.job, store=f"{run.folder}/store", interval=interval, **settings)
    source = KafkaSource(run.servers, run.source, options={"maxOffsetsPerTrigger": RECORDS_PER_BATCH})
    express: Callable[[ckpt.Stream], ckpt.Stream] = run.implementation  # type: ignore[assignment]
    records = described.source("records", source)
    rows = as_records(express(records), run.job) if is_nexmark(run.job) else express(parsed(records))
    rows.to(KafkaSink(run.servers, run.target))
    return described


def parsed(records: ckpt.Stream) -> ckpt.Stream:
    """`key`, `value` (both strings), `amount`, `event_ms`. Parsed in the JVM."""
    texts = records.selectExpr("CAST(key AS STRING) AS key", "CAST(value AS STRING) AS value")
    return texts.selectExpr(
        "key",
        "value",
        "CAST(substring_index(substring_index(value, ',', 3), ',', -1) AS LONG) AS amount",
        "CAST(substring_index(value, ',', -1) AS LONG) AS event_ms",
    )


def joined(key: pa.ChunkedArray, *columns: npt.NDArray[np.int64]) -> pa.Table:
    """`key`, and all columns as one string: the output of vectorised functions."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = [pa.array(column).cast(pa.string()) for column in columns]
    return pa.table({"key": key, "value": pc.binary_join_element_wise(key, *texts, ",")})


if __name__ == "__main__":
    main()
