"""Exactly-once output of a plain streaming query, through the function that `foreachBatch` calls."""
