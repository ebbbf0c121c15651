"""All systems treated alike: topics, processes, the oracle, the measurements."""
