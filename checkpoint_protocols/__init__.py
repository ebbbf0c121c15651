"""Pure protocol machines: events in, effects out. No I/O, clock, randomness, threads or other systems."""
