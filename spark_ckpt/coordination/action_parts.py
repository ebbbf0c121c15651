"""What the one action of a micro-batch was spent on, for those who look: no decision depends on it. Pure.

Tasks report moments of their hosts' clocks, the driver those of its own. On one host the parts are exact; where clocks differ
they are bent to lie within the action, and still add up to it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from spark_ckpt.connector import Json
from spark_ckpt.coordination.reports import Report, group_of

SOURCES = "sources"
"""Scope of the driver's own report of a batch."""


def action_parts_ms(reports: Sequence[Report]) -> dict[str, int]:
    """`fetch`: until the first key group is called, with everything before the shuffle. `operator`: until the last group of
    the last operator is done, without `snapshot`: state files, of the task that took longest for them. `staging`: until
    the action's end. Empty if nobody reported moments, or no operator ran.
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
    """Key groups of one task come one after the other."""
    by_task: dict[tuple[str, int], float] = defaultdict(float)
    for group in groups:
        by_task[group_of(group)[0], group.partition] += _ms(group.body, "snapshot_ms")
    return max(by_task.values())


def _within(least: float, most: float, value: float) -> float:
    return max(least, min(most, value))


def _ms(body: Mapping[str, Json], name: str) -> float:
    value = body.get(name, 0)
    return float(value) if isinstance(value, int | float) else 0.0
