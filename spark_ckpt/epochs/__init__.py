"""Pure rules about epochs: log records, the state that they fold to, restores, endpoints, retention."""
