"""Every use of a name that Spark does not promise: attributes with an underscore, Scala classes behind py4j, internal settings, the
format of Spark's files, modules of PySpark outside of its documented interface.

One module per theme. Each lists its names (`NAMES`: where a name lives in Spark, the version it was seen in, what breaks
without it) beside functions that say what they do. Nothing else in this library and its connectors touches such a name;
`integration_tests/spark_private` looks each of them up in the installed Spark.

Nothing is imported here: tasks use a few of the modules, and must not load those of the driver.
"""
