---------------------------- MODULE DriverLease ----------------------------
(***************************************************************************)
(* Who runs a job: one driver that renews its lease in the job's log, and  *)
(* standbys that watch it by their own clocks, as host/standby.py and      *)
(* store/epoch_log.py have it.  A row is proposed on what was read and is  *)
(* appended by compare-and-swap, so that a driver may stand still between  *)
(* the two.                                                                *)
(*                                                                         *)
(* Time is in ticks; in one tick the clock of n counts Rate[n].  Readings  *)
(* are kept as distances from now; no two clocks are compared.             *)
(***************************************************************************)
EXTENDS Naturals, Sequences, FiniteSets

CONSTANTS Node, Rate, TTL, Every, MaxLog, MaxPause, Bound, Mutant

VARIABLES
  log,      \* rows: the incarnation that wrote each
  holder,   \* the node that began each incarnation
  inc,      \* per node: the incarnation that it believes to be; 0: a standby
  saw,      \* per node: length of the log when it was read last
  rem,      \* per node: left of its wait, by its own clock: for the lease's end, or for its next renewal
  ask,      \* per node: length of the log that its next row was proposed on; 0: none
  paused,   \* nodes that stand still
  pauses, silent, early

vars == <<log, holder, inc, saw, rem, ask, paused, pauses, silent, early>>

Minus(a, b) == IF a > b THEN a - b ELSE 0
Awake(n) == n \notin paused
Current == log[Len(log)]
Primary == holder[Current]

Init ==
  \E first \in Node :
    /\ log = <<1>> /\ holder = <<first>>
    /\ inc = [n \in Node |-> IF n = first THEN 1 ELSE 0]
    /\ saw = [n \in Node |-> 1]
    /\ rem = [n \in Node |-> IF n = first THEN Every ELSE TTL + 1]
    /\ ask = [n \in Node |-> 0]
    /\ paused = {} /\ pauses = 0 /\ silent = 0 /\ early = FALSE

----------------------------------------------------------------------------

Term(n) == IF Mutant = "ShortTerm" THEN Every ELSE TTL + 1

\* A standby reads the log: a new row is a new term.
Look(n) ==
  /\ Awake(n) /\ inc[n] = 0 /\ ask[n] = 0 /\ saw[n] < Len(log)
  /\ saw' = [saw EXCEPT ![n] = Len(log)]
  /\ rem' = IF Mutant = "FirstReading" /\ log[saw[n]] = Current THEN rem ELSE [rem EXCEPT ![n] = Term(n)]
  /\ UNCHANGED <<log, holder, inc, ask, paused, pauses, silent, early>>

\* It has read the log once more, nothing is new, and the term has passed.
Take(n) ==
  /\ Awake(n) /\ inc[n] = 0 /\ ask[n] = 0 /\ saw[n] = Len(log) /\ rem[n] = 0
  /\ ask' = [ask EXCEPT ![n] = Len(log)]
  /\ UNCHANGED <<log, holder, inc, saw, rem, paused, pauses, silent, early>>

\* A primary has read the log, finds itself in it, and is about to append: a renewal, or an epoch.
Renew(n) ==
  /\ Awake(n) /\ inc[n] # 0 /\ ask[n] = 0 /\ rem[n] = 0
  /\ Current = inc[n]
  /\ ask' = [ask EXCEPT ![n] = Len(log)]
  /\ UNCHANGED <<log, holder, inc, saw, rem, paused, pauses, silent, early>>

\* A primary has read the log and finds another incarnation: it ends, and is started again as a standby.
Fenced(n) ==
  /\ Awake(n) /\ inc[n] # 0 /\ ask[n] = 0 /\ Current # inc[n]
  /\ inc' = [inc EXCEPT ![n] = 0]
  /\ saw' = [saw EXCEPT ![n] = Len(log)]
  /\ rem' = [rem EXCEPT ![n] = Term(n)]
  /\ UNCHANGED <<log, holder, ask, paused, pauses, silent, early>>

Admitted(n) ==
  \/ ask[n] = Len(log)
  \/ Mutant = "NoCompare" /\ inc[n] # 0
  \/ Mutant = "NoToken" /\ inc[n] = 0

\* The compare-and-swap.
Land(n) ==
  /\ Awake(n) /\ ask[n] # 0
  /\ ask' = [ask EXCEPT ![n] = 0]
  /\ IF ~Admitted(n)
     THEN UNCHANGED <<log, holder, inc, saw, rem, silent, early>>
     ELSE /\ Len(log) < MaxLog
          /\ IF inc[n] # 0
             THEN /\ log' = Append(log, inc[n])
                  /\ UNCHANGED <<holder, inc, early>>
             ELSE /\ log' = Append(log, Len(holder) + 1)
                  /\ holder' = Append(holder, n)
                  /\ inc' = [inc EXCEPT ![n] = Len(holder) + 1]
                  /\ early' = (early \/ (Awake(Primary) /\ inc[Primary] = Current /\ silent * Rate[Primary] <= Every))
          /\ saw' = [saw EXCEPT ![n] = Len(log) + 1]
          /\ rem' = [rem EXCEPT ![n] = Every]
          /\ silent' = 0
  /\ UNCHANGED <<paused, pauses>>

----------------------------------------------------------------------------

Pause(n) ==
  /\ Awake(n) /\ pauses < MaxPause /\ paused = {}
  /\ paused' = {n} /\ pauses' = pauses + 1
  /\ UNCHANGED <<log, holder, inc, saw, rem, ask, silent, early>>

Resume(n) ==
  /\ n \in paused
  /\ paused' = {}
  /\ UNCHANGED <<log, holder, inc, saw, rem, ask, pauses, silent, early>>

Due(n) == Awake(n) /\ (\/ ask[n] # 0
                       \/ inc[n] = 0 /\ (saw[n] < Len(log) \/ rem[n] = 0)
                       \/ inc[n] # 0 /\ (rem[n] = 0 \/ Current # inc[n]))

\* Whoever is awake does what is due before time passes.
Pass ==
  /\ Len(log) < MaxLog
  /\ \A n \in Node : ~Due(n)
  /\ rem' = [n \in Node |-> Minus(rem[n], Rate[n])]
  /\ silent' = silent + 1
  /\ UNCHANGED <<log, holder, inc, saw, ask, paused, pauses, early>>

Next == Pass \/ \E n \in Node : Look(n) \/ Take(n) \/ Renew(n) \/ Fenced(n) \/ Land(n) \/ Pause(n) \/ Resume(n)

Spec == Init /\ [][Next]_vars

----------------------------------------------------------------------------
(* What must hold. *)

\* A row of an incarnation that was replaced is never behind its successor's: what it commits does not count, for it is not there.
OneAtATime == \A i \in 1 .. Len(log) - 1 : log[i] <= log[i + 1]

\* Nobody is replaced who renews in time, whatever the clocks.
NotEarly == ~early

\* No lease is silent for longer than the bound while a standby is awake.
Soon == silent <= Bound
=============================================================================
