"""Parts of a record's time between its input and its committed output, from the system's records of its batches and epochs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.side_by_side.accounting import Records, seconds_by_part, values_of
from benchmarks.side_by_side.latency import Observed, observe
from benchmarks.side_by_side.plan import Plan
from benchmarks.side_by_side.program_records import passages
from benchmarks.side_by_side.topics import Topics
from benchmarks.side_by_side.trial import Failed, Subject, faults

MOST_UNANSWERED = 0.01
"""Allowed share of the window's inputs without an answer."""


def measure(subject: Subject, workload: str, topics: Topics, folder: Path, plan: Plan) -> dict[str, float]:
    """Return the values of the result line: mean, median and 99th percentile of each part in ms. The source must be new."""
    seen = observe(replace(subject, tells=True), workload, topics, folder, plan)
    due = _due(seen)
    records = answered(due)
    parts = seconds_by_part(records, passages(seen.program_records.splitlines()))
    counts = {"inputs": float(len(records)), "unanswered": float(len(due) - len(records))}
    return {"rate": float(plan.rate), **counts, **values_of(parts), **faults(seen.verdict)}


def answered(due: Records) -> Records:
    """Select records with an output. Raises `Failed` if too many have none, since a mean without the slowest would be too low."""
    records = due.where(np.isfinite(due.came))
    if len(records) < (1 - MOST_UNANSWERED) * len(due) or not len(records):
        raise Failed(f"it did not keep up: {len(due) - len(records)} of {len(due)} inputs had no answer at the end")
    return records


def _due(seen: Observed) -> Records:
    """Inputs of the window. An input without an answer at the end has no time that could be divided."""
    written = seen.written
    in_window = (written.created >= seen.start) & (written.created < seen.stop)
    return Records(written.created, seen.came, written.partition, written.offset).where(in_window)
