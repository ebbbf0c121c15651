"""The job under test with a bug in it: its driver decides epochs without a look at who holds the lease."""

from __future__ import annotations

import sys

import spark_ckpt.store.epoch_log as epoch_log
from integration_tests.survival.driver import main


def _looks_at_nothing(_tail: object, _incarnation: int) -> None:
    """Instead of the comparison with the log's newest incarnation."""


if __name__ == "__main__":
    epoch_log._fence = _looks_at_nothing  # type: ignore[assignment]
    sys.exit(main())
