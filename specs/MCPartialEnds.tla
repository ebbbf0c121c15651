---------------------------- MODULE MCPartialEnds ----------------------------
\* Recoveries and snapshots end: a model of its own, since TLC takes longer where it looks at behaviours.
EXTENDS PartialRecovery
=============================================================================
