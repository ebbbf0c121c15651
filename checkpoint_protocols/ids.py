"""Numbers and names that every message carries, so that a receiver can recognise a stale message."""

from __future__ import annotations

from typing import NewType

Epoch = NewType("Epoch", int)
"""Number of one consistent cut of the job; 0 is the initial one. Never reused within an incarnation."""

Incarnation = NewType("Incarnation", int)
"""Number of one life of the job between recoveries, from 1. Durable before anything else carries it."""

TaskId = NewType("TaskId", str)
"""One participant that takes snapshots: a source's cursor, or one key group of an operator (`totals/3`)."""

SinkId = NewType("SinkId", str)
"""One participant that prepares and publishes."""

ChannelId = NewType("ChannelId", str)
"""One FIFO input of a task."""

TimerId = NewType("TimerId", int)
"""Number of one setting of a timer within an incarnation. An elapsed timer with an older number is stale."""

ProcessId = NewType("ProcessId", str)
"""One process of a protocol over plain messages."""
