--------------------------- MODULE MCDriverLease ---------------------------
\* Two clocks at three quarters of the third one's rate.
EXTENDS DriverLease
Rates == [a |-> 4, b |-> 3, c |-> 3]
=============================================================================
