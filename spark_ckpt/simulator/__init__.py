"""A deterministic host for protocols: worlds, schedules, oracles, exploration, measurements, stories."""

from spark_ckpt.simulator.application import Application
from spark_ckpt.simulator.barrier_storage import BARRIER_GRAPHS, BarrierGraph
from spark_ckpt.simulator.barrier_world import BarrierWorld
from spark_ckpt.simulator.campaign import Report, barrier_campaign, campaign
from spark_ckpt.simulator.clockwork import Latencies, Measurement
from spark_ckpt.simulator.diagram import html, svg
from spark_ckpt.simulator.drawing import drawn_world
from spark_ckpt.simulator.drivers_schedules import run_drivers
from spark_ckpt.simulator.explore import Exploration, ScopeTooLarge, explore
from spark_ckpt.simulator.faults import HOSTILE, NO_FAULTS, Clock, Clocks, Faults, hostile
from spark_ckpt.simulator.graphs import ACYCLIC, GRAPHS
from spark_ckpt.simulator.message_world import MessageWorld
from spark_ckpt.simulator.schedules import (
    Outcome,
    barrier_world,
    drive,
    replay,
    run,
    run_barrier,
    run_operated,
    run_spark,
)
from spark_ckpt.simulator.scripted import (
    BARRIER,
    DRIVERS,
    LEASE,
    NAMES,
    OPERATED,
    SPARK,
    Crash,
    NotOnTheMenu,
    Scenario,
    graphs_of,
    many,
    options_of,
)
from spark_ckpt.simulator.shrink import NotFailing, Shrunk, shrink
from spark_ckpt.simulator.spark_operated import OperatedWorld
from spark_ckpt.simulator.spark_world import SparkWorld
from spark_ckpt.simulator.story import chart, story
from spark_ckpt.simulator.surroundings import CONTRACT, Surroundings
from spark_ckpt.simulator.timed import TIMED, measure
from spark_ckpt.simulator.timed_barrier import measure_barrier
from spark_ckpt.simulator.violations import NoEnd, Violation
from spark_ckpt.simulator.world import Choice, Moment, NotPossible, Trace, World

__all__ = [
    "ACYCLIC",
    "BARRIER",
    "BARRIER_GRAPHS",
    "CONTRACT",
    "DRIVERS",
    "GRAPHS",
    "HOSTILE",
    "LEASE",
    "NAMES",
    "NO_FAULTS",
    "OPERATED",
    "SPARK",
    "TIMED",
    "Application",
    "BarrierGraph",
    "BarrierWorld",
    "Choice",
    "Clock",
    "Clocks",
    "Crash",
    "Exploration",
    "Faults",
    "Latencies",
    "Measurement",
    "MessageWorld",
    "Moment",
    "NoEnd",
    "NotFailing",
    "NotOnTheMenu",
    "NotPossible",
    "OperatedWorld",
    "Outcome",
    "Report",
    "Scenario",
    "ScopeTooLarge",
    "Shrunk",
    "SparkWorld",
    "Surroundings",
    "Trace",
    "Violation",
    "World",
    "barrier_campaign",
    "barrier_world",
    "campaign",
    "chart",
    "drawn_world",
    "drive",
    "explore",
    "graphs_of",
    "hostile",
    "html",
    "many",
    "measure",
    "measure_barrier",
    "options_of",
    "replay",
    "run",
    "run_barrier",
    "run_drivers",
    "run_operated",
    "run_spark",
    "shrink",
    "story",
    "svg",
]
