"""Schedules of a job on Spark for planted bugs: two as ever, then two in which the job lives four times as long."""

from __future__ import annotations

from spark_ckpt.simulator import Outcome, SparkWorld, run_spark
from spark_ckpt.simulator.schedules import spark_world
from spark_ckpt.simulator.spark_driver import CoreOf, shipped

LONG = 4


def _times(seed: int) -> int:
    return LONG if seed % 4 > 1 else 1


def run(seed: int, core_of: CoreOf = shipped) -> Outcome:
    """One schedule."""
    return run_spark(seed, core_of, _times(seed))


def world(seed: int, core_of: CoreOf = shipped) -> SparkWorld:
    """The world that it begins in."""
    return spark_world(seed, core_of, _times(seed))
