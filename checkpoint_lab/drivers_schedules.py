"""Schedules of the world of drivers."""

from __future__ import annotations

from dataclasses import replace

from checkpoint_lab.drivers_world import HOSTS, DriversRules, DriversWorld, Troubles
from checkpoint_lab.long_lives import TIMES, drive_long
from checkpoint_lab.schedules import DRIVERS_FAULT_RATE, DRIVERS_STEPS, Outcome, drive

RATES = ((100, 100, 100), (100, 70, 90), (80, 100, 110))
"""Rates of the clocks in percent of time; no clock is slower than 70 percent of another."""
THEMES = (
    Troubles(),
    Troubles(crashes=0, cuts=0, outages=4, failures=0, starts=0, stops=0, handovers=0),
    Troubles(crashes=1, pauses=4, cuts=0, outages=0, failures=0, starts=0, stops=8, handovers=3),
    Troubles(crashes=1, pauses=6, cuts=2, outages=0, failures=8, starts=0, stops=0, handovers=0),
)
"""Budgets of one schedule: a few faults of every kind, or many of some kinds."""


def drivers_world(seed: int, rules: DriversRules | None = None, crashes: int = 0, times: int = 1) -> DriversWorld:
    """Return the world in which the schedule of a seed begins.

    `crashes`: in addition to its theme; `times`: in usual runs.
    """
    rates = RATES[seed % len(RATES)]
    hosts = {name: (host, rate, wall) for (name, (host, _, wall)), rate in zip(HOSTS.items(), rates, strict=True)}
    theme = THEMES[seed % len(THEMES)]
    world = DriversWorld(hosts, replace(theme, crashes=theme.crashes + crashes).times(times), rules)
    world.stretch = times
    return world


def run_drivers(seed: int, rules: DriversRules | None = None) -> Outcome:
    """Run one schedule of a job's drivers with the shipped rules."""
    return drive(drivers_world(seed, rules), seed, DRIVERS_STEPS, DRIVERS_FAULT_RATE)


def run_drivers_long(seed: int, rules: DriversRules | None = None) -> Outcome:
    """Run one long schedule of a job's drivers."""
    return drive_long(drivers_world(seed, rules, times=TIMES), seed, DRIVERS_STEPS, DRIVERS_FAULT_RATE)
