"""`spark-ckpt report`: the state of a store as one HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson, StorageOptions, StoreUri
from spark_ckpt.cli.output import print_json, print_line, size, write_file
from spark_ckpt.cli.stores import open_store
from spark_ckpt.errors import ConfigInvalid
from spark_ckpt.observability.page.report import report as drawn_report
from spark_ckpt.store.epoch_log import wall_ms


def report(
    store: StoreUri,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write it; an older file is replaced.")
    ] = Path("report.html"),
    as_json: AsJson = False,
    storage_option: StorageOptions = None,
) -> None:
    """Write one HTML file about a job: epochs, parts, graph, incarnations, the effect of a restore. No JVM, no
    server.
    """
    text = drawn_report(open_store(store, storage_option), wall_ms())
    try:
        write_file(output, text)
    except OSError as error:
        raise ConfigInvalid(f"{output} cannot be written: {error.strerror}", hint="give another --output") from error
    written = len(text.encode())
    if as_json:
        print_json({"file": str(output), "bytes": written})
    else:
        print_line(f"{output} ({size(written)})")
