"""The checkpoint lease (seed 002): one secondary at a time saves, never the primary."""
