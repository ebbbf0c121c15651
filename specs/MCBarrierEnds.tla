---------------------------- MODULE MCBarrierEnds ----------------------------
\* Epochs end and decisions are shown: a model of its own, since TLC takes longer where it looks at behaviours.
EXTENDS BarrierCommit
=============================================================================
