"""`spark-ckpt state`: an operator's state at any kept epoch, read without a JVM."""

from __future__ import annotations

from typing import Annotated

import pyarrow as pa
import typer

from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri, pairs
from spark_ckpt.cli.output import datum, print_json, print_line, print_table
from spark_ckpt.cli.stores import chosen_epoch, open_store_with_state
from spark_ckpt.json_values import plain
from spark_ckpt.store.state_rows import snapshot_of, visible, with_keys
from spark_ckpt.wording import counted

Operator = Annotated[str, typer.Argument(metavar="OPERATOR", help="The operator's name, as `show` lists it.")]
Keys = Annotated[
    list[str] | None,
    typer.Option("--key", metavar="COLUMN=VALUE", help="Only keys with this value; may be repeated."),
]
Limit = Annotated[int, typer.Option(min=0, help="Rows to print at most; 0 prints all.")]


def state(
    store: StoreUri,
    operator: Operator,
    epoch: Annotated[int | None, typer.Option(help="The epoch's number; the newest if left out.")] = None,
    savepoint: Annotated[str | None, typer.Option(help="The epoch with this name.")] = None,
    key: Keys = None,
    limit: Limit = 20,
    version: Annotated[
        bool,
        typer.Option("--version", help="Only the version of the Delta table STORE/state/OPERATOR that is the epoch."),
    ] = False,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Print an operator's state at an epoch: one row per key, with the epoch that changed it last."""
    if epoch is not None and savepoint is not None:
        raise typer.BadParameter("give --epoch or --savepoint, not both")
    opened = open_store_with_state(store, storage_option)
    number = chosen_epoch(opened.log.state(), epoch, savepoint)
    snapshot = snapshot_of(opened.log.manifest(number), operator)
    if version:
        _print_version(operator, number, opened.state(operator).version(number), as_json)
        return
    everything = opened.state(operator).read(number)
    rows = visible(with_keys(everything, snapshot, pairs(key, "--key")), snapshot)
    shown = rows.slice(0, limit) if limit else rows
    if as_json:
        print_json(
            {
                "operator": operator,
                "epoch": number,
                "keys": everything.num_rows,
                "matching": rows.num_rows,
                "columns": [{"name": field.name, "type": str(field.type)} for field in rows.schema],
                "rows": plain(shown.to_pylist()),
            }
        )
    else:
        _print(operator, number, everything.num_rows, rows, shown)


def _print_version(operator: str, epoch: int, version: int, as_json: bool) -> None:
    """Print the number alone, for a script that writes `VERSION AS OF`."""
    if as_json:
        print_json({"operator": operator, "epoch": epoch, "version": version})
    else:
        print_line(str(version))


def _print(operator: str, epoch: int, keys: int, rows: pa.Table, shown: pa.Table) -> None:
    matching = "" if rows.num_rows == keys else f", {counted(rows.num_rows, 'matches', 'match')}"
    print_line(f"operator {operator}, epoch {epoch}: {counted(keys, 'key')}{matching}")
    if not shown.num_rows:
        return
    print_line()
    print_table(shown.column_names, [tuple(row.values()) for row in shown.to_pylist()], datum)
    if shown.num_rows < rows.num_rows:
        print_line(f"... {rows.num_rows - shown.num_rows:,} more; --limit 0 prints all, --key COLUMN=VALUE finds one")
