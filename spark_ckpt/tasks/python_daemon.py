"""PySpark's worker daemon, with this library's task modules preloaded.

Spark forks its Python workers from one daemon. Workers share pandas, pyarrow and this library, which the daemon imports
once. Separate imports cost 0.5 to 1 s of CPU per worker, most of a first batch. Spark finds this module in
`spark.python.daemon.module`, which `spark_ckpt.session` sets.
"""

from __future__ import annotations

import gc
import importlib
import sys

from spark_ckpt.spark_internals.python_workers import IMPORTED_BY_WORKERS, WORKER, serve_workers

_IMPORTED = (
    "pandas",
    "pyarrow.compute",
    "pyarrow.parquet",
    *IMPORTED_BY_WORKERS,
    "spark_ckpt.tasks.operators.aggregations",
    "spark_ckpt.tasks.operators.keyed_function",
    "spark_ckpt.tasks.group_host",
    "spark_ckpt.tasks.stage_tasks",
    "spark_ckpt.tasks.operators.vectorized",
    "spark_ckpt.store.location",
)


def main() -> None:
    """Import the task modules, exclude them from garbage collection, and serve workers.

    A collection would write to shared memory pages and so copy them into each worker.
    """
    if sys.argv[1:] == [WORKER]:  # Spark's planner runs separate daemons, whose workers need no imports
        for name in _IMPORTED:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()
    serve_workers()


if __name__ == "__main__":
    main()
