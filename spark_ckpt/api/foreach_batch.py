"""The sink of `Stream.foreachBatch`: a user's function is called with the rows of each committed epoch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from spark_ckpt.connector import EpochOutput, Publisher, PublishReceipt, SinkContext, StagePlan
from spark_ckpt.errors import ConfigInvalid, PublishFailed
from spark_ckpt.failpoints import Failpoint, hit
from spark_ckpt.place import local_path
from spark_ckpt.spark_internals.parquet_files import read_parquet
from spark_ckpt.store.location import Location
from spark_ckpt.tasks.rows import arrow_schema, check_stageable

BatchFunction: TypeAlias = "Callable[[DataFrame, int], None]"

_AS_WRITTEN = {"datetimeRebaseMode": "CORRECTED", "ignoreMissingFiles": "false", "ignoreCorruptFiles": "false"}
"""Options by which Spark reads staged rows as tasks wrote them, not by settings of the session."""


class ForeachBatchSink:
    """Calls `function` with the rows of an epoch and its number, after the commit of the epoch."""

    replaces_rows = True
    """The function gets the whole result of output mode "complete", as in Spark."""

    def __init__(self, function: BatchFunction) -> None:
        """Raise `ConfigInvalid` for a function that does not take a DataFrame and a number."""
        try:
            inspect.signature(function).bind(None, 0)
        except (TypeError, ValueError) as error:
            raise ConfigInvalid(
                f"foreachBatch takes a function of a DataFrame and the epoch's number: {error}",
                hint="def write(frame, epoch): ...",
            ) from None
        self._function = function
        self._schema: StructType | None = None

    def check(self, spark: SparkSession, schema: StructType) -> None:
        """Raise `GraphInvalid` for columns of one name, and for a struct without fields; any other row fits."""
        check_stageable(schema, "a row for foreachBatch")

    def stage(self, schema: StructType) -> StagePlan:
        """Return the plan: files in the store."""
        self._schema = schema
        return StagePlan(schema=arrow_schema(schema))

    def publisher(self, spark: SparkSession, context: SinkContext) -> Publisher:
        """Return the publisher, which calls the function on its own thread."""
        if self._schema is None:
            raise PublishFailed("the rows of the sink are not planned yet", sink=context.sink)
        return _Calls(self._function, spark, self._schema, context.sink)

    def describe(self) -> Mapping[str, str]:
        """Return the kind, and the function's name."""
        return {"kind": "foreachBatch", "function": getattr(self._function, "__qualname__", "a function")}


def _in_order(frame: DataFrame, names: Sequence[str]) -> DataFrame:
    from pyspark.sql import functions as F

    at = frame.metadataColumn("_metadata")
    # One text for all names, none of which has a slash.
    place = F.array_position(F.split(F.lit("/".join(names)), "/"), at["file_name"])
    # By file and row, since Spark reads the largest file first.
    return frame.orderBy(place, at["row_index"])


class _Calls:
    """Calls of one incarnation. A call that returns acknowledges the epoch."""

    def __init__(self, function: BatchFunction, spark: SparkSession, schema: StructType, sink: str) -> None:
        self._function = function
        self._spark = spark
        self._schema = schema
        self._sink = sink

    def publish(self, output: EpochOutput) -> PublishReceipt:
        """Call the function, unless the epoch has no rows. Raises `EpochDamaged`, and the function's errors."""
        rows = sum(file.rows for file in output.files)
        # A whole result without rows is a call, too: the function has to empty its table.
        if output.files or output.replaces:
            frame = self._frame(output)
            hit(Failpoint.PRE_COMMIT)
            self._function(frame, int(output.epoch))
            hit(Failpoint.PUBLISH_COMMITTED)
        # The function has no marker, by which it could recognise an epoch that it was called with before.
        return PublishReceipt(output.epoch, rows, replayed=False)

    def close(self) -> None:
        """Do nothing."""

    def _frame(self, output: EpochOutput) -> DataFrame:
        if not output.files:
            return self._spark.createDataFrame([], self._schema)
        place = Location(output.root, dict(output.storage_options))
        # Compared here: Spark knows no digest of them and would hand damaged rows to the function.
        for file in output.files:
            place.verify(file, epoch=output.epoch, sink=self._sink)
        local = local_path(output.root)
        # Hadoop's connector for S3 has the scheme s3a, deltalake's has s3.
        root = str(local) if local is not None else output.root.replace("s3://", "s3a://", 1)
        paths = [f"{root.rstrip('/')}/{file.path}" for file in output.files]
        frame = read_parquet(self._spark, paths, schema=self._schema, **_AS_WRITTEN)
        if not output.replaces or len(paths) == 1:
            return frame
        # A whole result may be sorted.
        return _in_order(frame, [file.path.rpartition("/")[2] for file in output.files])
