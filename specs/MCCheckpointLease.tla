------------------------- MODULE MCCheckpointLease -------------------------
\* Two fast clocks and one of half their rate, which is the slowest allowed: Budget = TTL / 2.
EXTENDS CheckpointLease
Rates == [a |-> 2, b |-> 1, c |-> 2]
=============================================================================
