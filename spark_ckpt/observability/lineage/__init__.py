"""Where a job's rows come from and go to, for catalogues: OpenLineage events. Loaded only if a job asks (`lineage=...`)."""
