"""Commands for plain Spark queries."""
