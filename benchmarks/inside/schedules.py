"""Random schedules of every protocol with all oracles: processor time of one core, three processes, fifty steps."""

from __future__ import annotations

import checkpoint_lab as sim
from checkpoint_protocols.menu import MENU

SCHEDULES, STEPS = 400, 50


def main() -> list[str]:
    """Rows of a Markdown table."""
    reports = {
        name: sim.campaign(protocol, sim.GRAPHS["pipeline"], range(SCHEDULES)) for name, protocol in MENU.items()
    }
    return [
        "| protocol, three processes | us per step | schedules of 50 steps a second | with its drain: steps, schedules a second |",
        "|---|---|---|---|",
        *(_row(name, report) for name, report in reports.items()),
    ]


def _row(name: str, report: sim.CampaignReport) -> str:
    step_us = report.seconds / report.steps * 1e6
    drained = f"{report.steps / report.schedules:.0f}, {report.rate:.0f}"
    return f"| {name} | {step_us:.0f} | **{1e6 / step_us / STEPS:.0f}** | {drained} |"


if __name__ == "__main__":
    print("\n".join(main()))
