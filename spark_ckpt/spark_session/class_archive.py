"""A shared archive of the classes that Spark loads, so that a driver restarts sooner after a crash.

Starting Spark loads and verifies about fifteen thousand classes from three hundred jars. That is most of a driver's CPU
until its first batch. Java can map them from an archive instead (class data sharing, JEP 350). `create` runs a small
streaming query like those of this package and lets Java archive the loaded classes. `options` names the archive to a
later driver. Java checks that archive and class path match, and starts without the archive if they do not.
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
from spark_ckpt.temporary_folder import TemporaryFolder

if TYPE_CHECKING:
    import pandas as pd
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.state import GroupState

DRIVER_OPTIONS = "spark.driver.extraJavaOptions"
_TIMEOUT_S = 600
_BATCHES = 2


def path() -> Path:
    """Return the path of the archive for this Java and this PySpark, next to the jar cache. It need not exist."""
    java, spark = jars.find_java(), jars.pyspark_jars()
    name = hashlib.sha256("\n".join([jars.reported_version(java), str(java), str(spark)]).encode()).hexdigest()[:16]
    return jars.cache_folder().parent / "classes" / f"spark-{name}.jsa"


def options() -> str:
    """Return Java options for a driver on this machine; empty if there is no archive. A broken archive raises nothing."""
    archive = path()
    # Without -Xlog:cds*=off Java reports an unusable archive on its standard output, among the program's own output.
    return f"-XX:SharedArchiveFile={archive} -Xshare:auto -Xlog:cds*=off" if _is_of_these_jars(archive) else ""


def _is_of_these_jars(archive: Path) -> bool:
    if not archive.is_file():
        return False
    # Java refuses an archive of jars that were installed again since.
    jar = max((each.stat().st_mtime_ns for each in jars.pyspark_jars().glob("*.jar")), default=0)
    return archive.stat().st_mtime_ns >= jar


def create() -> Path:
    """Create or replace the archive; it takes less than a minute. Return its path. Raises `EnvironmentUnfit`."""
    archive = path()
    archive.parent.mkdir(parents=True, exist_ok=True)
    # An archive has 200 MB, and a user may end this command: a folder that stays would take them for good.
    with TemporaryFolder("archive", str(archive.parent)) as work:
        fresh = work / archive.name
        log = _train(fresh)
        if not fresh.is_file():
            raise EnvironmentUnfit(
                "Java wrote no class archive",
                hint="jobs run without it, they only start more slowly; see the log for Java's reason",
                log=log,
            )
        # In one step: a driver that starts now maps the old archive or the new one, never half of one.
        fresh.replace(archive)
    _jars_of(archive).write_text(str(jars.pyspark_jars()))
    _forget_uninstalled(archive.parent)
    return archive


def _jars_of(archive: Path) -> Path:
    return archive.with_suffix(".jars")


def _forget_uninstalled(folder: Path) -> None:
    """Delete the archives of virtual environments that are gone: each has 200 MB."""
    for archive in folder.glob("spark-*.jsa"):
        noted = _jars_of(archive)
        if noted.is_file() and not Path(noted.read_text()).is_dir():
            archive.unlink(missing_ok=True)
            noted.unlink(missing_ok=True)


def _train(archive: Path) -> Path:
    """Run this module as a program, whose driver archives its classes when it ends. Return the path of the log."""
    log = archive.parent.parent / "archive.log"  # the folder of the archive is deleted after an error
    command = [sys.executable, "-m", "spark_ckpt.spark_session.class_archive", str(archive)]
    with log.open("wb") as output:
        try:
            # Not checked: without an archive the caller reports the log.
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


# The program whose classes are archived.


def _main(archive: str) -> None:
    from pyspark.sql import SparkSession

    from spark_ckpt.spark_internals.jvm import end_jvm

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master("local[1]").appName("class-archive").config("spark.ui.enabled", "false")
    builder = builder.config("spark.sql.shuffle.partitions", "1").config("spark.sql.session.timeZone", "UTC")
    spark = builder.config(DRIVER_OPTIONS, f"-XX:ArchiveClassesAtExit={archive}").getOrCreate()
    with tempfile.TemporaryDirectory() as checkpoint:
        _stream(spark, checkpoint)
    end_jvm(spark)  # Java writes the archive at its exit


def _stream(spark: SparkSession, checkpoint: str) -> None:
    """Run a query with the shape of every job: Python, shuffle, Python with state, Python in each batch's action."""
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
