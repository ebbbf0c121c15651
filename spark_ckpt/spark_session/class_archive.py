"""A shared archive of the classes that Spark loads, so that a driver is back sooner after a crash.

Starting Spark loads and verifies some fifteen thousand classes from three hundred jars, most of a driver's CPU until its first
batch. Java can map them from an archive instead (class data sharing, JEP 350). `create` runs a small streaming query of the
kind this package runs and lets Java archive what it loaded; `options` names the archive to a later driver. Java checks
that archive and class path belong together, and starts without it if they do not.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from spark_ckpt import jars
from spark_ckpt.errors import EnvironmentUnfit

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_TIMEOUT_S = 600
_BATCHES = 2


def path() -> Path:
    """Where the archive of this Java and this PySpark is, or would be: beside the jar cache."""
    java, spark = jars.find_java(), jars.pyspark_jars()
    name = hashlib.sha256("\n".join([jars.told_version(java), str(java), str(spark)]).encode()).hexdigest()[:16]
    return jars.cache_folder().parent / "classes" / f"spark-{name}.jsa"


def options() -> str:
    """Java options for a driver of this machine: empty if there is no archive. Never raises for a broken one.

    Java tells on its standard output that it starts without an archive it cannot use; a program's own output stands there.
    """
    archive = path()
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds*=off" if _is_of_these_jars(archive) else ""


def _is_of_these_jars(archive: Path) -> bool:
    """Java refuses an archive of jars that were installed anew since."""
    if not archive.is_file():
        return False
    jar = max((each.stat().st_mtime_ns for each in jars.pyspark_jars().glob("*.jar")), default=0)
    return archive.stat().st_mtime_ns >= jar


def create() -> Path:
    """Make the archive, or make it anew; under a minute. Raises `EnvironmentUnfit`."""
    archive = path()
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=archive.parent) as work:
        fresh = Path(work) / archive.name
        log = _train(fresh)
        if not fresh.is_file():
            raise EnvironmentUnfit(
                "Java wrote no class archive",
                hint="jobs run without it, they only start more slowly; see the log for Java's reason",
                log=log,
            )
        fresh.replace(archive)
    return archive


def _train(archive: Path) -> Path:
    """Run this module as a program, under a driver that archives its classes when it ends. Returns the log."""
    log = archive.parent.parent / "archive.log"
    command = [sys.executable, "-m", "spark_ckpt.spark_session.class_archive", str(archive)]
    with log.open("wb") as output:
        try:
            subprocess.run(
                command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise EnvironmentUnfit(
                f"the query whose classes are archived took more than {_TIMEOUT_S} s",
                hint="try again when the machine is less busy",
                log=log,
            ) from error
    return log


# -- the program whose classes are archived -------------------------------------------------------------------------------


def _main(archive: str) -> None:
    from pyspark.sql import SparkSession

    from spark_ckpt.spark_internals.jvm import end_jvm

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[1]").appName("class-archive").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "1").config("spark.sql.session.timeZone", "UTC")
    spark = builder.config(DRIVER_OPTIONS, f"-XX:ArchiveClassesAtExit={archive}").getOrCreate()
    with tempfile.TemporaryDirectory() as checkpoint:
        _stream(spark, checkpoint)
    end_jvm(spark)  # which is when it writes the archive


def _stream(spark: SparkSession, checkpoint: str) -> None:
    """The shape of every job: Python, shuffle, Python with state, Python in each batch's action."""
    rows = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
    packed = rows.selectExpr("xxhash64(value) AS hash", "CAST(value % 4 AS INT) AS g", "CAST('x' AS BINARY) AS blob")
    packed = packed.mapInArrow(_same, packed.schema)
    operated = packed.groupBy("g").applyInPandasWithState(_held, "blob binary", "held binary", "append", "NoTimeout")
    writer = operated.writeStream.option("checkpointLocation", checkpoint)
    query = writer.foreachBatch(_act).start()
    while query.isActive and len(query.recentProgress) < _BATCHES:
        query.awaitTermination(1)
    query.stop()


def _act(frame: DataFrame, batch: int) -> None:
    frame.mapInArrow(_same, frame.schema).collect()


def _same(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    yield from batches


def _held(key: tuple[int], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
    for frame in frames:
        yield frame[["blob"]]
    state.update((b"x",))


if __name__ == "__main__":
    _main(sys.argv[1])
