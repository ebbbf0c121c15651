"""`spark-ckpt verify`: check that every kept epoch is whole."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated

import typer

from spark_ckpt.cli.asked_sinks import refusal_of, sinks_behind
from spark_ckpt.cli.memory_check import check_memory, damage_text
from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri
from spark_ckpt.cli.output import Id, print_json, print_line, print_table
from spark_ckpt.cli.stores import open_store
from spark_ckpt.connector import Json
from spark_ckpt.epochs.records import Manifest
from spark_ckpt.epochs.sinks_behind import Behind
from spark_ckpt.errors import EpochDamaged, EpochNotFound, FormatUnknown, PublishConflict
from spark_ckpt.json_values import plain
from spark_ckpt.store.store import Store


def verify(
    store: StoreUri,
    epoch: Annotated[
        int | None, typer.Argument(metavar="[EPOCH]", help="One epoch's number; all kept ones if left out.")
    ] = None,
    deep: Annotated[bool, typer.Option("--deep", help="Read every byte of every file, not only its size.")] = False,
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Check that the files of every kept epoch exist, and with --deep every byte of them and of the epoch log. Exit code 5
    if not.

    Files that sources keep in the store (lists of consumed files) are always read in full, as at a start. Delta tables must have
    the rows that they have acknowledged: exit code 9 if one comes from an older backup.
    """
    opened = open_store(store, storage_option)
    epochs = [brief.epoch for brief in opened.log.state().epochs] if epoch is None else [epoch]
    found, unchecked = damages(opened, epochs, deep)
    if epoch is not None and not found:
        opened.log.manifest(epoch)  # raises EpochNotFound
    # An epoch's own row is read with its files. The other rows are checked with all epochs.
    log = [error.what for error in opened.log.damages()] if deep and epoch is None else []
    late, unknown = sinks_behind(opened)
    if as_json:
        print_json(
            {
                "store": opened.location.uri,
                "deep": deep,
                "whole": not any(found.values()) and not log,
                "epochs": [{"epoch": each, "whole": why is None, "damage": why} for each, why in found.items()],
                "log": [*log],
                "unchecked_sources": [*unchecked],
                "sinks_behind": [plain(asdict(each)) for each in late],
                "sinks_unknown": dict[str, Json](unknown),
            }
        )
    else:
        _print(found, deep, [brief.epoch for brief in opened.log.state().ancestry()])
        for damage in log:
            print_line(f"\ndamaged in the epoch log: {damage}")
        if log:
            print_line("bring the file back from a backup of the folder epochs")
        for source in unchecked:
            print_line(f"not checked: what source {source} keeps in the store; its connector is not installed here")
        _print_sinks(opened, late, unknown)
    if any(found.values()) or log:
        raise typer.Exit(EpochDamaged.exit_code)
    if late:
        raise typer.Exit(PublishConflict.exit_code)


def damages(store: Store, epochs: Sequence[int], deep: bool) -> tuple[dict[int, str | None], list[str]]:
    """Return the damage of each epoch that the log still has at the end, None if it is whole; and the sources whose files in
    the store cannot be checked here.
    """
    manifests: list[Manifest] = []
    found: dict[int, str | None] = {}
    for epoch in epochs:
        with suppress(EpochNotFound):  # retention has dropped it since the list was read
            found[epoch] = _damage(store, epoch, deep, manifests)
    memory = check_memory(store, manifests)
    for epoch, errors in memory.damage.items():
        found[epoch] = "; ".join(filter(None, [found[epoch], damage_text(errors.items())]))
    # A deep check takes minutes. Meanwhile the driver's retention drops epochs, and then deletes their files.
    kept = store.log.state().by_id
    return {epoch: why for epoch, why in found.items() if epoch in kept}, memory.unchecked


def _damage(store: Store, epoch: int, deep: bool, read: list[Manifest]) -> str | None:
    """Return the damage of an epoch's own files. Appends its manifest, if readable, to `read`."""
    try:
        manifest = store.log.manifest(epoch)
        read.append(manifest)
        store.verify(manifest, deep=deep)
    except EpochDamaged as error:
        return without_epoch(epoch, error.what) + _unneeded(store, epoch, error)
    except FormatUnknown as error:
        return without_epoch(epoch, error.what)
    return None


def without_epoch(epoch: int, why: str) -> str:
    """Return a damage without the number of its epoch, which the row shows already."""
    return why.removeprefix(f"epoch {epoch}: ")


def _unneeded(store: Store, epoch: int, error: EpochDamaged) -> str:
    log_state, sink = store.log.state(), str(error.context.get("sink"))
    # An epoch of a branch that a restore left may be below the newest acknowledgement and have no rows in the sink.
    published = epoch <= log_state.acked.get(sink, 0) and epoch not in log_state.unacked(sink)
    # Only readers of the store need rows that their sink has published.
    return f" (rows that sink {sink} has published already: no restore needs them)" if published else ""


def _print_sinks(store: Store, late: list[Behind], unknown: dict[str, str]) -> None:
    for sink, why in unknown.items():
        print_line(f"\nsink {sink} was not compared: {why}")
    if (error := refusal_of(store, late)) is not None:
        print_line(f"\n{error}")


def _print(found: dict[int, str | None], deep: bool, branch: Sequence[int]) -> None:
    """Print the result. `branch`: the epochs that the job continues from, newest first."""
    if not found:
        print_line("the store has no epochs")
        return
    good_is = "whole" if deep else "present"
    print_table(
        ("epoch", "found", "why"), [(Id(each), "damaged" if why else good_is, why) for each, why in found.items()]
    )
    if not deep:
        print_line("present: every file exists with its size; --deep compares every byte with its digest")
    bad = [each for each, why in found.items() if why]
    good = [each for each, why in found.items() if not why]
    if bad and good:
        # An epoch of a branch that a restore left has rows that the job has produced again since.
        best = next((each for each in branch if each in good), max(good))
        print_line(
            f"\nnewest {good_is} epoch: {best}; for the effects of restoring it: spark-ckpt restore STORE {best}"
        )
