"""Errors explained: what leads to each, and what ends it."""
