"""`format("outbox")`: an outbox as a data source of Spark, for queries that cannot have `foreachBatch`.

Spark Declarative Pipelines name their sinks by a format and options. Each session that looks for data sources loads this
module, so it imports little.

Spark uses an object of this class in three processes: one makes it when the query starts; one makes it again for each
batch, before the tasks; one gets the first one, and calls `commit`.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, MutableMapping
from importlib import import_module
from typing import TYPE_CHECKING

from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.spark_versions import require_spark_of_format

require_spark_of_format()

from pyspark.sql.datasource import DataSource  # noqa: E402 - an older PySpark has no such module

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.types import StructType

    from spark_ckpt.outbox.outbox import Outbox
    from spark_ckpt.outbox.running import OutboxSettings

_EXAMPLE = '.option("outbox", "orders_outbox:out")'


class OutboxDataSource(DataSource):
    """`df.writeStream.format("outbox").option("outbox", "module:attribute")`: exactly-once output without a function.

    Spark finds it by itself if this package is installed. `spark.dataSource.register(ckpt.OutboxDataSource)` registers
    it by hand.

    Options:

    - `outbox`: the `Outbox` that an importable module holds, or a function without arguments that returns it.
    - `checkpointLocation`: the query's checkpoint. Declarative Pipelines set it.
    - `restore`, `accept_query`, `accept_new_sink`, `accept_moved`: as in `Outbox.start`; several names with commas.

    Raises `ConfigInvalid` before the first task of the query for a sink that needs Spark to publish. See docs/outbox.md.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        # The name is made when the query starts, and pickled to the process that commits. It distinguishes a moved
        # run from a new one.
        self._run = uuid.uuid4().hex
        self._commits = False

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "outbox"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return the writer of one batch: for its tasks, or for its commit."""
        from spark_ckpt.outbox import batch_writer

        settings = settings_of(self.options, self._run, overwrite)
        if self._commits:
            return batch_writer.CommittingWriter(settings, schema)
        return batch_writer.staging_writer(settings, schema)

    def __setstate__(self, state: Mapping[str, object]) -> None:
        # Only the process that commits gets the object by pickle.
        self.__dict__.update(state, _commits=True)


def settings_of(options: Mapping[str, str], run: str, overwrite: bool) -> OutboxSettings:
    """Return the settings of the outbox that the options name. Raises `ConfigInvalid`."""
    from dataclasses import replace

    from spark_ckpt.outbox.outbox import refuse_complete

    if overwrite:  # Spark's flag for output mode complete
        refuse_complete(by_format=True)
    checkpoint = options.get("checkpointLocation")
    if not checkpoint:
        raise ConfigInvalid(
            'format("outbox") reads the identity of a batch from the query\'s checkpoint',
            hint='.option("checkpointLocation", "/data/checkpoints/orders")',
        )
    settings = named_outbox(options.get("outbox") or "").confirmed(
        options.get("restore"),
        options.get("accept_query") or "",
        _names(options.get("accept_new_sink")),
        _names(options.get("accept_moved")),
        checkpoint,
    )
    if settings.overlap:
        raise ConfigInvalid(
            'format("outbox") publishes before Spark commits a batch: Spark ends and exchanges the processes that commit',
            hint="take overlap=True out",
        )
    if any(target.startswith("prometheus") for target in settings.metrics):
        raise ConfigInvalid(
            'format("outbox") serves no metrics: Spark ends and exchanges the processes that commit',
            hint='Outbox(..., metrics="otel") sends them',
        )
    # Spark ends an idle process of a commit without notice, so no acknowledgement waits there.
    # The run's name becomes the holder's: `still_accepted` knows by it a run that has moved.
    return replace(settings, ack_wait_ms=0, run=f"{settings.name}, run {run}")


def named_outbox(reference: str) -> Outbox:
    """Return the outbox that `module:attribute` names. Raises `ConfigInvalid`."""
    from spark_ckpt.outbox.outbox import Outbox

    module, _, attribute = reference.partition(":")
    if not module or not attribute.isidentifier():
        raise ConfigInvalid(
            f'format("outbox") needs option outbox as module:attribute, not {reference!r}', hint=_EXAMPLE
        )
    try:
        found = getattr(import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise ConfigInvalid(
            f"the outbox {reference} cannot be imported: {error}",
            hint="put it into a module that the driver's Python workers can import: install it, or add its folder to "
            "PYTHONPATH before Spark starts",
        ) from error
    outbox = found() if callable(found) else found
    if not isinstance(outbox, Outbox):
        raise ConfigInvalid(f"{reference} is {type(outbox).__name__}, not an Outbox", hint=_EXAMPLE)
    return outbox


def _names(text: str | None) -> frozenset[str]:
    return frozenset(name.strip() for name in (text or "").split(",") if name.strip())
