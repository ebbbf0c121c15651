"""The menu: every protocol over plain messages, by the name that users type.

Two protocols have a vocabulary of their own and are not in this table: barriers with two-phase-commit sinks, which ship as
`spark_ckpt.coordination`, and the checkpoint lease (`checkpoint_protocols.lease`).
"""

from __future__ import annotations

from checkpoint_protocols.checkpoints import coordinated, index_based, uncoordinated
from checkpoint_protocols.message_logging import (
    adaptive_logging,
    asynchronous_logging,
    sender_logging,
    synchronous_logging,
)
from checkpoint_protocols.recovery import Protocol
from checkpoint_protocols.snapshots import acyclic as snapshots
from checkpoint_protocols.snapshots import cyclic as cyclic_snapshots
from checkpoint_protocols.snapshots import epochs, markers, partial_recovery, stop_the_world, wall_clock

MENU: dict[str, Protocol] = {
    module.PROTOCOL.name: module.PROTOCOL
    for module in (
        stop_the_world,
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
"""Snapshots first (and of these the baseline), then checkpoints of single processes, then logs; the counter-example is last."""
