"""`spark-ckpt bootstrap`: start a new operator of a job with the state of another one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri
from spark_ckpt.cli.output import print_json, print_line, size
from spark_ckpt.cli.stores import chosen_epoch, open_store_with_state
from spark_ckpt.wording import counted


def bootstrap(
    store: StoreUri,
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="The new operator's name.")],
    of: Annotated[str, typer.Option("--of", metavar="OPERATOR", help="Whose state it begins with.")],
    epoch: Annotated[int | None, typer.Option(help="That operator's epoch; the newest if left out.")] = None,
    savepoint: Annotated[str | None, typer.Option(help="The epoch with this name.")] = None,
    from_store: Annotated[
        str | None, typer.Option("--from-store", metavar="STORE", help="The store with that epoch, if it is another.")
    ] = None,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Give a new operator of a job the state of another one, as a separate epoch. Refused while a driver runs.

    Use it to rename an operator, to restore a removed one, or to take another job's state. It copies keys, values and
    timeouts, but no source positions: you must know which source rows the state has seen. The key and state columns of
    the new operator must be those of the old one; state columns may be added at the end.
    """
    if epoch is not None and savepoint is not None:
        raise typer.BadParameter("give --epoch or --savepoint, not both")
    from spark_ckpt.driver.maintenance.bootstrap import Origin  # loads pyspark, which most commands do not need
    from spark_ckpt.driver.maintenance.bootstrap import bootstrap as begin

    origin = open_store_with_state(from_store or store, storage_option)
    number = chosen_epoch(origin.log.state(), epoch, savepoint)
    done = begin(open_store_with_state(store, storage_option), operator, Origin(origin, number, of))
    if as_json:
        print_json(asdict(done))
        return
    rows, total = counted(done.rows, "key"), size(done.size_bytes)
    print_line(f"operator {operator}: {rows} in {total}, {done.key_groups} key groups, of {of} at epoch {number}")
    print_line(f"epoch {done.epoch}: the job begins with it")
