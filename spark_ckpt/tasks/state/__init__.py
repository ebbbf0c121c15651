"""The keyed state of one key group: a delta in Spark's state, immutable levels on disk."""
