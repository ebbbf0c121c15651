"""A Python worker's garbage collector skips objects that live as long as the process."""

from __future__ import annotations

import subprocess
import sys

SETTLED_TWICE = """
import gc
from spark_ckpt.tasks.worker_process import prepare_worker
prepare_worker()
frozen = gc.get_freeze_count()
assert frozen > 1000, frozen
later = [[] for _ in range(1000)]
prepare_worker()
assert gc.get_freeze_count() <= frozen, "what comes later is still collected"
"""


def test_a_worker_settles_once_and_what_comes_later_is_still_collected() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SETTLED_TWICE], check=False, capture_output=True, text=True, timeout=60
    )

    assert done.returncode == 0, done.stderr
