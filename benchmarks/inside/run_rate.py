"""Run a job, and measure the rate of an endless one: rows between two ends of batches."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import spark_ckpt as ckpt

POLL_S = 0.005


@contextmanager
def running(job: ckpt.Job, stage: str = "") -> Iterator[ckpt.Run]:
    """Run the job, or all stages of its program; yield its run, or that of `stage`."""
    if not stage:
        run = job.start()
        try:
            yield run
        finally:
            run.stop()
        return
    stages = job.start_stages()
    try:
        yield stages.stages[stage]
    finally:
        stages.stop("60 seconds")


def rows_per_s(run: ckpt.Run, seconds: float) -> float:
    """Rate between the end of a batch and the first end that is at least `seconds` later."""
    began_s, before = end_of_batch(run)
    time.sleep(max(0.0, began_s + seconds - time.monotonic()))
    ended_s, after = end_of_batch(run)
    return (after - before) / (ended_s - began_s)


def end_of_batch(run: ckpt.Run) -> tuple[float, int]:
    """Moment at which the next batch has ended, and the rows up to then."""
    known = rows = _rows(run)
    while rows == known:
        if not run.isActive:
            raise RuntimeError("the run has ended") from run.exception()
        time.sleep(POLL_S)
        rows = _rows(run)
    return time.monotonic(), rows


def _rows(run: ckpt.Run) -> int:
    last = run.lastProgress
    return 0 if last is None else int(last["totals"]["numInputRows"])  # type: ignore[call-overload,index,arg-type]
