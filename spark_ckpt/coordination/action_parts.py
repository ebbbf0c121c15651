"""Break down the duration of a micro-batch's Spark action, for metrics only: no decision depends on it. Pure.

Tasks report times of their hosts' clocks, the driver reports times of its own clock. On one host the parts are exact.
If clocks differ, the times are clamped to the action, so that the parts still add up to its duration.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from spark_ckpt.connector import Json
from spark_ckpt.coordination.reports import Report, group_of

SOURCES = "sources"
"""Scope of the driver's own report of a batch."""


def action_parts_ms(reports: Sequence[Report]) -> dict[str, int]:
    """Return the parts of a batch's action in milliseconds, by name; empty if no times were reported or no operator
    ran.

    - `fetch`: from the begin of the action to the first call of a key group; includes everything before the shuffle.
    - `operator`: from there to the end of the last group of the last operator, less `snapshot`.
    - `snapshot`: writing state files, in the task that took longest for them.
    - `staging`: from there to the end of the action.
    """
    action = next((report.body for report in reports if report.scope == SOURCES), {})
    groups = [report for report in reports if report.step == "operator" and "began_ms" in report.body]
    if "began_ms" not in action or not groups:
        return {}
    began, ended = _ms(action, "began_ms"), _ms(action, "ended_ms")
    first = _within(began, ended, min(_ms(group.body, "began_ms") for group in groups))
    last = _within(first, ended, max(_ms(group.body, "ended_ms") for group in groups))
    snapshot = min(last - first, _longest_snapshot_ms(groups))
    parts = {"fetch": first - began, "operator": last - first - snapshot, "snapshot": snapshot, "staging": ended - last}
    return {name: round(took_ms) for name, took_ms in parts.items()}


def _longest_snapshot_ms(groups: Sequence[Report]) -> float:
    """Return the longest snapshot time of a task; a task runs its key groups one after the other."""
    by_task: dict[tuple[str, int], float] = defaultdict(float)
    for group in groups:
        by_task[group_of(group)[0], group.partition] += _ms(group.body, "snapshot_ms")
    return max(by_task.values())


def _within(least: float, most: float, value: float) -> float:
    return max(least, min(most, value))


def _ms(body: Mapping[str, Json], name: str) -> float:
    value = body.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0
