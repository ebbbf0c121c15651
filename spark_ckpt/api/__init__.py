"""The user's API: jobs, streams, groupings, loops, and state as tables."""
