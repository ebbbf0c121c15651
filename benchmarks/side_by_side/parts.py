"""Where a record's time goes between its input and its committed output, by what the system tells of its batches and epochs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.side_by_side.accounting import Records, spent_s, values_of
from benchmarks.side_by_side.latency import Observed, observe
from benchmarks.side_by_side.plan import Plan
from benchmarks.side_by_side.program_records import passages
from benchmarks.side_by_side.topics import Topics
from benchmarks.side_by_side.trial import Failed, Subject, faults

MOST_UNANSWERED = 0.01
"""Share of the inputs of the window."""


def measure(subject: Subject, workload: str, topics: Topics, folder: Path, plan: Plan) -> dict[str, float]:
    """Values of the result line: of each part mean, median and 99th percentile in ms. The source must be fresh."""
    seen = observe(replace(subject, tells=True), workload, topics, folder, plan)
    due = _due(seen)
    records = answered_ones(due)
    spent = spent_s(records, passages(seen.told.splitlines()))
    counts = {"inputs": float(len(records)), "unanswered": float(len(due) - len(records))}
    return {"rate": float(plan.rate), **counts, **values_of(spent), **faults(seen.verdict)}


def answered_ones(due: Records) -> Records:
    """Those with an output. Raises `Failed` if too many have none: the slowest would be left out, and the mean be of the others."""
    records = due.where(np.isfinite(due.came))
    if len(records) < (1 - MOST_UNANSWERED) * len(due) or not len(records):
        raise Failed(
            f"it did not keep up: {len(due) - len(records)} of {len(due)} inputs were not answered until the end"
        )
    return records


def _due(seen: Observed) -> Records:
    """Inputs of the window. One that was not answered until the end has no time that could be divided."""
    written = seen.written
    in_window = (written.created >= seen.start) & (written.created < seen.stop)
    return Records(written.created, seen.came, written.partition, written.offset).where(in_window)
