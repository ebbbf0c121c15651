"""Where a job can go back to, and what that means for state, sources and output."""
