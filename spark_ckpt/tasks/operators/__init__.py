"""Operators: user functions and declared aggregates over the rows and the state of one key group."""
