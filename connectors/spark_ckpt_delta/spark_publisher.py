"""Publishing with delta-spark: one guarded statement appends an epoch's rows, or merges them by key."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote

from deltalake.exceptions import DeltaError
from py4j.protocol import Py4JError
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Window
from pyspark.sql.functions import broadcast, col, desc, row_number
from pyspark.sql.types import StructField, StructType

from spark_ckpt.connector import EpochOutput, PublishReceipt, SinkContext
from spark_ckpt.errors import EnvironmentUnfit, PublishFailed
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.spark_internals.column_names import column_of, quoted
from spark_ckpt.spark_internals.parquet_files import read_parquet
from spark_ckpt.spark_internals.settings import PUBLISHING_SETTINGS, set_for_a_while
from spark_ckpt_delta.fits import StagedColumns, check_fits_spark, refused
from spark_ckpt_delta.log import local_root, open_table, table_exists
from spark_ckpt_delta.marker import (
    TableMarker,
    application_id,
    check_owner,
    commit_metadata,
    is_published,
    read_marker,
    transaction_version,
)
from spark_ckpt_delta.merging import (
    DELETES,
    MOST_PARTITIONS,
    MergePatience,
    MergeRule,
    as_stored,
    broken_rule,
    condition,
    conflict,
    value_text,
)
from spark_ckpt_delta.refusals import another_table, cannot_be_opened, publish_failed
from spark_ckpt_delta.staged import verified

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from pyspark.sql import Column, DataFrame, SparkSession

_log = logging.getLogger(__name__)
_STARVED = (
    "Delta accepts a MERGE only if no other writer added rows to the files that it read: let the other writer pause or commit less "
    "often, or partition the table by a column that is among keys and keep writers to partitions of their own"
)
_FILE, _ROW, _ORDER, _RANK = "__ckpt_file", "__ckpt_row", "__ckpt_order", "__ckpt_rank"
_TRANSACTION_ID = "spark.databricks.delta.write.txnAppId"
_TRANSACTION_VERSION = "spark.databricks.delta.write.txnVersion"
_METADATA = "spark.databricks.delta.commitInfo.userMetadata"
_EVOLUTION = "spark.databricks.delta.schema.autoMerge.enabled"
"""Schema evolution: a statement would bring back a column that another writer has just dropped."""
_DELTA_SETTINGS = {"spark.databricks.delta.write.utcTimestampPartitionValues": "true"}
"""Setting that makes a timestamp partition value mean the same instant to readers of every zone."""


class SparkPublisher:
    """Publisher of one incarnation for a table that only delta-spark writes.

    Statements run in a separate session, so that the transaction settings never leak into the user's: delta-spark
    silently skips every later write of a session that keeps them.
    """

    def __init__(
        self,
        spark: SparkSession,
        table: str,
        storage_options: Mapping[str, str],
        rule: MergeRule,
        partition_by: Sequence[str],
        context: SinkContext,
        schema: StructType | None = None,
    ) -> None:
        self._schema = schema
        self.patience = MergePatience()
        self._spark = publishing_session(spark)
        self._table = table
        self._path = spark_path(table)
        self._storage_options = dict(storage_options)
        self._rule = rule
        self._partition_by = tuple(partition_by)
        self._context = context
        self._application = application_id(context, "spark")
        self._columns = StagedColumns()
        self._id: str | None = None
        opened = self._opened()
        if opened is not None:
            check_owner(table, opened, context, "spark")

    def publish(self, output: EpochOutput) -> PublishReceipt:
        """Append or merge the epoch's rows unless the table has them; the first epoch creates an absent table.

        Raises `PublishFailed`, `RowsRefused`, `EpochDamaged`, or the errors of `is_published`.
        """
        rows = sum(file.rows for file in output.files)
        marker = self._marker()
        if is_published(marker, output, self._context):
            return PublishReceipt(output.epoch, rows, replayed=True)
        # An epoch without rows needs no commit once the table has a marker, unless it empties the table.
        if not output.files and marker is not None and not output.replaces:
            return PublishReceipt(output.epoch, 0, replayed=False)
        # Spark reads the staged files without comparing them with the manifest.
        verified(output, self._context.sink)
        self._write_among_others(output)
        # A statement without an error is no proof: only the marker is.
        if not is_published(self._marker(), output, self._context):
            raise PublishFailed(f"{self._table}: the statement left no marker", sink=self._context.sink)
        return PublishReceipt(output.epoch, rows, replayed=False)

    def _write_among_others(self, output: EpochOutput) -> None:
        """Run the statement until the table has the epoch; wait with growing pauses after a conflict with another
        writer.
        """
        for failures in range(1, self.patience.attempts + 1):
            # After a conflict the table may have other columns, and delta-spark would fill a missing one with null.
            self._check_fits(output)
            error = self._failure_of(output)
            # An error does not tell if the commit landed: the marker decides.
            if error is None or is_published(self._marker(), output, self._context):
                return
            name = conflict(error)
            if rule := broken_rule(error):
                raise refused(self._table, [rule], output, self._context.sink) from error
            if not name:
                raise publish_failed(self._table, _reason(error), error, self._context, output.epoch) from error
            _log.warning(
                "sink %s: epoch %d: another writer changed %s meanwhile (%s), attempt %d of %d",
                self._context.sink, output.epoch, self._table, name, failures, self.patience.attempts,
            )  # fmt: skip
            if failures < self.patience.attempts:
                self.patience.pause(failures)
        raise PublishFailed(
            f"other writers changed {self._table} during each of {self.patience.attempts} attempts ({name})",
            sink=self._context.sink,
            epoch=output.epoch,
            hint=_STARVED,
        )

    def _check_fits(self, output: EpochOutput) -> None:
        opened = self._opened()
        if opened is not None:
            columns = self._columns.of(output)
            merges = bool(self._rule.keys)
            check_fits_spark(self._table, opened, output, columns, self._partition_by, self._context.sink, merges)

    def _failure_of(self, output: EpochOutput) -> PySparkException | Py4JError | None:
        try:
            hit(Failpoint.PRE_COMMIT)
            with self._guarded(output):
                self._write(output)
            hit(Failpoint.PUBLISH_COMMITTED)
        # PySpark translates some of Java's exceptions only; Delta's conflicts may come as either.
        except (PySparkException, Py4JError) as error:
            return error
        return None

    def close(self) -> None:
        """Do nothing: the publisher holds nothing open, and its session shares the user's context."""

    def _marker(self) -> TableMarker | None:
        opened = self._opened()
        return None if opened is None else read_marker(opened, self._application)

    def _opened(self) -> DeltaTable | None:
        """Return the table, None if no epoch has created it yet. Raises `IdentityChanged` if it became another table."""
        if not self._exists():
            if self._id is not None:
                raise another_table(self._table, self._context)
            return None
        try:
            opened = open_table(self._table, self._storage_options)
        except (DeltaError, OSError) as error:
            raise cannot_be_opened(self._table, error, self._context) from error
        found = str(opened.metadata().id)
        # The first epoch creates the table, so its id is known after that.
        if self._id is not None and found != self._id:
            raise another_table(self._table, self._context)
        self._id = found
        return opened

    def _exists(self) -> bool:
        try:
            return table_exists(self._table, self._storage_options)
        except (DeltaError, OSError) as error:
            raise cannot_be_opened(self._table, error, self._context) from error

    @contextmanager
    def _guarded(self, output: EpochOutput) -> Iterator[None]:
        settings = {
            _TRANSACTION_ID: self._application,
            _TRANSACTION_VERSION: str(transaction_version(output)),
            _METADATA: commit_metadata(self._context, output, "spark")["userMetadata"],
            _EVOLUTION: "false",
        }
        with set_for_a_while(self._spark, settings):
            yield

    def _write(self, output: EpochOutput) -> None:
        exists = self._exists()
        # Without a table there is nothing to replace: the branches below create it.
        if output.replaces and exists:
            self._replace(self._rows(output) if output.files else self._no_rows())
        elif not output.files:
            # For the marker alone, in the columns that the table has now.
            self._append(self._spark.read.format("delta").load(self._path).limit(0) if exists else self._no_rows())
        elif not self._rule.keys:
            self._append(self._rows(output))
        elif exists:
            self._merge(output)
        else:
            newest = self.newest_per_key(output)
            # Into a table that this statement creates: there is no row to replace, and none to delete.
            self._append(newest.where(~col(DELETES)).drop(DELETES) if DELETES in newest.columns else newest)

    def _append(self, rows: DataFrame) -> None:
        rows.write.format("delta").mode("append").partitionBy(*self._partition_by).save(self._path)

    def _replace(self, rows: DataFrame) -> None:
        # With a session's dynamic mode the partitions without new rows would keep their old ones.
        writer = rows.write.format("delta").mode("overwrite").option("partitionOverwriteMode", "static")
        writer.save(self._path)

    def _no_rows(self) -> DataFrame:
        """Return zero rows with the columns of a table that does not exist: the first epoch leaves its marker even
        without rows.
        """
        if self._schema is None:
            raise PublishFailed(
                f"{self._table} does not exist, and the sink has no columns to create it", sink=self._context.sink
            )
        fields = [StructField(field.name, field.dataType, nullable=True) for field in self._schema.fields]
        return self._spark.createDataFrame([], StructType(fields))

    def _merge(self, output: EpochOutput) -> None:
        where = condition(self._rule.keys, *self._partitions(output))
        newest = self.newest_per_key(output)
        newest.createOrReplaceTempView("ckpt_staged")  # visible in this publisher's session only
        clauses = self._rule.clauses([name for name in newest.columns if name != DELETES])
        self._spark.sql(
            f"MERGE INTO delta.{quoted(self._path)} AS target USING ckpt_staged AS staged ON {where} {clauses}"
        )

    def _partitions(self, output: EpochOutput) -> tuple[dict[str, list[str | None]], dict[str, str]]:
        """Return (values as text, types) of the partition columns among the keys; empty if the rows have too many
        values.
        """
        names = [name for name in self._partitioned() if name in self._rule.keys]
        if not names:
            return {}, {}
        rows = self._rows(output).select(*map(column_of, names)).distinct()
        types = {field.name: field.dataType.simpleString() for field in rows.schema.fields}
        texts = [value_text(column_of(name), type_) for name, type_ in types.items()]
        # One more than the limit shows that there are too many, without counting them.
        values = rows.select(*texts).limit(MOST_PARTITIONS + 1).collect()
        if len(values) > MOST_PARTITIONS:
            return {}, {}
        # Rows are distinct as a whole; a single column may repeat.
        return {name: list(dict.fromkeys(row[at] for row in values)) for at, name in enumerate(names)}, types

    def _partitioned(self) -> Sequence[str]:
        """Return the table's partition columns, or those that it will be created with."""
        if not self._exists():
            return self._partition_by
        return open_table(self._table, self._storage_options).metadata().partition_columns

    def _rows(self, output: EpochOutput, *extra: Column) -> DataFrame:
        """Return the staged rows with partition values as the table stores them, and the extra columns."""
        paths = (f"{spark_path(output.root)}/{file.path}" for file in output.files)
        staged, partitioned = read_parquet(self._spark, paths), self._partitioned()
        columns = [
            as_stored(column_of(field.name), field.dataType.simpleString()).alias(field.name)
            if field.name in partitioned
            else column_of(field.name)
            for field in staged.schema.fields
        ]
        return staged.select(*columns, *extra)

    def newest_per_key(self, output: EpochOutput) -> DataFrame:
        """Return one row per key: the newest one by the rule, then the last in publishing order.

        That is the order of files (batch, task, part), then of rows. With `delete_when` column `DELETES` marks deletions.
        """
        # Spark reads files in any order, so that their place in the publishing order is joined by the file's name,
        # which is unique.
        names = [(file.path.rpartition("/")[2], order) for order, file in enumerate(output.files)]
        order = self._spark.createDataFrame(names, f"{_FILE} string, {_ORDER} int")
        place = col("_metadata.file_name").alias(_FILE), col("_metadata.row_index").alias(_ROW)
        placed = self._rows(output, *place, *self._rule.marks()).join(broadcast(order), _FILE)
        newest = Window.partitionBy(*map(column_of, self._rule.keys)).orderBy(
            *self._rule.order([desc(_ORDER), desc(_ROW)])
        )
        ranked = placed.withColumn(_RANK, row_number().over(newest)).where(col(_RANK) == 1)
        return ranked.drop(_FILE, _ROW, _ORDER, _RANK)


def publishing_session(spark: SparkSession) -> SparkSession:
    """Return a new session of the same context, with the settings by which a publisher reads and writes."""
    # It shares the context and its jars; settings and temporary views are its own.
    session = spark.newSession()
    for key, value in (PUBLISHING_SETTINGS | _DELTA_SETTINGS).items():
        session.conf.set(key, value)
    return session


def require_delta_spark(spark: SparkSession) -> None:
    """Raise `EnvironmentUnfit` unless the session has delta-spark's jars and extension."""
    hint = 'use spark_ckpt.session(name, "delta"), or add the jars of delta-spark and both settings'
    if "DeltaSparkSessionExtension" not in (spark.conf.get("spark.sql.extensions", "") or ""):
        raise EnvironmentUnfit("spark.sql.extensions lacks io.delta.sql.DeltaSparkSessionExtension", hint=hint)
    if "DeltaCatalog" not in (spark.conf.get("spark.sql.catalog.spark_catalog", "") or ""):
        raise EnvironmentUnfit("spark.sql.catalog.spark_catalog is not Delta's DeltaCatalog", hint=hint)
    try:
        # Spark resolves the format before the path, so that any other error means that the jars are there.
        spark.read.format("delta").load("/spark-ckpt-no-such-table")
    except AnalysisException as error:
        if error.getCondition() == "DATA_SOURCE_NOT_FOUND":
            raise EnvironmentUnfit("delta-spark's jars are not on the class path", hint=hint) from error


def spark_path(table: str) -> str:
    """Return the place of a table or a folder for Spark: an absolute path, or a URI with Hadoop's `s3a`."""
    root = local_root(table)
    # Hadoop decodes nothing, deltalake decodes a URI.
    return str(root) if root is not None else unquote(table).replace("s3://", "s3a://", 1).rstrip("/")


def _reason(error: Exception) -> str:
    """Return one line: the innermost cause of a Java exception, or the first line of any other."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    causes = [line.strip().removeprefix("Caused by: ") for line in lines if line.strip().startswith("Caused by: ")]
    if causes:
        return causes[-1]
    return lines[1].removeprefix(": ") if isinstance(error, Py4JError) and len(lines) > 1 else lines[0]
