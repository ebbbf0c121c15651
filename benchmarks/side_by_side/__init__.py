"""Measures all systems in the same way: topics, processes, the oracle, the measurements."""
