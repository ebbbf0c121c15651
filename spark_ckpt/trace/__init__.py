"""Traces: the events that an incarnation's rules handled, with their answers, one line of JSON each.

Modules record, read, replay and show them. `docs/design/traces.md` describes the format.
"""
