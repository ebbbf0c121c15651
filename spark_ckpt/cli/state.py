"""`spark-ckpt state`: an operator's state at any kept epoch, read without a JVM; that of Spark's own operators with one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

import pyarrow as pa
import typer

from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri, pairs
from spark_ckpt.cli.output import datum, print_json, print_line, print_table
from spark_ckpt.cli.sparks_rows import ReaderOptions, refuse_reader_options, sparks_rows_of
from spark_ckpt.cli.state_copy import StateCopy, is_within
from spark_ckpt.cli.stores import chosen_epoch, open_store_with_state
from spark_ckpt.connector import Json
from spark_ckpt.epochs.records import Manifest, SparkState
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.json_values import plain
from spark_ckpt.store.state_rows import snapshot_of, sparks_operator, visible, with_keys
from spark_ckpt.store.store import Store
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
    to: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="Write all rows to this Delta table, in one commit that replaces its rows."),
    ] = None,
    option: ReaderOptions = None,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Print an operator's state at an epoch: one row per key, with the epoch that changed it last.

    For one of Spark's own operators it starts Spark, which takes some seconds, and prints the rows of Spark's state reader.
    """
    if epoch is not None and savepoint is not None:
        raise typer.BadParameter("give --epoch or --savepoint, not both")
    if to is not None and (version or key):
        raise typer.BadParameter("--to writes the whole state: leave --key and --version out")
    opened = open_store_with_state(store, storage_option)
    number = chosen_epoch(opened.log.state(), epoch, savepoint)
    manifest = opened.log.manifest(number)
    if to is not None and is_within(to, opened.location):
        raise ConfigInvalid("the store keeps only its own tables", hint="name a table outside of the store", table=to)
    copy = None if to is None else StateCopy(to, operator, opened.id, pairs(storage_option, "--storage-option"))
    asked = _Asked(operator, number, pairs(key, "--key"), limit, copy, as_json)
    sparks = sparks_operator(manifest, operator)
    if version and sparks is not None:
        raise ConfigInvalid(f"the state of '{operator}' is Spark's own: no table has it", hint="write one with --to")
    if version:
        snapshot_of(manifest, operator)  # raises for an operator that the epoch has not
        _print_version(operator, number, opened.state(operator).version(number), as_json)
    elif sparks is not None:
        _sparks(asked, opened, sparks, pairs(option, "--option"))
    else:
        refuse_reader_options(option, operator)
        _own(asked, opened, manifest)


@dataclass(frozen=True, slots=True)
class _Asked:
    """The question: see the options of `state`."""

    operator: str
    epoch: int
    keys: Mapping[str, str]
    limit: int
    copy: StateCopy | None
    as_json: bool


def _own(asked: _Asked, store: Store, manifest: Manifest) -> None:
    snapshot = snapshot_of(manifest, asked.operator)
    everything = store.state(asked.operator).read(asked.epoch)
    if asked.copy is not None:
        _print_copy(asked, asked.copy.write(visible(everything, snapshot), asked.epoch), everything.num_rows)
        return
    rows = visible(with_keys(everything, snapshot, asked.keys), snapshot)
    shown = rows.slice(0, asked.limit) if asked.limit else rows
    _print(asked, "key", everything.num_rows, rows.num_rows, shown)


def _sparks(asked: _Asked, store: Store, sparks: tuple[SparkState, int], options: Mapping[str, str]) -> None:
    with sparks_rows_of("state", store, {asked.epoch: sparks}, options) as found:
        rows = found[asked.epoch]
        if asked.copy is not None:
            with rows.batches() as batches:
                version = asked.copy.write(batches, asked.epoch)
            _print_copy(asked, version, rows.total)
            return
        matching = rows.matching(asked.keys)
        count = matching.count() if asked.keys else rows.total  # Spark reads the state once more for a count
        shown = (matching.limit(asked.limit) if asked.limit else matching).toArrow()
    _print(asked, "row", rows.total, count, shown)


def _print_version(operator: str, epoch: int, version: int, as_json: bool) -> None:
    if as_json:
        print_json({"operator": operator, "epoch": epoch, "version": version})
    else:
        print_line(str(version))  # the number alone, for a script that writes `VERSION AS OF`


def _print_copy(asked: _Asked, version: int, rows: int) -> None:
    table = "" if asked.copy is None else asked.copy.table
    if asked.as_json:
        fields: dict[str, Json] = {
            "operator": asked.operator,
            "epoch": asked.epoch,
            "table": table,
            "version": version,
            "rows": rows,
        }
        print_json(fields)
    else:
        what = f"operator {asked.operator}, epoch {asked.epoch}: {counted(rows, 'row')}"
        print_line(f"{what} written to {table}, version {version}")


def _print(asked: _Asked, of: str, total: int, matching: int, shown: pa.Table) -> None:
    """Print the rows. `of`: a row of the state is one "key", or one "row" of several that a key may have."""
    if asked.as_json:
        print_json(
            {
                "operator": asked.operator,
                "epoch": asked.epoch,
                f"{of}s" if of == "key" else "state_rows": total,
                "matching": matching,
                "columns": [{"name": field.name, "type": str(field.type)} for field in shown.schema],
                "rows": plain(shown.to_pylist()),
            }
        )
        return
    selected = "" if matching == total else f", {counted(matching, 'matches', 'match')}"
    print_line(f"operator {asked.operator}, epoch {asked.epoch}: {counted(total, of)}{selected}")
    if not shown.num_rows:
        return
    print_line()
    print_table(shown.column_names, [tuple(row.values()) for row in shown.to_pylist()], datum)
    if shown.num_rows < matching:
        print_line(f"... {matching - shown.num_rows:,} more; --limit 0 prints all, --key COLUMN=VALUE finds one")
