"""Restore plans: the epochs that a job can restore, and the effect on state, sources and output."""
