"""What runs in tasks: Spark's Python workers load it, and nothing of the driver."""
