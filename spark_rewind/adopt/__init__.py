"""A plain PySpark query's checkpoint becomes the first epoch of a job."""
