"""`spark-ckpt jars`: the jars of a connector, for `spark-submit --jars`."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson
from spark_ckpt.cli.output import print_json, print_line


class Bundle(StrEnum):
    """What jars can be had."""

    KAFKA = "kafka"
    DELTA = "delta"


def jars(
    bundle: Annotated[list[Bundle], typer.Argument(help="One or both.")],
    as_json: AsJson = False,
) -> None:
    """Print jar files, comma-separated, fetching what is missing: spark-submit --jars "$(spark-ckpt jars kafka)" ..."""
    from spark_ckpt.jars import resolve

    paths = list(dict.fromkeys(str(path) for each in bundle for path in resolve(each.value)))
    if as_json:
        print_json({"bundles": [each.value for each in bundle], "jars": paths})
    else:
        print_line(",".join(paths))
