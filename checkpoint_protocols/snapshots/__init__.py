"""Snapshots of a whole graph: markers, barriers, loops, epochs in messages; partial recovery (seeds 000 and 003)."""
