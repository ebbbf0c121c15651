"""Rules of the epoch protocol for one job: events in, effects out; no I/O, clocks or threads.

These rules decide exactly-once. They host the pure machines of `checkpoint_protocols`.

The Spark runtime carries the effects out on Spark, Delta and Kafka. The simulator (`checkpoint_lab/spark_world.py`)
carries them out on simulated hosts and injects a failure at every step. Both run these same classes.
"""
