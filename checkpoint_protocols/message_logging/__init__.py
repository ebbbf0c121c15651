"""Message logging: by senders, by receivers at once or in batches, adaptive (seed 004)."""
