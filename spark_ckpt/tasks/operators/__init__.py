"""Operators: what a user wrote, or declared, over the rows and the state of one key group."""
