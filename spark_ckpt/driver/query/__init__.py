"""The streaming query of an incarnation: its plan, its sources, its checkpoint and its batches."""
