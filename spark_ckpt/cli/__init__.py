"""The command line `spark-ckpt`, one file for each command.

Only `demo`, `doctor`, `adopt` (for state) and `prepare` start a JVM.
"""

from __future__ import annotations


def main() -> None:
    """Run the command line; never returns normally. Commands load here, not at the import of the package."""
    try:
        from spark_ckpt.cli.app import run

        run()
    except KeyboardInterrupt:  # while modules load, which takes longer than many a command
        raise SystemExit(130) from None
