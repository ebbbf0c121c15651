"""The job under test as if each driver had its own host: none sees another one's process, so only the lease shows its end."""

from __future__ import annotations

import os
import sys

from integration_tests.survival.driver import main
from spark_ckpt.store import holder


def _kernel_of_its_own() -> str:
    return f"kernel of {os.getpid()}"


if __name__ == "__main__":
    holder.boot_id = _kernel_of_its_own
    sys.exit(main())
