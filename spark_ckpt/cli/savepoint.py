"""`spark-ckpt savepoint`: names that keep epochs for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri
from spark_ckpt.cli.output import Id, iso, print_json, print_line, print_table, utc
from spark_ckpt.cli.stores import advice_for, chosen_epoch, open_store
from spark_ckpt.epochs.log_state import LogState
from spark_ckpt.store.stage_folder import restore_call_of

Name = Annotated[str, typer.Argument(metavar="NAME", help="The savepoint's name.")]

app = typer.Typer(help="Name epochs, so that they are kept for ever.", no_args_is_help=True, rich_markup_mode=None)


@app.command("add")
def add(
    store: StoreUri,
    name: Name,
    epoch: Annotated[int | None, typer.Option(help="The epoch's number; the newest if left out.")] = None,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Name an epoch that exists and is whole. A running job or query may continue."""
    opened = open_store(store, storage_option)
    log = opened.log
    number = chosen_epoch(log.state(), epoch)
    with advice_for(opened):
        opened.verify(log.manifest(number))  # a savepoint must be restorable
    log.add_savepoint(name, number)
    if as_json:
        print_json({"name": name, "epoch": number})
    else:
        call = restore_call_of(opened.location, log.state(), name)
        print_line(
            f"savepoint {name} is epoch {number}; {'restore it with' if call.startswith('job') else 'to go back,'} {call}"
        )


@app.command("drop")
def drop(store: StoreUri, name: Name, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """Delete a name; its epoch is subject to retention again."""
    log = open_store(store, storage_option).log
    epoch = log.state().savepoints.get(name)
    log.drop_savepoint(name)
    if as_json:
        print_json({"name": name, "epoch": epoch})
    else:
        print_line(f"savepoint {name} is forgotten; epoch {epoch} is an ordinary epoch again")


@app.command("list")
def list_savepoints(store: StoreUri, as_json: AsJson = False, storage_option: StorageOptions = None) -> None:
    """List the savepoints, oldest epoch first."""
    log_state = open_store(store, storage_option).log.state()
    found = sorted(log_state.savepoints.items(), key=lambda each: (each[1], each[0]))
    if as_json:
        print_json(
            [{"name": name, "epoch": epoch, "created": _created(log_state, epoch, iso)} for name, epoch in found]
        )
    elif found:
        print_table(
            ("savepoint", "epoch", "taken"),
            [(name, Id(epoch), _created(log_state, epoch, utc)) for name, epoch in found],
        )
    else:
        print_line("no savepoints; add one with: spark-ckpt savepoint add STORE NAME")


def _created(log_state: LogState, epoch: int, shown: Callable[[int], str]) -> str | None:
    brief = log_state.by_id.get(epoch)
    return shown(brief.created_ms) if brief else None
