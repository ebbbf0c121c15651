"""The menu: every protocol over plain messages, by the name users type.

Barriers with two-phase-commit sinks (`barrier`) and the checkpoint lease (`lease`) have words of their own and are not
in this table; `barrier` and `lease` are their modules.
"""

from __future__ import annotations

from spark_ckpt.protocol import (
    adaptive_logging,
    asynchronous_logging,
    coordinated,
    cyclic_snapshots,
    epochs,
    index_based,
    markers,
    partial_recovery,
    sender_logging,
    snapshots,
    synchronous_logging,
    uncoordinated,
    wall_clock,
)
from spark_ckpt.protocol.recovery import Protocol

MENU: dict[str, Protocol] = {
    module.PROTOCOL.name: module.PROTOCOL
    for module in (
        markers,
        epochs,
        snapshots,
        cyclic_snapshots,
        partial_recovery,
        coordinated,
        index_based,
        adaptive_logging,
        uncoordinated,
        sender_logging,
        synchronous_logging,
        asynchronous_logging,
        wall_clock,
    )
}
"""Snapshots first, then checkpoints of single processes, then message logs; last the counter-example."""
