"""Durable storage of a job: the epoch log and the tables that follow it, all Delta, committed by compare-and-swap."""
