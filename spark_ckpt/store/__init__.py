"""The durable truth of a job: a control log and tables, all Delta, committed by compare-and-swap."""
