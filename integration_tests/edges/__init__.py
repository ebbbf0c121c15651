"""Programs joined by edges, killed and restored."""
