"""The driver's part of a run: threads, query, log and sinks of an incarnation, and the restart after its end."""
