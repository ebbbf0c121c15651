"""The numbers that every message carries, so that stale is decidable."""

from __future__ import annotations

from typing import NewType

Epoch = NewType("Epoch", int)
"""Number of one consistent cut of the job; 0 is the initial one. Never reused within an incarnation."""

Incarnation = NewType("Incarnation", int)
"""One life of the job between recoveries, from 1. Durable before anything else carries it."""

KeyGroup = NewType("KeyGroup", int)
"""Index of one share of an operator's keys, in [0, key groups)."""
