"""A deterministic host for protocols: worlds, schedules, oracles, exploration, stories."""

from spark_ckpt.simulator.faults import NO_FAULTS, Clock, Clocks, Faults
from spark_ckpt.simulator.graphs import ACYCLIC, GRAPHS
from spark_ckpt.simulator.message_world import MessageWorld
from spark_ckpt.simulator.schedules import Outcome, drive, replay, run
from spark_ckpt.simulator.violations import Violation
from spark_ckpt.simulator.world import Choice, Moment, NotPossible, Trace, World

__all__ = [
    "ACYCLIC",
    "GRAPHS",
    "NO_FAULTS",
    "Choice",
    "Clock",
    "Clocks",
    "Faults",
    "MessageWorld",
    "Moment",
    "NotPossible",
    "Outcome",
    "Trace",
    "Violation",
    "World",
    "drive",
    "replay",
    "run",
]
