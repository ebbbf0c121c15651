"""A SparkSession and the processes around it: jars, the driver's JVM, archived classes, Python workers."""
