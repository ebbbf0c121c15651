"""Snapshots at a wall-clock time: the counter-examples of the seeds, unchanged."""

from __future__ import annotations

from checkpoint_protocols.snapshots.wall_clock import PROTOCOL

WALL_CLOCK = PROTOCOL
