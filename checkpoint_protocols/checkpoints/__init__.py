"""Checkpoints without barriers: uncoordinated, coordinated, index-based; the recovery line (seed 004)."""
