"""Code that runs in tasks: Spark's Python workers load it, and it imports no driver code."""
