"""`spark-ckpt rescale`: change the number of key groups of an operator."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri
from spark_ckpt.cli.output import print_json, print_line, size
from spark_ckpt.cli.stores import open_store_with_state
from spark_ckpt.wording import counted


def rescale(
    store: StoreUri,
    operator: Annotated[str, typer.Argument(metavar="OPERATOR", help="The operator's name.")],
    key_groups: Annotated[int, typer.Option("--key-groups", min=1, max=32768, help="How many it is to have.")],
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Repartition an operator's state into another number of key groups, as a separate epoch. Refused while a driver
    runs.

    More groups let more tasks share the operator's work. Multiples of the old number are repartitioned group by group;
    other numbers need more memory. The job continues from the new epoch; earlier epochs stay unchanged.
    """
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
    print_line("where the job sets key_groups, set it to the new number")
