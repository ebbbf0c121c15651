"""What runs on the driver: an incarnation's threads, query, log and sinks, and what follows its end."""
