"""The host core: what decides exactly-once around the protocol's machines. Events in, effects out; no I/O, clocks or threads.

The Spark runtime carries the effects out on Spark, Delta and Kafka; the simulator does so in a world of its own
(`checkpoint_lab/spark_world.py`), where everything may fail at every step. Both run these very classes.
"""
