"""Kafka for spark_ckpt: a source with exact cursors and an exactly-once sink."""
