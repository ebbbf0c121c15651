"""A job in its own process: totals by key, the whole result into a table, rows into a function that records its calls."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt

if __name__ == "__main__":
    folder = Path(sys.argv[1])

    def note(frame: DataFrame, epoch: int) -> None:
        rows = sorted([row.k, row.v] for row in frame.collect())
        line = json.dumps({"epoch": epoch, "rows": rows}) + "\n"
        calls = os.open(folder / "calls", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(calls, line.encode())
        os.close(calls)
        if os.environ.get("DIES_IN_FUNCTION"):
            os.kill(os.getpid(), signal.SIGKILL)

    conf = {"spark.sql.shuffle.partitions": "2", "spark.ui.enabled": "false"}
    spark = ckpt.session("child", master="local[2]", conf=conf)
    job = ckpt.Job(spark, "job", store=str(folder / "store"), interval="1 hour")
    files = {"schema": "k string, v long", "maxFilesPerTrigger": 1}
    whole, rows = (job.source(name, FilesSource(str(folder / "in"), "parquet", **files)) for name in ("whole", "rows"))
    totals = whole.transform(lambda frame: frame.groupBy("k").agg(F.sum("v").alias("t")), outputMode="complete")
    totals.to(DeltaSink(str(folder / "whole")), name="whole")
    rows.foreachBatch(note, name="calls")
    run = job.start(availableNow=True)
    run.awaitTermination(300)
    error = run.exception()
    if error is not None:
        raise SystemExit(str(error))
