"""Drawn programs of Spark's own stateful operators, plain and inside a job."""
