"""Aligned barrier checkpoints with two-phase-commit sinks and incarnations: the protocol's public face.

Three roles, one machine each; their events and effects are in `barrier_messages`.  The host carries effects
from one to the other.  A host whose tasks and sinks never die alone (a Spark driver) may run the coordinator
only and report for the rest.
"""

from spark_ckpt.protocol.barrier_coordinator import Coordinator, CoordinatorPhase, Limits, Topology
from spark_ckpt.protocol.barrier_operator import Operator, OperatorPhase
from spark_ckpt.protocol.barrier_sink import SinkParticipant, SinkPhase

ROLES = (Coordinator, Operator, SinkParticipant)
"""Every machine of this protocol, for documentation and tests."""

__all__ = [
    "ROLES",
    "Coordinator",
    "CoordinatorPhase",
    "Limits",
    "Operator",
    "OperatorPhase",
    "SinkParticipant",
    "SinkPhase",
    "Topology",
]
