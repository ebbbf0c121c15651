"""Each payment once, although its notice arrives several times: the first notice of an id counts, until none has come for a week.

python deduplicate.py FOLDER [drain]      FOLDER/inbox/*.json: id string, account string, amount double
"""

import sys

import numpy as np
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupStateTimeout
from spark_ckpt_delta import DeltaSink
from spark_ckpt_files import FilesSource

import spark_ckpt as ckpt

NOTICE = "id string, account string, amount double"
REMEMBERED_MS = 7 * 24 * 3600 * 1000


def first_notice(batch: ckpt.KeyBatch) -> ckpt.KeyResult:
    """All ids of a key group at once. An id's only state is that it was here."""
    every = np.full(len(batch), True)
    if batch.timed_out:
        return ckpt.KeyResult(remove=every)
    _, first_rows = np.unique(batch.key_index, return_index=True)  # one per key, in the keys' order
    fresh = ~np.asarray(batch.exists)
    until = np.full(len(batch), batch.processing_ms + REMEMBERED_MS)
    seen = batch.keys.select(["id"]).rename_columns(["first"])
    return ckpt.KeyResult(batch.rows.take(first_rows[fresh]), state=seen, changed=fresh, timeout_ms=until)


def build(spark: SparkSession, folder: str) -> ckpt.Job:
    job = ckpt.Job(spark, "payments", store=f"{folder}/store", interval="5 seconds")
    notices = job.source("notices", FilesSource(f"{folder}/inbox", "json", NOTICE))
    payments = notices.groupBy("id").applyVectorized(
        first_notice, NOTICE, "first string", timeoutConf=GroupStateTimeout.ProcessingTimeTimeout
    )
    payments.to(DeltaSink(f"{folder}/payments"))
    return job


if __name__ == "__main__":
    folder, *drain = sys.argv[1:]
    build(ckpt.session("payments"), folder).start(availableNow="drain" in drain).awaitTermination()
