"""PySpark's worker daemon, with what every task of this library imports already imported.

Spark forks its Python workers from one daemon. Imported there, pandas, pyarrow and this library are loaded once and shared by all
workers, instead of by each for itself, which cost 0.5-1 s CPU a worker and was most of a first batch. Named by
`spark.python.daemon.module`; `spark_ckpt.session` sets it.
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
    """Import, hide what was imported from the garbage collector (it would unshare the pages), serve."""
    if sys.argv[1:] == [WORKER]:  # Spark's planner has daemons of its own, whose workers do little
        for name in _IMPORTED:
            importlib.import_module(name)
        gc.collect()
        gc.freeze()
    serve_workers()


if __name__ == "__main__":
    main()
