"""A run before its first incarnation: it waits for the lease, and has the query warm."""
