"""State of Spark's own operators for `state` and `diff`: read by Spark, a column for each field of key and value."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import pyarrow.dataset as pads
import typer

from spark_ckpt.cli.command_session import spark_for
from spark_ckpt.epochs.records import SparkState
from spark_ckpt.errors import CkptError, ConfigInvalid
from spark_ckpt.storage_errors import one_line
from spark_ckpt.store.store import Store

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

ReaderOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        metavar="NAME=VALUE",
        help="An option of Spark's state reader, for its own operators: joinSide=left, stateVarName=sum.",
    ),
]


@dataclass(frozen=True, slots=True)
class SparksRows:
    """Rows of an operator's state at an epoch, in Spark.

    - `keys`: names of the key columns.
    - `total`: number of rows before a selection of keys.
    """

    store: Store
    state: SparkState
    epoch: int
    frame: DataFrame
    keys: tuple[str, ...]
    total: int

    def matching(self, wanted: Mapping[str, str]) -> DataFrame:
        """Return the rows whose key columns have these values, given as text, sorted by key. Raises `ConfigInvalid`."""
        from pyspark.sql import functions as F

        from spark_ckpt.spark_internals.column_names import column_of

        rows = self.frame
        for name, text in wanted.items():
            if name not in self.keys:
                raise ConfigInvalid(f"'{name}' is no key of the operator", hint=f"its keys: {', '.join(self.keys)}")
            rows = rows.where(column_of(name).cast("string") == F.lit(text))
        return rows.orderBy(*map(column_of, self.keys)) if self.keys else rows

    @contextmanager
    def batches(self) -> Iterator[pa.RecordBatchReader]:
        """Yield the rows in batches, read from Parquet files that the executors write and this deletes."""
        from spark_ckpt.api.sparks_state import reading_folder

        runs = reading_folder(self.frame.sparkSession, self.store, self.state, self.epoch)
        # Next to the folder for Spark's reader, which driver and executors share.
        folder = runs.with_name(f"{runs.name}-{uuid.uuid4().hex[:8]}")
        try:
            self.frame.write.parquet(folder.as_uri())
            # Spark writes times with nanoseconds, by default; Delta has microseconds.
            form = pads.ParquetFileFormat(read_options=pads.ParquetReadOptions(coerce_int96_timestamp_unit="us"))
            yield pads.dataset(folder, format=form).scanner().to_reader()
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def sparks_rows_of(
    command: str, store: Store, epochs: Mapping[int, tuple[SparkState, int]], options: Mapping[str, str]
) -> Iterator[dict[int, SparksRows]]:
    """Yield an operator's rows at each epoch, given as (state, number of the operator). Starts Spark, and says so.

    Raises `ConfigInvalid` for options that Spark refuses, `EpochDamaged`, `EnvironmentUnfit`.
    """
    # Not on stdout, which may be JSON.
    typer.echo("starting Spark: only Spark reads the state of its own operators", err=True)
    with spark_for(f"spark-ckpt {command}") as session:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException

        from spark_ckpt.api.sparks_state import flat_rows, sparks_rows_now

        try:
            found = {}
            for epoch, (state, number) in epochs.items():
                frame, keys = flat_rows(sparks_rows_now(session(), store, state, epoch, number, options))
                found[epoch] = SparksRows(store, state, epoch, frame, tuple(keys), frame.count())
            yield found
        except (PySparkException, Py4JError) as error:
            raise _refused(error) from error


def refuse_reader_options(option: Sequence[str] | None, operator: str) -> None:
    """Raise `ConfigInvalid` for options of Spark's state reader that the state of `operator` does not need."""
    if option:
        raise ConfigInvalid(
            f"--option is for Spark's own operators, '{operator}' is the job's", hint="leave --option out"
        )


def _refused(error: Exception) -> CkptError:
    return ConfigInvalid(
        f"Spark cannot read the state: {one_line(error)}", hint="see Spark's options of format('statestore'): --option"
    )
