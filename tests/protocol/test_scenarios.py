"""Every scenario passes on the corrected machines, and fails on the literal ones as listed."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from checkpoint_lab import NotPossible, Violation
from checkpoint_protocols.machine import ProtocolViolation
from tests.protocol.scenario import Scenario, missing, perform, play, read, scenarios

each_scenario = pytest.mark.parametrize("scenario", scenarios(), ids=lambda scenario: scenario.name)


@each_scenario
def test_the_corrected_machine_does_what_the_scenario_says(scenario: Scenario) -> None:
    happened = play(scenario, scenario.protocol).happened()

    assert list(missing(happened, scenario.sections["corrected"])) == [], "\n".join(happened)


@each_scenario
def test_the_literal_variant_fails_as_the_scenario_says(scenario: Scenario) -> None:
    with pytest.raises((Violation, ProtocolViolation, NotPossible)) as failed:
        play(scenario, scenario.literal)

    (pattern,) = scenario.sections["literal ends"]
    assert re.search(pattern, str(failed.value)), str(failed.value)


def test_an_event_that_did_not_happen_is_found() -> None:
    happened = ["a capture 1", "coordinator complete 1"]

    assert list(missing(happened, ["coordinator complete 1", "a capture 1"])) != []
    assert list(missing(happened, ["never a capture 1"])) != []
    assert list(missing(happened, ["a capture 1", "coordinator complete 1", "never a capture 2"])) == []


def test_an_unknown_phrase_and_an_unknown_section_are_errors(tmp_path: Path) -> None:
    path = tmp_path / "T00-nothing.txt"
    path.write_text("T0: nothing\nstep:\n  s reads\n")

    with pytest.raises(ValueError, match="neither a setting nor one of the sections"):
        read(path)
    with pytest.raises(ValueError, match="no such phrase"):
        perform(None, "s sings")  # type: ignore[arg-type]
