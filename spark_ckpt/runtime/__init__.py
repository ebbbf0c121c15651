"""The Spark host: how a job runs inside Spark, from packed rows to decided epochs."""
