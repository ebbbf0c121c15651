"""Publishing with delta-spark: an epoch's rows are appended or merged by key in one guarded statement."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Window
from pyspark.sql.functions import broadcast, col, desc, row_number

from spark_ckpt.connector import EpochOutput, PublishReceipt, SinkContext
from spark_ckpt.errors import EnvironmentUnfit, PublishFailed
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.protocol.ids import Epoch
from spark_ckpt_delta.log import local_root, open_table, table_exists
from spark_ckpt_delta.marker import (
    Marker,
    application_id,
    check_owner,
    commit_metadata,
    is_published,
    read_marker,
)
from spark_ckpt_delta.refusals import cannot_be_opened, publish_failed
from spark_ckpt_delta.staged import verified

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE, _ROW, _ORDER, _RANK = "__ckpt_file", "__ckpt_row", "__ckpt_order", "__ckpt_rank"
_TRANSACTION_ID = "spark.databricks.delta.write.txnAppId"
_TRANSACTION_VERSION = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"


class SparkPublisher:
    """One incarnation's hand on a table that only delta-spark writes.

    Statements run in a session of their own, so that the transaction settings never leak into the user's:
    delta-spark silently skips every later write of a session that keeps them.
    """

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        storage_options: Mapping[str, str],
        keys: Sequence[str],
        partition_by: Sequence[str],
        context: SinkContext,
    ) -> None:
        self._spark = spark.newSession()
        self._table = table
        self._path = spark_path(table)
        self._storage_options = dict(storage_options)
        self._keys = tuple(keys)
        self._partition_by = tuple(partition_by)
        self._context = context
        self._application = application_id(context, "spark")
        if table_exists(table, storage_options):
            check_owner(table, open_table(table, storage_options), context, "spark")

    def publish(self, output: EpochOutput) -> PublishReceipt:
        """Append or merge the epoch's rows unless the table has them already."""
        rows = sum(file.rows for file in output.files)
        marker, exists = self._marker(output.epoch), self._exists()
        if (marker is not None or exists) and is_published(marker, output, self._context):
            return PublishReceipt(output.epoch, rows, replayed=True)
        if not output.files and (marker is not None or not exists):
            return PublishReceipt(output.epoch, 0, replayed=False)
        verified(output, self._context.sink)
        try:
            hit(Failpoint.PRE_COMMIT)
            with self._guarded(output):
                self._write(output)
            hit(Failpoint.PUBLISH_COMMITTED)
        except (PySparkException, Py4JError) as error:
            if not is_published(self._marker(output.epoch), output, self._context):
                raise publish_failed(self._table, _reason(error), error, self._context, output.epoch) from error
        if not is_published(self._marker(output.epoch), output, self._context):
            raise PublishFailed(f"{self._table}: the statement left no marker", sink=self._context.sink)
        return PublishReceipt(output.epoch, rows, replayed=False)

    def close(self) -> None:
        """Nothing is held open; the session shares the user's context."""

    def _marker(self, wanted: Epoch) -> Marker | None:
        if not self._exists():
            return None
        try:
            return read_marker(open_table(self._table, self._storage_options), self._application, wanted)
        except (DeltaError, OSError) as error:
            raise cannot_be_opened(self._table, error, self._context) from error

    def _exists(self) -> bool:
        try:
            return table_exists(self._table, self._storage_options)
        except (DeltaError, OSError) as error:
            raise cannot_be_opened(self._table, error, self._context) from error

    @contextmanager
    def _guarded(self, output: EpochOutput) -> Iterator[None]:
        settings = {
            _TRANSACTION_ID: self._application,
            _TRANSACTION_VERSION: str(output.epoch),
            _METADATA: commit_metadata(self._context, output, "spark")["userMetadata"],
        }
        for key, value in settings.items():
            self._spark.conf.set(key, value)
        try:
            yield
        finally:
            for key in settings:
                self._spark.conf.unset(key)

    def _write(self, output: EpochOutput) -> None:
        exists = self._exists()
        if not output.files:
            nothing = self._spark.read.format("delta").load(self._path).limit(0)
            nothing.write.format("delta").mode("append").save(self._path)
        elif self._keys and exists:
            self._merge(self._newest_per_key(output))
        else:
            rows = self._newest_per_key(output) if self._keys else self._rows(output)
            rows.write.format("delta").mode("append").partitionBy(*self._partition_by).save(self._path)

    def _merge(self, rows: DataFrame) -> None:
        condition = " AND ".join(f"target.{_quoted(key)} <=> staged.{_quoted(key)}" for key in self._keys)
        rows.createOrReplaceTempView("ckpt_staged")  # visible in this publisher's session only
        self._spark.sql(
            f"MERGE INTO delta.{_quoted(self._path)} AS target USING ckpt_staged AS staged ON {condition} "
            "WHEN MATCHED THEN UPDATE SET * WHEN NOT MATCHED THEN INSERT *"
        )

    def _rows(self, output: EpochOutput) -> DataFrame:
        paths = [f"{spark_path(output.root)}/{file.path}" for file in output.files]
        return self._spark.read.parquet(*paths)

    def _newest_per_key(self, output: EpochOutput) -> DataFrame:
        """One row per key: the last in publishing order, by file (batch, task, part), then row."""
        names = [(file.path.rpartition("/")[2], order) for order, file in enumerate(output.files)]
        order = self._spark.createDataFrame(names, f"{_FILE} string, {_ORDER} int")
        rows = self._rows(output)
        placed = rows.select("*", col("_metadata.file_name").alias(_FILE), col("_metadata.row_index").alias(_ROW)).join(
            broadcast(order), _FILE
        )
        newest = Window.partitionBy(*map(_quoted, self._keys)).orderBy(desc(_ORDER), desc(_ROW))
        ranked = placed.withColumn(_RANK, row_number().over(newest)).where(col(_RANK) == 1)
        return ranked.select(*map(_quoted, rows.columns))


def require_delta_spark(spark: SparkSession) -> None:
    """Raise `EnvironmentUnfit` unless the session has delta-spark's jars and extension."""
    hint = 'use spark_ckpt.session(name, "delta"), or add the jars of delta-spark and both settings'
    if "DeltaSparkSessionExtension" not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise EnvironmentUnfit("spark.sql.extensions lacks io.delta.sql.DeltaSparkSessionExtension", hint=hint)
    if "DeltaCatalog" not in (spark.conf.get("spark.sql.catalog.spark_catalog", "") or ""):
        raise EnvironmentUnfit("spark.sql.catalog.spark_catalog is not Delta's DeltaCatalog", hint=hint)
    try:
        spark.read.format("delta").load("/spark-ckpt-no-such-table")
    except AnalysisException as error:
        if error.getCondition() == "DATA_SOURCE_NOT_FOUND":
            raise EnvironmentUnfit("delta-spark's jars are not on the class path", hint=hint) from error


def spark_path(table: str) -> str:
    """A table's or outbox's place as Spark takes it: an absolute path, or a URI with Hadoop's `s3a`."""
    root = local_root(table)
    return str(root) if root is not None else table.replace("s3://", "s3a://", 1).rstrip("/")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _reason(error: Exception) -> str:
    """One line: the innermost cause of a Java exception, or the first line of any other."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    causes = [line.strip().removeprefix("Caused by: ") for line in lines if line.strip().startswith("Caused by: ")]
    if causes:
        return causes[-1]
    return lines[1].removeprefix(": ") if isinstance(error, Py4JError) and len(lines) > 1 else lines[0]
