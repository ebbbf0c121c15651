"""Regression traces of the checkpoint lease: the corrected machines pass, the literal ones fail as listed."""

from __future__ import annotations

import re

import pytest

from checkpoint_lab.lease_world import LeaseRules
from checkpoint_lab.violations import Violation
from tests.protocol.lease_scenario import LeaseStage, lease_scenarios, literal_rules, perform, play
from tests.protocol.literal.lease import LATE_TIMER_AND_NO_MARGIN
from tests.protocol.scenario import Scenario, missing

each_scenario = pytest.mark.parametrize("scenario", lease_scenarios(), ids=lambda scenario: scenario.name)

RATES, LAGS = (70, 80, 90, 100, 110, 120), range(0, 1_300, 100)
"""Percent of the primary's clock; milliseconds between the report and the execution. The lease is 4 s long."""


@each_scenario
def test_the_corrected_machines_do_what_the_scenario_says(scenario: Scenario) -> None:
    happened = play(scenario, LeaseRules()).happened()

    assert list(missing(happened, scenario.sections["corrected"])) == [], "\n".join(happened)


@each_scenario
def test_the_literal_rules_fail_as_the_scenario_says(scenario: Scenario) -> None:
    with pytest.raises(Violation) as failed:
        play(scenario, literal_rules(scenario))

    (pattern,) = scenario.sections["literal ends"]
    assert re.search(pattern, str(failed.value)), str(failed.value)


def overlaps(rate: int, lag: int, rules: LeaseRules, waits_ms: int) -> bool:
    """A holder that executes `lag` ms late is still at work when the primary issues the next lease after `waits_ms`."""
    (scenario,) = [each for each in lease_scenarios() if each.name.startswith("T08")]
    settings = {**scenario.settings, "rates": f"n1=100 n2={rate} n3=100", "first_ms": "4000"}
    stage = LeaseStage(Scenario(scenario.name, scenario.title, settings), rules)
    steps = ("n1 is elected", "n2 reports to n1", "n1 issues to n2", "n1 executes up to 1", f"{lag} ms pass")
    for line in (*steps, "n2 executes up to 1", f"{waits_ms - lag} ms pass", "n3 reports to n1"):
        perform(stage, line)
    try:
        perform(stage, "n1 issues to n3")
    except Violation:
        return True
    return False


def test_a_timer_from_execution_overlaps_in_23_of_78_combinations_of_rate_and_lag() -> None:
    unsafe = [(rate, lag) for rate in RATES for lag in LAGS if overlaps(rate, lag, LATE_TIMER_AND_NO_MARGIN, 4_000)]

    assert len(unsafe) == 23
    assert unsafe == [(rate, lag) for rate in RATES for lag in LAGS if lag * rate + 2_800 * 100 > 4_000 * rate]


def test_no_leases_overlap_if_counted_from_the_report() -> None:
    assert [(rate, lag) for rate in RATES for lag in LAGS if overlaps(rate, lag, LeaseRules(), 4_001)] == []
