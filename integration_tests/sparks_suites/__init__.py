"""Apache Spark's own Python tests of stateful streaming, run with jobs in the place of their streaming queries."""
