"""Measurements of spark_ckpt alone, most of them against plain PySpark in the same session."""
