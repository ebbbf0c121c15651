"""The command line `spark-ckpt`, one file per verb. Nothing here starts a JVM except `demo` and `doctor`."""

from __future__ import annotations


def main() -> None:
    """Entry point; never returns normally. The commands are loaded here, not when the package is imported."""
    from spark_ckpt.cli.app import run

    run()
