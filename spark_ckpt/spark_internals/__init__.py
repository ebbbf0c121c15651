"""All uses of names that Spark does not promise.

- attributes with an underscore
- Scala classes through py4j
- internal settings
- the format of Spark's files
- modules of PySpark outside of its documented interface

There is one module per theme. Each lists its names next to the functions that use them. `NAMES` records a name's place
in Spark, the version it was seen in, and the effect of its loss. Nothing else in this library and its connectors uses
such a name. `integration_tests/spark_private` looks each of them up in the installed Spark.

This file imports nothing: tasks use a few of the modules, and must not load those of the driver.
"""
