"""Adoption: the checkpoint of a plain PySpark query becomes the first epoch of a job."""
