"""What an incarnation's rules were told and what they answered, a line of JSON per event: recorded, read, replayed, shown.

The format is described in `docs/design/traces.md`.
"""
