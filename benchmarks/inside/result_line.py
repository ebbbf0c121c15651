"""One line of `benchmarks/results.jsonl`, for the jobs that are measured without a broker."""

from __future__ import annotations

import json


def result_line(
    measure: str,
    workload: str,
    interval_s: float,
    repeat: int,
    values: dict[str, float],
    system: str = "spark_ckpt-builtin",
) -> str:
    """A line in the format of `docs/design/benchmarks.md`; the job is the running sum by built-in aggregation."""
    return json.dumps(
        {
            "measure": measure,
            "job": "running_sum",
            "workload": workload,
            "system": system,
            "interval_ms": round(interval_s * 1000),
            "repeat": repeat,
            "values": values,
        }
    )
