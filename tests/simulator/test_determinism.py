"""A seed gives the same run in every process, and a trace replays it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from enum import Enum
from pathlib import Path

import pytest

import checkpoint_lab as sim
from checkpoint_lab.message_world import MessageWorld
from checkpoint_lab.schedules import drive, spark_world
from checkpoint_lab.spark_world import SparkWorld
from checkpoint_lab.violations import NoEnd
from checkpoint_lab.world import NotPossible
from tests.simulator import markers

ROOT = Path(__file__).parents[2]

PRINT_DIGESTS = """
from tests.simulator.test_determinism import digests
print(digests())
"""


def digests() -> str:
    """One line that changes if any trace, story or diagram does."""
    texts = []
    for seed in range(12):
        for outcome in (
            sim.run(markers.protocol(), sim.GRAPHS["nested_cycle"], seed, story=True),
            sim.Scenario(sim.SPARK, "job", seed).run(),
        ):
            texts += [json.dumps(outcome.trace), sim.story(outcome.moments, everything=True), sim.svg(outcome.moments)]
    return hashlib.sha256("".join(texts).encode()).hexdigest()


def test_a_process_with_another_hash_seed_runs_the_same() -> None:
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = {**os.environ, "PYTHONHASHSEED": other, "PYTHONPATH": f"{ROOT}:{ROOT / 'connectors'}"}
    done = subprocess.run(
        [sys.executable, "-c", PRINT_DIGESTS], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == digests()


@pytest.mark.parametrize("seed", range(20))
def test_a_trace_replays_byte_for_byte(seed: int) -> None:
    def make() -> MessageWorld:
        return MessageWorld(markers.protocol(), sim.GRAPHS["diamond"], sim.Faults()).watch()

    outcome = drive(make(), seed)
    trace = json.loads(json.dumps(outcome.trace))
    again = make()
    again.follow([tuple(choice) for choice in trace[: len(trace) // 2]])
    whole = sim.replay(make, outcome)

    assert whole.moments == outcome.moments
    assert whole.counts == outcome.counts
    assert tuple(again.moments or ()) == outcome.moments[: len(again.moments or ())]


class Elsewhere(Enum):
    RESTING = "rests"


class NeverRests(markers.Worker):
    AT_REST = (Elsewhere.RESTING,)


def test_a_process_that_does_not_come_to_rest_is_condemned_by_the_replay_too() -> None:
    def make() -> MessageWorld:
        return MessageWorld(markers.protocol(worker=NeverRests), sim.GRAPHS["pair"], sim.NO_FAULTS)

    outcome = drive(make(), 1)
    again = sim.replay(make, outcome)

    assert isinstance(outcome.error, NoEnd)
    assert str(again.error) == str(outcome.error)


@pytest.mark.parametrize("seed", range(10))
def test_a_trace_of_a_job_replays(seed: int) -> None:
    def make() -> SparkWorld:
        return spark_world(seed).watch()

    outcome = drive(make(), seed, 100, 0.03)

    assert sim.replay(make, outcome).moments == outcome.moments


def test_steps_of_a_copy_do_not_change_the_original() -> None:
    world = MessageWorld(markers.protocol(), sim.GRAPHS["pipeline"])
    before = world.picture()
    copied = world.copy()
    assert copied.picture() == before

    copied.do(copied.choices()[0])

    assert world.picture() == before
    assert copied.picture() != before


def test_a_choice_that_is_not_possible_is_refused() -> None:
    world = MessageWorld(markers.protocol(), sim.GRAPHS["pipeline"])

    with pytest.raises(NotPossible, match="step 0"):
        world.follow([("deliver", "s->a", 0)])
