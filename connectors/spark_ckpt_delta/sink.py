"""`DeltaSink`: writes rows exactly once into a user's Delta table, which may have other writers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from deltalake import DeltaTable, Schema
from deltalake.exceptions import DeltaError
from pyspark.sql.types import StructField, StructType

from checkpoint_protocols.ids import Epoch
from spark_ckpt.connector import PublishedEpoch, Publisher, SelectsRows, SinkContext, StagePlan
from spark_ckpt.connector_parts.arguments import checks_arguments
from spark_ckpt.errors import CkptError, ConfigInvalid, SinkInvalid
from spark_ckpt.place import check_table_path
from spark_ckpt.spark_internals.arrow_types import arrow_schema_of
from spark_ckpt.spark_internals.time_zones import session_zone
from spark_ckpt.storage_errors import one_line, outage, refusal_in
from spark_ckpt_delta.key_rules import NoNullKeys
from spark_ckpt_delta.log import identity_of, location, open_table, table_exists
from spark_ckpt_delta.marker import Engine, application_id, read_marker
from spark_ckpt_delta.merging import MergeRule
from spark_ckpt_delta.publisher import DeltalakePublisher
from spark_ckpt_delta.refusals import INCOMPLETE, lacks_versions, strange_feature
from spark_ckpt_delta.repair import command
from spark_ckpt_delta.rules import (
    check_collations,
    check_markers_stay,
    check_merges,
    check_names,
    check_names_for_delta_spark,
    check_partition_types,
    check_partitioning,
    check_schema,
    check_structs,
    check_writable,
    check_zone,
)
from spark_ckpt_delta.spark_publisher import SparkPublisher, publishing_session, require_delta_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NullKeys: TypeAlias = Literal["refuse", "match"]


_ELSEWHERE = {
    "path": "write table=",
    "mode": 'a job appends; with engine="spark" and keys=[...] it merges; transform(..., outputMode="complete") replaces',
    "checkpointLocation": "a job keeps its progress in its store; a sink needs none",
    "partitionBy": "write partition_by=",
    **dict.fromkeys(
        ("mergeSchema", "overwriteSchema"), "add the column to the table before the job writes it: docs/changing.md"
    ),
    "txnAppId": "the sink writes its own transaction marker",
}


@checks_arguments(_ELSEWHERE)
class DeltaSink(SelectsRows):
    """Write rows exactly once into the Delta table at `table`, a path or URI.

    - `engine="deltalake"` (default): tasks write the table's Parquet files. The publish of an epoch is one commit that
      names these files, and takes 10 to 20 ms. It rewrites no file and needs no jars.
    - `engine="spark"`: delta-spark appends the staged rows. With `keys` it merges them: the last row of a key in an epoch
      replaces the table's row. This engine needs delta-spark's jars and about a second per epoch. It can write tables with
      any feature that delta-spark supports and deltalake opens (not collations). Generated and identity columns may be
      absent from the rows. Use the same engine for a table in all jobs.
    - `partition_by`: partition columns of a table that the sink creates. An existing table keeps its own partition columns.
    - `create`: True lets the sink create the table if it does not exist. The start of the job creates it; with engine
      "spark" the first epoch does.
    - `storage_options`: options of the object store, as in deltalake. With engine "spark" you also have to set Hadoop's
      options.

    Merge by key (`keys`, engine "spark"): if a key has several rows, the row that arrived last wins. Change this rule with
    these options:

    - `newest_by`: a column, such as the event time. The row with the greatest value wins, among the rows of an epoch and
      the table's row. Null is older than every value. If values are equal, the later row wins.
    - `delete_when`: an SQL condition, such as "op = 'd'". If the winning row of a key meets the condition, the sink deletes
      the key's row from the table. The table then does not remember the key, so an older row that arrives in a later epoch
      is inserted again. To prevent this, do not use `delete_when`: keep deleted rows in the table and filter them when you
      read.
    - `null_keys`: "refuse" stops the job before it commits an epoch with a null in a key. "match" treats null as one key,
      so only one row with this key remains.

    Output mode "complete" of `transform`: the commit of an epoch replaces all rows of the table by the rows of the epoch.
    The sink must not have `keys`.

    Merge and other writers: Delta refuses a merge if another writer added rows to the merged part of the table meanwhile.
    The sink then tries again, up to six times with growing pauses, and logs each conflict. After six failures the epoch
    stays unpublished, and the job retries it like any failed publish. A writer that commits more often than a merge takes
    can block the merge for ever: let it commit less often. Or partition the table by a column of `keys`. A merge then reads
    only the partitions of its own rows, so writers of other partitions cause no conflict.

    Partition values: Delta returns an empty string in a partition column as null. With engine "spark" it does the same with
    the string `__HIVE_DEFAULT_PARTITION__`. A merge uses the values as the table stores them, so rows with such a string
    have the same key as rows with null. A timestamp as partition column needs engine "spark", and a session time zone with
    a fixed offset, such as UTC.

    With `interval="every batch"` the sink commits to the table once in ten seconds, with the rows of all epochs since its
    last commit. To change this time, set `to(sink, publish_every="1 second")`.
    """

    publish_every_ms = 10_000

    def __init__(
        self,
        table: str,
        *,
        engine: Engine = "deltalake",
        keys: Sequence[str] = (),
        newest_by: str | None = None,
        delete_when: str | None = None,
        null_keys: NullKeys = "refuse",
        storage_options: Mapping[str, str] | None = None,
        partition_by: Sequence[str] | None = None,
        create: bool = True,
    ) -> None:
        if engine not in ("deltalake", "spark"):
            raise ConfigInvalid(f"engine is 'deltalake' or 'spark', not {engine!r}")
        if keys and engine != "spark":
            raise ConfigInvalid("keys (merging) need the other engine", hint='DeltaSink(..., engine="spark")')
        if null_keys not in ("refuse", "match"):
            raise ConfigInvalid(f"null_keys is 'refuse' or 'match', not {null_keys!r}")
        if not keys and (newest_by is not None or delete_when is not None or null_keys != "refuse"):
            raise ConfigInvalid(
                "newest_by, delete_when and null_keys are rules of a merge", hint='DeltaSink(..., keys=["id"])'
            )
        check_table_path(table, "a sink's table")
        self._table = table
        self._engine = engine
        self._rule = MergeRule(tuple(keys), newest_by, delete_when)
        self._null_keys = null_keys
        self._storage_options = dict(storage_options or {})
        self._partition_by = None if partition_by is None else tuple(partition_by)
        self._create = create
        self._seen: dict[str, str] | None = None
        self._schema: StructType | None = None

    @property
    def replaces_rows(self) -> bool:
        """True without `keys`: a commit can replace all rows."""
        return not self._rule.keys

    def check(self, spark: SparkSession, schema: StructType) -> None:
        """Raise `SinkInvalid` for a missing table, other columns, or a feature that the engine cannot write.

        Raises `EnvironmentUnfit` if engine "spark" lacks its jars, `ConfigInvalid` for a type that Arrow does not have.
        """
        if self._engine == "spark":
            require_delta_spark(spark)
        check_names(self._table, schema)
        check_collations(self._table, schema)
        check_structs(self._table, schema)
        # Tasks stage rows as Arrow: it has no type for some of Spark's, which an outbox would see in its first batch only.
        arrow_schema_of(schema)
        rule = self._rule
        ours = (*rule.keys, *([rule.newest_by] if rule.newest_by is not None else ()), *(self._partition_by or ()))
        missing = [name for name in ours if name not in schema.names]
        if missing:
            raise SinkInvalid(f"columns {', '.join(missing)} are not in the job's rows", table=self._table)
        if rule.newest_by is not None or rule.delete_when is not None:
            # The rule is analysed in a session like the publisher's, whose settings decide how SQL is read.
            rule.check(self._table, publishing_session(spark).createDataFrame([], schema))
        opened = self._opened()
        self._seen = identity_of(self._table, opened)
        if opened is not None:
            self._check_existing(opened, schema)
        elif not self._create:
            raise SinkInvalid(f"{self._table} is not a Delta table", hint="create it, or DeltaSink(..., create=True)")
        elif self._engine == "spark":
            check_names_for_delta_spark(self._table, schema)
        partition_by = self._partition_columns(opened)
        if self._engine == "deltalake":
            check_partition_types(self._table, partition_by, schema)
        elif partition_by:
            # The publisher's session is a new one: it has the zone of the Spark configuration, and not one that the
            # program has set since.
            check_zone(self._table, partition_by, schema, session_zone(spark.newSession()))

    def stage(self, schema: StructType) -> StagePlan:
        """Return the staging plan. Engine "deltalake" stages in the table, created if absent; engine "spark" in the
        store.
        """
        # `publisher` needs it: for the types of partition columns, and to create a table without rows.
        self._schema = schema
        columns = arrow_schema_of(schema)
        if self._engine == "spark":
            strict = self._rule.keys and self._null_keys == "refuse"
            return StagePlan(schema=columns, refuses=NoNullKeys(self._rule.keys) if strict else None)
        opened = self._opened()
        partition_by = self._partition_columns(opened)
        if opened is None:
            # Tasks write the table's files before the first commit, and need its folder and layout.
            self._create_table(schema, partition_by)
        return StagePlan(
            root=location(self._table),
            storage_options=self._storage_options,
            partition_by=partition_by,
            schema=columns,
        )

    def publisher(self, spark: SparkSession, context: SinkContext) -> Publisher:
        """Return the publisher of one incarnation. Raises `SinkInvalid` if the other engine has published this
        sink's rows.
        """
        if self._engine == "deltalake":
            return DeltalakePublisher(self._table, self._storage_options, context, self._schema)
        return SparkPublisher(
            spark, self._table, self._storage_options, self._rule, self._partition_by or (), context, self._schema
        )

    def newest_published(self, context: SinkContext) -> PublishedEpoch | None:
        """Return the table's marker, or None."""
        opened = self._opened()
        marker = None if opened is None else read_marker(opened, application_id(context, self._engine))
        return None if marker is None else PublishedEpoch(marker.epoch, marker.incarnation, marker.is_of)

    def declaring(self, context: SinkContext, epoch: Epoch) -> str:
        """Return the command that sets the table's marker to `epoch`."""
        return command(self._table, self._storage_options, context, self._engine, epoch)

    def identity(self, spark: SparkSession) -> Mapping[str, str]:
        """Return the endpoint: path and table id. The id is empty while there is no table."""
        seen, self._seen = self._seen, None  # the answer of `check` serves one call only: later it may be outdated
        return seen or identity_of(self._table, self._opened())

    def describe(self) -> Mapping[str, str]:
        """Return kind, path and engine."""
        return {"kind": "delta", "path": self._table, "engine": self._engine}

    def _check_existing(self, opened: DeltaTable, schema: StructType) -> None:
        if self._engine == "deltalake":
            check_writable(self._table, opened)
        check_markers_stay(self._table, opened)
        check_schema(self._table, schema, json.loads(opened.schema().to_json()), generates=self._engine == "spark")
        if self._rule.keys:
            check_merges(self._table, opened, self._rule.keys)
        check_partitioning(self._table, opened.metadata().partition_columns, self._partition_by)

    def _opened(self) -> DeltaTable | None:
        try:
            if not table_exists(self._table, self._storage_options):
                return None
            return open_table(self._table, self._storage_options)
        except (DeltaError, OSError) as error:
            raise self._refused("opened", error) from error

    def _partition_columns(self, opened: DeltaTable | None) -> tuple[str, ...]:
        if opened is not None:
            return tuple(opened.metadata().partition_columns)
        return self._partition_by or ()

    def _create_table(self, schema: StructType, partition_by: Sequence[str]) -> None:
        """Create the table with nullable columns. Protocol (1, 2), unless timestamp_ntz needs a table feature."""
        plain = StructType([StructField(field.name, field.dataType) for field in schema.fields])
        try:
            DeltaTable.create(
                location(self._table),
                # Values inside columns as well: a later plan of the same program may allow nulls there.
                schema=Schema.from_json(json.dumps(json.loads(plain.json(), object_hook=_with_nulls))),
                # Two drivers may start at the same time: the one that loses the race uses the other's table.
                mode="ignore",
                partition_by=list(partition_by) or None,
                storage_options=self._storage_options or None,
            )
        except (DeltaError, OSError) as error:
            raise self._refused("created", error) from error

    def _refused(self, what: str, error: Exception) -> CkptError:
        if refusal_in(error) is not None:
            return outage(self._table, error)
        hint = (
            f"{INCOMPLETE}: the start then names what to confirm"
            if lacks_versions(str(error))
            else strange_feature(self._table, str(error))
        )
        return SinkInvalid(f"{self._table} cannot be {what}: {one_line(error)}", hint=hint, table=self._table)


def _with_nulls(found: dict[str, Any]) -> dict[str, Any]:
    return found | {name: True for name in ("nullable", "containsNull", "valueContainsNull") if name in found}
