"""Schedules of a job on Spark for planted bugs: most of them ten times as long as usual, and most of them eager.

Bugs that take several failures need the eager ones; those that take much work and a quiet end need the others.
"""

from __future__ import annotations

from checkpoint_lab import ScheduleOutcome, SparkWorld
from checkpoint_lab.schedules import SPARK_FAULT_RATE, SPARK_STEPS, Driver, drive, spark_world
from checkpoint_lab.spark_driver import CoreOf, shipped
from tests.simulator.eager import TIMES, Eager

LIVES: tuple[tuple[type[Driver], int], ...] = (
    (Driver, 1), (Eager, TIMES), (Eager, TIMES), (Driver, TIMES), (Eager, TIMES), (Eager, 1), (Driver, TIMES), (Eager, TIMES),
)  # fmt: skip
"""By a seed's remainder: its driver, and its length in usual runs."""


def run(seed: int, core_of: CoreOf = shipped) -> ScheduleOutcome:
    """One schedule."""
    return drive(world(seed, core_of), seed, SPARK_STEPS, SPARK_FAULT_RATE, LIVES[seed % len(LIVES)][0])


def world(seed: int, core_of: CoreOf = shipped) -> SparkWorld:
    """The schedule's first world."""
    return spark_world(seed, core_of, LIVES[seed % len(LIVES)][1])
