"""What people and other systems see of a job: numbers, traces, lineage, a page, a picture in a terminal. No job depends on it."""
