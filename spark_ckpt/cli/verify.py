"""`spark-ckpt verify`: whether every kept epoch is whole."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri
from spark_ckpt.cli.output import Id, print_json, print_line, print_table
from spark_ckpt.cli.stores import open_store
from spark_ckpt.errors import EpochDamaged, FormatUnknown
from spark_ckpt.store.store import Store


def verify(
    store: StoreUri,
    epoch: Annotated[
        int | None, typer.Argument(metavar="[EPOCH]", help="One epoch's number; all kept ones if left out.")
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every file, not only its size.")] = False,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Check that the files of every kept epoch are there, and with --deep that they can be read. Exit code 5 if not."""
    opened = open_store(store, storage_option)
    epochs = [brief.epoch for brief in opened.log.tail().epochs] if epoch is None else [epoch]
    found = {number: damage(opened, number, deep) for number in epochs}
    if as_json:
        print_json(
            {
                "store": opened.location.uri,
                "deep": deep,
                "whole": not any(found.values()),
                "epochs": [{"epoch": each, "whole": why is None, "damage": why} for each, why in found.items()],
            }
        )
    else:
        _print(found)
    if any(found.values()):
        raise typer.Exit(EpochDamaged.exit_code)


def damage(store: Store, epoch: int, deep: bool) -> str | None:
    """What is wrong with an epoch, None if it is whole."""
    try:
        store.verify(store.log.manifest(epoch), deep=deep)
    except (EpochDamaged, FormatUnknown) as error:
        return told(epoch, error.what)
    return None


def told(epoch: int, why: str) -> str:
    """A damage beside the number of its epoch: said once."""
    return why.removeprefix(f"epoch {epoch}: ")


def _print(found: dict[int, str | None]) -> None:
    if not found:
        print_line("the store has no epochs")
        return
    print_table(
        ("epoch", "found", "why"), [(Id(each), "damaged" if why else "whole", why) for each, why in found.items()]
    )
    bad = [each for each, why in found.items() if why]
    good = [each for each, why in found.items() if not why]
    if bad and good:
        print_line(f'\nrestore="latest" passes over damaged epochs by itself; newest whole epoch: {max(good)}')
