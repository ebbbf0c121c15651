"""From what the user wrote to the query that Spark runs: checked, resolved, the same for every incarnation."""
