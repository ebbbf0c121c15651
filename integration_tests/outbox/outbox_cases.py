"""A program with an outbox that is killed: `python -m integration_tests.outbox.outbox_cases FOLDER [--remote] CASE...`

It runs on each PySpark from 3.5 to 4.3 with this library and its Delta connector. FOLDER/in has the input. A case is a query and a
state store, e.g. `windows/RocksDB`, with two sinks in one outbox. It kills the process once, at its failpoint in CASES. A finished
case leaves FOLDER/CASE/done, and the next start skips it: start the program until its exit code is 0. `whole/QUERY` instead of a
case runs the query undisturbed.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink

from integration_tests.outbox.outbox_query import DELAY_S, Place, run, windows
from spark_ckpt import failpoints

COMMITTED, ACKED = "EPOCH_COMMITTED:kill:3", "ACKED:kill:5"
"""The third batch: its epoch is committed, or one of two sinks has published it. Spark has not committed the batch."""
WHOLE = "whole"
SOME = "k4"
"""The second sink gets the keys before this one."""
_STATE = "org.apache.spark.sql.execution.streaming.state"
STORES = {"HDFS": f"{_STATE}.HDFSBackedStateStoreProvider", "RocksDB": f"{_STATE}.RocksDBStateStoreProvider"}
_PROVIDER = "spark.sql.streaming.stateStore.providerClass"
_CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.codegen.wholeStage": "false",  # compiling costs each of many short runs more than it saves
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.session.timeZone": "UTC",
}


def distinct(spark: SparkSession, inbox: Path) -> DataFrame:
    """The first row of each key and half minute."""
    return _timed(spark, inbox).selectExpr("k", "at", "ts div 30 AS w").dropDuplicates(["k", "w"]).select("k", "w")


def joined(spark: SparkSession, inbox: Path) -> DataFrame:
    """Each row with one of a second stream, or with null after the watermark shows that there is none."""
    left = _timed(spark, inbox).selectExpr("k", "at", "v")
    right = _timed(spark, inbox).where("v % 3 = 0").selectExpr("k AS k2", "at AS at2", "v AS v2")
    near = F.expr("k = k2 AND at2 BETWEEN at AND at + INTERVAL 10 SECONDS")
    return left.join(right, near, "leftOuter").select("k", "v", "v2")


QUERIES: Mapping[str, Callable[[SparkSession, Path], DataFrame]] = {
    "windows": windows,
    "dropDuplicates": distinct,
    "outerJoin": joined,
}
CASES: Mapping[str, str] = {
    "windows/HDFS": COMMITTED,
    "windows/RocksDB": ACKED,
    "dropDuplicates/HDFS": ACKED,
    "dropDuplicates/RocksDB": COMMITTED,
    "outerJoin/HDFS": COMMITTED,
    "outerJoin/RocksDB": ACKED,
}
"""Every case, and the failpoint at which it is killed."""


def _timed(spark: SparkSession, inbox: Path) -> DataFrame:
    lines = spark.readStream.schema("k string, ts long, v long").option("maxFilesPerTrigger", 1).json(str(inbox))
    return lines.withColumn("at", F.timestamp_seconds("ts")).withWatermark("at", f"{DELAY_S} seconds")


def session(remote: bool) -> SparkSession:
    """Two cores, of this process or of a Connect server that it starts."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.remote("local[2]") if remote else SparkSession.builder.master("local[2]")
    for key, value in _CONF.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if not remote:
        spark.sparkContext.setLogLevel("OFF")
    return spark


def go(spark: SparkSession, folder: Path, case: str) -> None:
    """Run the query over all input. Raises the error that ended it."""
    first, second = case.split("/")
    query, store = (second, "HDFS") if first == WHOLE else (first, second)
    spark.conf.set(_PROVIDER, STORES[store])
    place = Place(folder / case)
    some = DeltaSink(place.table("some")).rows("k", where=f"k < '{SOME}'")
    sinks = {"gold": DeltaSink(place.table("gold")), "some": some}
    if (error := run(place.outbox(sinks), QUERIES[query](spark, folder / "in"))) is not None:
        raise error


def main(arguments: Sequence[str]) -> None:
    """Run the cases that are not finished."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--remote", action="store_true", help="through Spark Connect; at most one case")
    parser.add_argument("cases", nargs="+")
    given = parser.parse_args(arguments)
    left = [case for case in given.cases if not (given.folder / case / "done").exists()]
    spark: SparkSession | None = None
    for case in left:
        place = given.folder / case
        (place / "killed").mkdir(parents=True, exist_ok=True)
        if case in CASES:
            # A Connect server passes its environment of the start to the process of the function.
            os.environ[failpoints.VARIABLE] = CASES[case]
            os.environ[failpoints.ONCE_VARIABLE] = str(place / "killed")
            failpoints.arm(CASES[case])
        spark = spark or session(given.remote)
        go(spark, given.folder, case)
        failpoints.arm("")
        (place / "done").touch()


if __name__ == "__main__":
    main(sys.argv[1:])
