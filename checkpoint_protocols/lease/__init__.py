"""The checkpoint lease (seed 002): one secondary at a time takes a checkpoint, never the primary."""
