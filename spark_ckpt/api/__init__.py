"""What a program writes: jobs, streams, groupings, loops, and state as tables."""
