"""`spark-ckpt ui`: the state of stores as a page in a browser."""

from __future__ import annotations

import gc
from typing import Annotated

import typer

from spark_ckpt.cli.options import StorageOptions, pairs
from spark_ckpt.cli.output import flush, print_line
from spark_ckpt.errors import EnvironmentUnfit

_YOUNG = 100_000
"""Number of new objects that starts Python's garbage collector. With the default, an overview of ten thousand epochs
spends a third of its time in the collector. This process does nothing else.
"""


def ui(
    stores: Annotated[
        list[str],
        typer.Argument(
            metavar="STORE...",
            help="Stores of jobs, running or not; or the folder of a program with stages.",
        ),
    ],
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 4141,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Everyone who can reach it can read state and cursors.")
    ] = "127.0.0.1",
    name: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another host name to answer to, such as a proxy's; may be repeated."),
    ] = None,
    storage_option: StorageOptions = None,
) -> None:
    """Show jobs in a browser: epochs and their parts, graph, incarnations, the effect of a restore, state. Changes
    nothing.
    """
    try:
        from spark_ckpt.observability.page.serving import PageServer
    except ImportError as error:
        raise EnvironmentUnfit("the page needs starlette and uvicorn", hint="pip install 'spark-ckpt[ui]'") from error
    gc.set_threshold(_YOUNG)
    server = PageServer(stores, host, port, name or (), pairs(storage_option, "--storage-option"))
    print_line(f"{server.url}  (Ctrl-C ends it)")
    flush()  # the server blocks from here on, and a pipe holds lines back
    server.run()
