"""Snapshots at a moment of the clock: the seeds' own counter-examples, as the module has them."""

from __future__ import annotations

from checkpoint_protocols.snapshots.wall_clock import PROTOCOL

WALL_CLOCK = PROTOCOL
