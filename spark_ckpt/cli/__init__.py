"""The command line `spark-ckpt`, one file for each command. No command here starts a JVM except `demo` and `doctor`."""

from __future__ import annotations


def main() -> None:
    """Run the command line; never returns normally. Commands load here, not at the import of the package."""
    from spark_ckpt.cli.app import run

    run()
