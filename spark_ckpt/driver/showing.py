"""Live view of a run in a terminal or notebook, with its lag."""

from __future__ import annotations

from collections.abc import Callable

from spark_ckpt.driver.job_plan import JobPlan
from spark_ckpt.driver.lag_watch import LagWatch
from spark_ckpt.driver.progress import Progress
from spark_ckpt.observability.live_view import follow


def show(plan: JobPlan, progress: Progress, is_over: Callable[[float], bool], seconds: float | None) -> None:
    """Show the run until its end, at most `seconds`.

    `is_over(wait_s)`: waits at most `wait_s` and returns true if the run is over.
    """
    interval_s = plan.config.lag_interval_ms / 1000
    watch = LagWatch(plan.spark, plan.sources, progress.cursors, progress.lag_is, interval_s)
    if watch.is_needed:
        watch.start()
    try:
        follow(progress.shown, lambda: progress.lag, is_over, seconds=seconds)
    finally:
        watch.close()
