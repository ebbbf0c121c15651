"""Edges between programs: the sink of one job is the source of another, without a system in between."""
