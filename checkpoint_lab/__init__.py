"""Deterministic simulator of the protocols: worlds, schedules, oracles, exploration, measurements, stories."""

from checkpoint_lab.durable import CONTRACT, Surroundings
from checkpoint_lab.explore import Exploration, NotFailing, ScopeTooLarge, Shrunk, explore, shrink
from checkpoint_lab.faults import HOSTILE, NO_FAULTS, Clocks, Faults, LinearClock, hostile
from checkpoint_lab.message_world import MessageWorld
from checkpoint_lab.outbox_world import OutboxWorld
from checkpoint_lab.process import GraphApplication
from checkpoint_lab.schedules import (
    ScheduleOutcome,
    drive,
    replay,
    run,
    run_drivers,
    run_operated,
    run_outbox,
    run_outbox_format,
    run_overlapping,
    run_spark,
)
from checkpoint_lab.scripted import (
    ACYCLIC,
    DRIVERS,
    GRAPHS,
    LEASE,
    NAMES,
    OPERATED,
    OUTBOX,
    SPARK,
    CampaignReport,
    Crash,
    NotOnTheMenu,
    Scenario,
    campaign,
    drawn_world,
    graphs_of,
    many,
    options_of,
)
from checkpoint_lab.spark_operated import OperatedWorld
from checkpoint_lab.spark_world import SparkWorld
from checkpoint_lab.story import chart, html, story, svg
from checkpoint_lab.timed import TIMED, Latencies, Measurement, measure
from checkpoint_lab.violations import NoEnd, Violation
from checkpoint_lab.world import Choice, Moment, NotPossible, Trace, World

__all__ = [
    "ACYCLIC",
    "CONTRACT",
    "DRIVERS",
    "GRAPHS",
    "HOSTILE",
    "LEASE",
    "NAMES",
    "NO_FAULTS",
    "OPERATED",
    "OUTBOX",
    "SPARK",
    "TIMED",
    "CampaignReport",
    "Choice",
    "Clocks",
    "Crash",
    "Exploration",
    "Faults",
    "GraphApplication",
    "Latencies",
    "LinearClock",
    "Measurement",
    "MessageWorld",
    "Moment",
    "NoEnd",
    "NotFailing",
    "NotOnTheMenu",
    "NotPossible",
    "OperatedWorld",
    "OutboxWorld",
    "Scenario",
    "ScheduleOutcome",
    "ScopeTooLarge",
    "Shrunk",
    "SparkWorld",
    "Surroundings",
    "Trace",
    "Violation",
    "World",
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
    "options_of",
    "replay",
    "run",
    "run_drivers",
    "run_operated",
    "run_outbox",
    "run_outbox_format",
    "run_overlapping",
    "run_spark",
    "shrink",
    "story",
    "svg",
]
