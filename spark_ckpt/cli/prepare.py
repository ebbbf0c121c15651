"""`spark-ckpt prepare`: make later starts on this machine faster."""

from __future__ import annotations

from typing import Annotated

import typer

from spark_ckpt.cli.options import AsJson
from spark_ckpt.cli.output import print_json, print_line


def prepare(
    connector: Annotated[
        list[str] | None, typer.Argument(help="Fetch these connectors' jars too: kafka, delta, ...")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Archive Spark's classes, so that a driver starts and restarts faster. Run it once per machine and PySpark
    version.
    """
    from spark_ckpt import connectors
    from spark_ckpt.spark_internals.launching import PYTHON_START
    from spark_ckpt.spark_session import class_archive

    connectors.jar_paths([connectors.named(each) for each in connector or []])
    archive = class_archive.create()
    if as_json:
        print_json(
            {
                "archive": str(archive),
                "bytes": archive.stat().st_size,
                "java_options": class_archive.options(),
                "python_path": PYTHON_START,
            }
        )
        return
    print_line(f"archived {archive.stat().st_size >> 20} MiB of classes: {archive}")
    print_line("spark_ckpt.session(...) takes it from there. For spark-submit add this option:")
    print_line(f'  --driver-java-options "{class_archive.options()}"')
    print_line("and this folder, from which Spark's Python processes start sooner:")
    print_line(f'  export PYTHONPATH="{PYTHON_START}:$PYTHONPATH"')
