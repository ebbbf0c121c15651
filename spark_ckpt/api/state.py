"""An operator's state at any retained epoch, as an Arrow table or as a Spark DataFrame for SQL."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from spark_ckpt.api.sparks_state import sparks_rows, sparks_rows_now
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.restore import LATEST, resolve
from spark_ckpt.errors import ConfigInvalid, EpochNotFound
from spark_ckpt.spark_internals.column_names import quoted
from spark_ckpt.spark_internals.parquet_files import read_parquet
from spark_ckpt.store.ddl import column_names, column_types
from spark_ckpt.store.existing import existing_store
from spark_ckpt.store.state_rows import snapshot_of, sparks_operator
from spark_ckpt.store.store import Store

_INTERNAL = ("ckpt_op", "ckpt_key_group", "ckpt_key_hash", "ckpt_timeout_ms")


def read_state(
    store: str,
    operator: str,
    epoch: str | int = LATEST,
    storage_options: Mapping[str, str] | None = None,
    *,
    spark: SparkSession | None = None,
    **options: str,
) -> pa.Table:
    """Return one row per key: key and state columns, and `ckpt_epoch`, the epoch that wrote it.

    Needs no JVM; creates nothing. `epoch` is "latest", a number or a savepoint's name.

    The state of Spark's own operators needs a JVM: `spark`, or the active session. Its rows and `options` are those of
    `state_frame`, collected into the memory of this process.

    Raises `EpochNotFound`, `EpochDamaged`, `StoreForeign`, `ConfigInvalid`.
    """
    opened = existing_store(store, storage_options)
    number, manifest = _manifest(opened, epoch)
    if (sparks := sparks_operator(manifest, operator)) is not None:
        state, which = sparks
        return sparks_rows_now(_session(spark, operator), opened, state, number, which, options).toArrow()
    _refuse_options("read_state", options)
    snapshot_of(manifest, operator)  # raises for an operator that the epoch has not
    rows = opened.state(operator).read(number)
    return rows.drop_columns([name for name in _INTERNAL if name in rows.column_names])


def _session(given: SparkSession | None, operator: str) -> SparkSession:
    from pyspark.sql import SparkSession

    spark = given or SparkSession.getActiveSession()
    if spark is None:
        raise ConfigInvalid(
            f"the state of '{operator}' is Spark's own, which only Spark can read",
            hint="create a session first: spark = spark_ckpt.session('look'); then read_state(..., spark=spark)",
        )
    return spark


def _refuse_options(function: str, options: Mapping[str, str]) -> None:
    if options:
        raise ConfigInvalid(
            f"{function}: {', '.join(sorted(options))} are options of Spark's state reader", hint="leave them out here"
        )


def state_version(
    store: str, operator: str, epoch: str | int = LATEST, storage_options: Mapping[str, str] | None = None
) -> int:
    """Return the version of the Delta table `<store>/state/<operator>` for an epoch.

    Use it in `VERSION AS OF` or `versionAsOf`. `epoch` is as for `read_state`. Creates nothing. Raises `EpochNotFound`
    also for an epoch without a version: it was removed by retention, or the driver died between commit and write.
    `read_state` and `state_frame` need no version.
    """
    opened = existing_store(store, storage_options)
    number, manifest = _manifest(opened, epoch)
    snapshot_of(manifest, operator)  # raises for an operator that the epoch has not
    return opened.state(operator).version(number)


def state_frame(
    spark: SparkSession,
    store: str,
    operator: str,
    epoch: str | int = LATEST,
    storage_options: Mapping[str, str] | None = None,
    **options: str,
) -> DataFrame:
    """Return the same as a DataFrame, read by executors: for SQL, joins, and state larger than one machine.

    Spark reads the epoch's files itself, so the store must be reachable under the same URI for Spark.

    `operator` may be one of Spark's own, as `show` names it ("dedupe", or "1:dedupe" with its number). Its rows are those
    of Spark's state reader: `key`, `value`, `partition_id`. `options` are this reader's: `joinSide="left"`,
    `stateVarName="sum"`. If the store is in an object store, its files are first copied to a folder, which is deleted when the
    process ends: in `spark.ckpt.run.dir`, or a temporary one for a local master.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as F

    opened = existing_store(store, storage_options)
    number, manifest = _manifest(opened, epoch)
    if (sparks := sparks_operator(manifest, operator)) is not None:
        state, which = sparks
        return sparks_rows(spark, opened, state, number, which, options)
    _refuse_options("state_frame", options)
    snapshot = snapshot_of(manifest, operator)
    root = opened.state(operator).location.uri.rstrip("/")
    if not snapshot.files:
        # an operator without state files still has a schema for SQL
        types = column_types(f"{snapshot.key_schema}, {snapshot.state_schema}, ckpt_epoch long")
        return spark.createDataFrame([], ", ".join(f"{quoted(name)} {type_}" for name, type_ in types.items()))
    # older files may lack columns that the operator got later
    rows = read_parquet(spark, (f"{root}/{file.path}" for file in snapshot.files), mergeSchema="true")
    keys = map(quoted, column_names(snapshot.key_schema))
    # the files are a chain: a full file and later changes; the newest row of a key is its state
    newest = F.row_number().over(Window.partitionBy(*keys).orderBy(F.desc("ckpt_epoch")))
    # deletions go after the choice: the newest row of a deleted key hides the older ones
    alive = rows.withColumn("ckpt_newest", newest).where("ckpt_newest = 1 AND ckpt_op = 'put'")
    return alive.drop("ckpt_newest", *_INTERNAL)


def _manifest(store: Store, epoch: str | int) -> tuple[int, Manifest]:
    log_state = store.log.state()
    number = log_state.latest if epoch == LATEST else resolve(log_state, epoch)[0]
    if not number:
        raise EpochNotFound("the job has no epoch yet", job=log_state.job, hint="start the job; it takes the first one")
    return number, store.log.manifest(number)
