"""`spark-ckpt rescale`: change the number of key groups of an operator, or of partitions of Spark's own operators."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from spark_ckpt.cli.command_session import spark_for
from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri
from spark_ckpt.cli.output import print_json, print_line, size
from spark_ckpt.cli.stores import open_store_with_state
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.wording import counted

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def rescale(
    store: StoreUri,
    operator: Annotated[
        str | None, typer.Argument(metavar="[OPERATOR]", help="The name of one of the job's operators.")
    ] = None,
    key_groups: Annotated[
        int | None, typer.Option("--key-groups", min=1, max=32768, help="How many the operator is to have.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", min=1, max=32768, help="How many the state of Spark's own operators is to have."),
    ] = None,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Repartition an operator's state into another number of key groups, as a separate epoch. Refused while a driver
    runs.

    More groups let more tasks share the operator's work. Multiples of the old number are repartitioned group by group;
    other numbers need more memory. The job continues from the new epoch; earlier epochs stay unchanged.

    --partitions is for Spark's own operators, all at once: Spark repartitions their state. It has to be in RocksDB.
    """
    if partitions is not None and operator is None and key_groups is None:
        _partitions(store, partitions, as_json, storage_option)
    elif operator is not None and key_groups is not None and partitions is None:
        _key_groups(store, operator, key_groups, as_json, storage_option)
    else:
        raise ConfigInvalid(
            "rescale changes the key groups of one of the job's operators, or the partitions of Spark's own",
            hint="spark-ckpt rescale STORE OPERATOR --key-groups N, or: spark-ckpt rescale STORE --partitions N",
        )


def _key_groups(store: str, operator: str, key_groups: int, as_json: bool, storage_option: list[str] | None) -> None:
    # It loads pyspark, which most commands do not need.
    from spark_ckpt.driver.maintenance.rescale import rescale as deal_out

    done = deal_out(open_store_with_state(store, storage_option), operator, key_groups)
    if as_json:
        print_json(asdict(done))
        return
    rows, total = counted(done.rows, "key"), size(done.size_bytes)
    print_line(
        f"operator {operator}: {done.before} key groups, now {done.after}; {rows} in {total}; epoch {done.epoch}"
    )
    # The setting holds for all operators of the job, and others may have another number.
    print_line("where the job sets key_groups, leave it out: each operator keeps the number that the store has")


def _partitions(store: str, partitions: int, as_json: bool, storage_option: list[str] | None) -> None:
    from spark_ckpt.driver.maintenance.spark_partitions import repartition

    with spark_for("spark-ckpt rescale") as session:

        def announced() -> SparkSession:
            # Not on stdout, which may be JSON.
            typer.echo("starting Spark: it repartitions the state of its own operators", err=True)
            return session()

        done = repartition(open_store_with_state(store, storage_option), announced, partitions)
    if as_json:
        print_json(asdict(done))
        return
    named = ", ".join(done.operators)
    print_line(
        f"Spark's operators ({named}): {done.before} partitions, now {done.after}; {size(done.size_bytes)}; "
        f"epoch {done.epoch}"
    )
    print_line("where the job sets shuffle_partitions, set it to the new number")
