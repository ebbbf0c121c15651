"""From the user's graph to the query that Spark runs: checked, resolved, the same for every incarnation."""
