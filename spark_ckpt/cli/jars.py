"""`spark-ckpt jars`: the jars of a connector, for `spark-submit --jars`."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson
from spark_ckpt.cli.output import print_json, print_line


def jars(
    connector: Annotated[list[str], typer.Argument(help="Names from: spark-ckpt connectors. kafka, delta, ...")],
    as_json: AsJson = False,
) -> None:
    """Print jar files, comma-separated, fetching what is missing: spark-submit --jars "$(spark-ckpt jars kafka)" ..."""
    from spark_ckpt import connectors

    chosen = [connectors.named(each) for each in dict.fromkeys(connector)]
    paths = [str(path) for path in connectors.jar_paths(chosen)]
    if as_json:
        print_json({"connectors": [each.name for each in chosen], "jars": paths})
    else:
        print_line(",".join(paths))
