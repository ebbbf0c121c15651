--------------------------- MODULE MCLeaseEnds ---------------------------
\* Liveness in a scope of its own: TLC keeps a graph of all states for it.
EXTENDS MCCheckpointLease
=============================================================================
